"""Installs convattn without extras in a fresh environment and shows what works there: python -m evidence.versions.bare.

Prints the packages and the size beside torch and the time to import as JSON, then runs `EXAMPLE` and the tests of the
core. Needs uv; the environment lies in a temporary folder and is removed.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTS = ("convattn", "convattn.layers")
REPEATS = 5

TOOLS = ("pytest", "pytest-timeout", "hypothesis", "beartype", "psutil")
"""What the tests themselves need."""

TESTS = (
    "tests/test_errors.py",
    "tests/test_files.py",
    "tests/test_sealed.py",
    "tests/test_grid.py",
    "tests/encodings",
    "tests/layers/test_relative.py",
    "tests/convert/test_saved_layers.py",
    "tests/convert/layer/test_to_attention.py",
    "tests/convert/layer/test_to_conv.py",
    "tests/models/test_saved.py",
    "tests/models/test_resnet.py",
    "tests/models/test_conv_net.py",
)

EXAMPLE = """
import tempfile
from pathlib import Path

import torch

import convattn
from convattn import *
from convattn.data import load_samples
from convattn.errors import MissingDependencyError
from convattn.models import ResNet

layer = convattn.RelativeAttention2d(3, 5, 9, "quadratic")
layer(torch.randn(2, 3, 7, 11)).sum().backward()
network, images = ResNet(1, width=8).eval(), torch.randn(2, 3, 16, 16)
attention, certificate = convattn.network_to_attention(network, images=images)
assert certificate.verdict == "exact", certificate.summary()
with tempfile.TemporaryDirectory() as place, torch.no_grad():
    folder = convattn.save_network(attention, Path(place) / "attention", certificate=certificate)
    assert torch.equal(convattn.load_network(folder)(images), attention(images))
    save_network(network, Path(place) / "network")
    assert torch.equal(convattn.load_network(Path(place) / "network")(images), network(images))
convattn.load_network("convattn:cifar10-small")
for call, line in {
    load_samples: 'pip install "convattn[pictures]"',
    lambda: convattn.load_network("someone/network"): 'pip install "convattn[hub]"',
    lambda: convattn.push_to_hub(network, "someone/network"): 'pip install "convattn[hub]"',
    lambda: convattn.train(convattn.load_recipe("digits-quadratic")): 'pip install "convattn[train]"',
}.items():
    try:
        call()
    except MissingDependencyError as error:
        assert line in str(error), error
    else:
        raise AssertionError(f"nothing was missing: {line}")
"""


def run(*command: str | Path, folder: Path = ROOT, quiet: bool = False) -> str:
    """Runs a command in a folder; one that fails ends the script, and what it printed is shown."""
    output = subprocess.PIPE if quiet else None
    done = subprocess.run([*map(str, command)], cwd=folder, text=True, stdout=output, check=False)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout or ''}\nbare.py: {' '.join(map(str, command))[:100]} failed"
        )
    return done.stdout or ""


def contents(environment: Path) -> tuple[int, float]:
    """Returns the number of packages in an environment, and their size in MB (10⁶ bytes)."""
    (packages,) = environment.glob("lib/python*/site-packages")
    size = sum(
        file.stat().st_size
        for file in packages.rglob("*")
        if file.is_file() and not file.is_symlink()
    )
    return len(list(packages.glob("*.dist-info"))), size / 1e6


def seconds_to_import(python: Path, module: str) -> float:
    """Returns the shortest time in which a fresh interpreter imports a module, less that of an empty program."""
    times = {}
    for program in ("pass", f"import {module}"):
        taken = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            run(python, "-c", program, folder=Path(tempfile.gettempdir()))
            taken.append(time.perf_counter() - start)
        times[program] = min(taken)
    return times[f"import {module}"] - times["pass"]


def main() -> None:
    """Makes the environment, measures it, and runs the example and the tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT, help="checkout to install")
    parser.add_argument(
        "--only-measure", action="store_true", help="run neither the example nor the tests"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        environment = Path(place) / "environment"
        python = environment / "bin" / "python"
        run("uv", "venv", "--quiet", "--python", "3.11", environment)
        install = (
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--constraint",
            ROOT / "constraints.txt",
        )
        run(*install, "torch", "numpy")
        packages, size = contents(environment)
        run(*install, given.source)
        with_convattn, whole = contents(environment)
        measured = {
            "packages beside torch and numpy": with_convattn - packages,
            "MB beside torch and numpy": round(whole - size, 1),
            **{
                f"seconds to import {name}": round(seconds_to_import(python, name), 3)
                for name in IMPORTS
            },
        }
        print(json.dumps(measured, indent=2))
        if given.only_measure:
            return
        run(python, "-c", EXAMPLE, folder=Path(place))
        run(environment / "bin" / "convattn", "info", folder=Path(place), quiet=True)
        run(*install, *TOOLS)
        run(python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS)


if __name__ == "__main__":
    main()
