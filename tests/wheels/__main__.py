"""`python -m tests.wheels DIST`, run by `make wheels-test`: wheels in an empty environment.

What comes from a checkout is the model alone.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.containers.ask import ask_rest
from tests.stack import BUNDLED_MODEL, REPOSITORY, free_port

SERVER = "optimist[gateway,scheduler,worker,proposer,cli]"
ALIGNER_ANSWER = "\nprint(total)\n\n"


def main() -> None:
    """Installs the wheels of a directory, and lets each do what it is for."""
    dist = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        install = [str(environment / "bin" / "pip"), "install", "-qq", "--find-links", str(dist)]
        subprocess.run([*install, SERVER], check=True)
        sys.stdout.write(f"aligner: {follow(environment)}\n")
        sys.stdout.write(f"optimist: {serve(environment)} predicted tokens accepted\n")


def follow(environment: Path) -> str:
    """Runs the example of docs/aligner.md; returns whether the package is compiled."""
    page = (REPOSITORY / "docs" / "aligner.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example += "from optimist_aligner import IS_COMPILED; print(IS_COMPILED)"
    python = [str(environment / "bin" / "python"), "-I", "-c", example]
    answer = subprocess.run(python, check=True, capture_output=True, text=True, cwd=environment)
    assert answer.stdout.startswith(ALIGNER_ANSWER), answer.stdout
    is_compiled = answer.stdout.removeprefix(ALIGNER_ANSWER).strip()
    return f"its example runs, compiled: {is_compiled}"


def serve(environment: Path) -> int:
    """Serves the bundled model; returns the accepted tokens of an edit with a prediction."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(environment / "bin" / "optimist"), "serve", str(BUNDLED_MODEL)]
    variables = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    with subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=environment,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        try:
            assert any("Optimist serves" in line for line in server.stdout), "it does not serve"
            return ask_rest(url)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
