"""The command line; `convattn --help` lists its commands, and nothing here loads torch before a command needs it."""

from convattn.cli.app import main

__all__ = ["main"]
