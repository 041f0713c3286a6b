"""Weights and KV memory: forward and verify passes, acceptance."""

import os

# The threads of OpenMP, PyTorch's and oneDNN's, spin while they wait for one another: without that
# a pass of hundreds of short operations takes twice as long, and if they spin on, the services that
# share their cores wait. The variable of GNU's OpenMP is read when PyTorch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "100000")
