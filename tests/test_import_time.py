"""Start-up: importing the package and asking the command line for help load no torch, and few modules.

Modules are counted and not seconds, which a busy machine stretches: starting up is hardly more than loading them.
"""

import subprocess
import sys

MOST_OF_THE_ROOT, MOST_OF_THE_HELP = 45, 350
"""Modules beyond those of Python's own start; 30 and 235 were counted, and half as many leave room for versions."""


def loaded_modules(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter and return the modules that it loaded."""
    program = (
        f"import sys\ntry:\n    {statement}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    return set(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stderr.split()
    )


def test_import_loads_no_torch():
    loaded = loaded_modules("import convattn")
    assert "convattn" in loaded
    assert not loaded & {"torch", "numpy", "einops", "jaxtyping"}


def test_what_is_loaded_is_seen():
    assert "numpy" in loaded_modules("import numpy")


def test_import_loads_little():
    assert len(loaded_modules("import convattn") - loaded_modules("pass")) <= MOST_OF_THE_ROOT


def test_command_line_help_loads_no_torch():
    loaded = loaded_modules(
        "sys.argv = ['convattn', '--help']; from convattn.cli import main; main()"
    )
    assert "convattn.cli" in loaded
    assert not loaded & {"torch", "numpy", "einops", "jaxtyping"}


def test_command_line_help_loads_little():
    statement = "sys.argv = ['convattn', '--help']; from convattn.cli import main; main()"
    assert len(loaded_modules(statement) - loaded_modules("pass")) <= MOST_OF_THE_HELP
