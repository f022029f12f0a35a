"""Start-up: importing the package and asking the command line for help load no torch and take under 0.3 s."""

import os
import subprocess
import sys
import time
from pathlib import Path

LIMIT_SECONDS = 0.3
RUNS = 5  # the least of a few runs is what the code needs; the rest is what else the machine was doing
COMMAND = Path(sys.executable).with_name("convattn")


def loaded_modules(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter and return the modules that it loaded."""
    program = f"import sys\ntry:\n    {statement}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr.split()
    )


def least_seconds(*command: str | Path) -> float:
    """Time a command, interpreter included, with compiled modules kept from run to run as they are by default."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    spans = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, env=environment)
        spans.append(time.perf_counter() - start)
    return min(spans)


def test_import_loads_no_torch():
    loaded = loaded_modules("import convattn")
    assert "convattn" in loaded
    assert not loaded & {"torch", "numpy", "einops", "jaxtyping"}


def test_a_name_that_needs_torch_loads_it():
    assert "torch" in loaded_modules("from convattn import RelativeAttention2d")


def test_import_is_quick():
    assert least_seconds(sys.executable, "-c", "import convattn") < LIMIT_SECONDS


def test_command_line_help_loads_no_torch():
    loaded = loaded_modules("sys.argv = ['convattn', '--help']; from convattn.cli import main; main()")
    assert "convattn.cli" in loaded
    assert not loaded & {"torch", "numpy", "einops", "jaxtyping"}


def test_command_line_help_is_quick():
    assert least_seconds(COMMAND, "--help") < LIMIT_SECONDS
