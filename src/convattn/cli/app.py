"""Runs the commands: parses arguments, returns exit codes, and prints every error on one line."""

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from convattn.__about__ import __version__
from convattn.cli.analyze import analyze
from convattn.cli.certify import certify
from convattn.cli.convert import convert
from convattn.cli.demo import demo
from convattn.cli.info import info
from convattn.cli.output import say
from convattn.cli.reproduce import reproduce
from convattn.cli.study import study
from convattn.cli.train import train
from convattn.cli.view import view
from convattn.errors import CertificateWarning, CheckpointWarning, ConvAttnError, UnknownNameError
from convattn.files import FULL

_FUNCTIONS = (demo, convert, certify, analyze, view, train, study, reproduce, info)
COMMANDS: Mapping[str, Callable[..., int]] = {command.__name__: command for command in _FUNCTIONS}
"""Every command by its name: a function of typed arguments that returns the exit code."""

_MISTAKE, _INTERRUPTED, _BROKEN_PIPE = 2, 130, 141
"""Exit codes besides 0 (done) and 1 (a check failed); the last two are 128 + signal, as in a shell."""


def build_app() -> App:
    """Makes the parser of the command line, with every command."""
    app = new_app("convattn", "Self-attention that is a convolution, and back.")
    for name, command in COMMANDS.items():
        app.command(command, name=name, sort_key=name)
    return app


def new_app(name: str, summary: str | None) -> App:
    """Makes a parser without commands; its help is laid out as that of `convattn`."""
    return App(
        name=name,
        help=summary,
        help_epilogue=(
            "Exit codes: 0 done, 1 a check failed, 2 a mistake, 3 different outputs; stopped by a signal, 128 and its"
            " number, as 130 by Ctrl-C."
        ),
        version=__version__,
        help_format="markdown",
        default_parameter=Parameter(
            negative="",
            # of a flag, and of an option that may be repeated, none is shown
            show_default=lambda value: None if value is False or value == () else value,
        ),
        suppress_keyboard_interrupt=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns its exit code; arguments that are None are those of the process."""
    return run_app(build_app(), arguments)


def run_app(app: App, arguments: Sequence[str] | None) -> int:
    """Runs a program on the words after its name (None: those of `sys.argv`), and returns the exit code.

    A user's mistake is one line on standard error; an OSError that is not about a file or a folder is raised.
    """
    # By default waiting threads of torch, which is not loaded yet, spin, and slow down those that they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if isinstance(sys.stdout, TextIOWrapper):
        # letters that a terminal lacks, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(app, arguments)
        print(end="", flush=True)  # where standard output was closed, sys.stdout is None
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except KeyboardInterrupt as error:
        message = ": ".join(["interrupted", *error.args])
        return _fail(app, message, _INTERRUPTED)
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        return _fail(app, f"unexpected argument {words!r}", _MISTAKE)
    except (ConvAttnError, CycloptsError) as error:
        return _fail(app, _with_option(app, arguments, str(error)) + _advice(error), _MISTAKE)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        words = [error.strerror, error.filename]
        return _fail(app, ": ".join(str(word) for word in words if word), _MISTAKE)
    return code


def _run(app: App, arguments: Sequence[str] | None) -> int:
    """Parses the arguments and runs the command; errors are raised, and help or the version give code 0."""
    if arguments is None:
        arguments = sys.argv[1:]
    commands = [name for name in app if not name.startswith("-")]
    # The parser prints the help of the whole program for an unknown command with --help.
    first = next(iter(arguments), "-")
    if commands and not first.startswith("-") and first not in commands:
        raise UnknownNameError("command", first, commands)
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        code = app(
            list(arguments),
            print_error=False,
            exit_on_error=False,
            verbose=False,
            result_action="return_value",
        )
    return code or 0


def _with_option(app: App, arguments: Sequence[str] | None, message: str) -> str:
    """Names the argument with which a message begins as it is typed, if it is an option of the command."""
    *_, parser = app.parse_commands(arguments)[1]
    if parser.default_command is None:
        return message
    argument, space, rest = message.partition(" ")
    option = f"--{argument.replace('_', '-')}"
    is_option = any(option in known.names for known in parser.assemble_argument_collection())
    return f"{option}{space}{rest}" if is_option else message


def _advice(error: BaseException) -> str:
    """Names the option that imports a module, if an error is or comes of an encoding that is not known."""
    for one in (error, error.__context__):
        if isinstance(one, UnknownNameError) and one.args[0] == "encoding":
            return "; --import MODULE does that"
    return ""


def _show_warning(
    otherwise: Callable[..., None], message: Warning, category: type[Warning], *rest: Any
) -> None:
    """Prints a warning of convattn on one line; other warnings are shown as Python shows them."""
    if issubclass(category, CertificateWarning | CheckpointWarning):
        say(f"convattn: {_one_line(message)}")
    else:
        otherwise(message, category, *rest)


def _fail(app: App, message: str, code: int) -> int:
    """Prints an error on one line and returns its exit code."""
    try:
        print(end="", flush=True)
    except OSError:
        _drop_output()
    say(f"{app.name[0]}: {_one_line(message)}")
    return code


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _drop_output() -> None:
    """Lets what is still in the buffer not raise again when the interpreter closes standard output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
