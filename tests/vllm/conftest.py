"""The plugin imports a fake of vLLM."""

import sys
from pathlib import Path

# What the plugin imports as vLLM is the fake, for vLLM's own environment is another one.
sys.path.insert(0, str(Path(__file__).parent / "fake"))
