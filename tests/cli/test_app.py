"""The command line as a whole: exit codes, and one line for every mistake."""

import os
import re
import resource
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tests.cli.command import run
from tests.cli.saved_layers import convolution

from convattn.__about__ import __version__
from convattn.cli import app
from convattn.cli.app import COMMANDS
from convattn.errors import CertificateWarning, DataError

COMMAND = Path(sys.executable).with_name("convattn")

MISTAKES = {
    "unknown command": (
        "frobnicate",
        f"unknown command 'frobnicate'. Known: {', '.join(sorted(COMMANDS))}",
    ),
    "misspelt command": ("trian", "unknown command 'trian': did you mean 'train'?"),
    "help of no command": ("figures --help", "unknown command 'figures'. Known: "),
    "misspelt option": (
        "train digits-quadratic --outptu x",
        "Unknown option: --outptu. Did you mean --output?",
    ),
    "missing argument": ("train", 'Command "train" parameter RECIPE requires an argument.'),
    "missing output": (
        "convert convolution",
        'Command "convert" parameter --output requires an argument.',
    ),
    "one too many": ("info extra", "unexpected argument 'extra'"),
    "not a number": (
        "convert x -o new --sharpness hard",
        'unable to convert "hard" into float',
    ),
    "not an integer": (
        "convert x -o new --kernel-size 1.5",
        "Invalid value for --kernel-size: must be an integer, but is '1.5'",
    ),
    "sharpness": (
        "convert convolution -o new --sharpness 0",
        "--sharpness must be a positive finite number",
    ),
    "taken folder": (
        "convert convolution -o convolution",
        "--output must be new or empty",
    ),
    "file for folder": (
        "convert convolution -o note",
        "--output must be a folder, but 'note' is a file",
    ),
    "taken folder of a run": (
        "train digits-quadratic -o convolution",
        "must be new or empty",
    ),
    "taken folder of a demo": ("demo -o convolution", "--output must be new or empty"),
    "nested option": (
        f"convert timm:resnet10t --random-weights -o new --set a={'[' * 100_000}",
        "options must fit timm:resnet10t, but with {'a': '",
    ),
    "folder that cannot be": (
        "convert convolution -o /proc/none/new",
        "--output cannot be made: No such file or directory: '/proc/none/new'",
    ),
    "page that cannot be": (
        "view convolution -o /proc/new.html",
        "--output cannot be made: No such file or directory: '/proc/new.html'",
    ),
    "unknown recipe": (
        "train digits-quadratik",
        "unknown recipe 'digits-quadratik': did you mean 'digits-quadratic'",
    ),
    "missing recipe": ("train mine.toml", "mine.toml: cannot read the recipe"),
    "wrong value": (
        "train digits-quadratic --set training.epochs=many",
        "training.epochs must be an integer",
    ),
    "no value": (
        "train digits-quadratic --set training.epochs",
        "--set must be of the form KEY=VALUE",
    ),
    "missing data": (
        "train digits-quadratic --set data.name=cifar10 --set data.folder=none",
        "there is no folder none",
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    convolution(tmp_path)
    (tmp_path / "note").write_text("a file")
    return tmp_path


def contents(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_on_one_line_and_leaves_nothing(place, mistake, capsys):
    arguments, message = MISTAKES[mistake]
    before = contents(place)
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.match(f"convattn: .*{message}", err)
    assert contents(place) == before


def test_mistake_in_a_process_of_its_own(place):
    arguments, message = MISTAKES["misspelt command"]
    done = subprocess.run(
        [COMMAND, arguments], capture_output=True, text=True, check=False, cwd=place
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert re.match(f"convattn: .*{message}", done.stderr)


def test_full_disk_is_a_mistake_and_leaves_only_the_folder_above(place, capsys):
    """Files cannot grow above 100 bytes, as on a disk that is full."""
    before, limits = contents(place), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert run("convert convolution -o new/made") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"convattn: cannot write .*model.safetensors: .*File too large.*\n", err)
    assert contents(place) == sorted([*before, "new"])


PROGRAM = """
import sys
from convattn.cli import app
from convattn.errors import DataError

def cross() -> int:
    print("3 × 5")
    return 0

def fail() -> int:
    print("so far")
    raise DataError("no data")

app.COMMANDS = {"cross": cross, "fail": fail}
sys.exit(app.main())
"""
OTHER = [sys.executable, "-c", PROGRAM]
"""A program of two commands that need no torch."""


def test_reader_that_leaves_is_no_error():
    command = [*OTHER, "cross"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", ["", "--help", "-h"])
def test_help_lists_every_command(arguments, capsys):
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert set(COMMANDS) <= set(re.findall(r"^│ (\w+)  ", out, flags=re.MULTILINE))
    assert "\x1b" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_every_option(command, capsys):
    assert run(f"{command} --help") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: convattn {command} ")
    assert ("--json" in out) == (command != "demo")


@pytest.mark.parametrize(
    ("command", "letter"),
    [([COMMAND, "convert", "--help"], r"\u03b1"), ([*OTHER, "cross"], r"\xd7")],
    ids=["help", "output"],
)
def test_letters_that_a_terminal_lacks_are_escaped(command, letter):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert letter in done.stdout


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def raising(error):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "convattn: interrupted\n"),
        (KeyboardInterrupt("go on by that"), 130, "convattn: interrupted: go on by that\n"),
        (
            PermissionError(13, "Permission denied", "there"),
            2,
            "convattn: Permission denied: there\n",
        ),
        (OSError(28, "No space left on device"), 2, "convattn: No space left on device\n"),
        (DataError("first\n  second"), 2, "convattn: first second\n"),
        (ValueError("two\nlines"), None, None),
        (OSError("no file"), None, None),
    ],
)
def test_what_a_command_raises(monkeypatch, capsys, error, code, message):
    monkeypatch.setattr(app, "COMMANDS", {"fail": raising(error)})
    if code is None:
        with pytest.raises(type(error), match=str(error)):
            run("fail")
    else:
        assert run("fail") == code
        assert capsys.readouterr().err == message


def test_reader_that_left_is_told_nothing_more(monkeypatch, tmp_path):
    monkeypatch.setattr(app, "COMMANDS", {"fail": raising(BrokenPipeError())})
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert run("fail") == 141
        out.write("what was still to come")
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize("output", ["/dev/full", "a pipe without a reader", "closed"])
def test_error_is_told_where_output_cannot_be_written(output):
    close = ["sh", "-c", 'exec "$@" >&-', "sh"] if output == "closed" else []
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, Path("/dev/full").open("w") as full:
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"
        }
        done = subprocess.run(
            [*close, *OTHER, "fail"],
            stdout={"/dev/full": full}.get(output, pipe),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (2, "convattn: no data\n")


def test_warning_of_convattn_is_one_line_and_others_are_left_to_python(monkeypatch, capsys):
    def command() -> int:
        warnings.simplefilter("always")
        warnings.warn("first\n  second", CertificateWarning, stacklevel=1)
        warnings.warn("of another library", FutureWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(app, "COMMANDS", {"warn": command})
    with pytest.warns(FutureWarning, match=r"^of another library$") as caught:
        assert run("warn") == 0
    assert len(caught) == 1
    assert capsys.readouterr() == ("", "convattn: first second\n")


@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("frobnicate", 2)])
def test_package_run_as_a_program_is_the_command(monkeypatch, capsys, words, code):
    monkeypatch.setattr(sys, "argv", ["convattn", words])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("convattn", run_name="__main__")
    assert caught.value.code == code
    out, err = capsys.readouterr()
    assert (out.strip() == __version__) == (code == 0)
    assert ("unknown command 'frobnicate'" in err) == (code == 2)


def test_package_that_is_only_imported_runs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["convattn", "--version"])
    runpy.run_module("convattn.__main__", run_name="convattn.__main__")
    assert capsys.readouterr() == ("", "")
