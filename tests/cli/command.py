"""Commands as one types them."""

import shlex

from convattn.cli import main


def run(line: str) -> int:
    """Runs `convattn` with the words of a line, and returns the exit code."""
    return main(shlex.split(line))
