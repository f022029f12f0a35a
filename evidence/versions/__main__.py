"""Checks the wheel with the lowest and the newest packages that it allows: python -m evidence.versions.

For each Python and each end, uv makes a fresh environment with the extras `EXTRAS`, from wheels alone. The built wheel
is installed there, `EXAMPLE` runs, then `TESTS` run against it. Writes versions.json and versions.md; exit code 1 means
that a row is not green. Each environment is removed after its run. A torch for CUDA takes several gigabytes in each.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from evidence.versions.bare import contents

ROOT = Path(__file__).parents[2]
EXTRAS = ("train", "timm", "hf")
ENDS = {"lowest": "lowest-direct", "newest": "highest"}
SHOWN = ("torch", "timm", "transformers")

TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.120", "beartype>=0.20", "psutil>=6")
"""What the tests themselves need, and pyproject.toml names only among the tools of development."""

TESTS = (
    "tests/test_sealed.py",
    "tests/layers/test_relative.py",
    "tests/adapters/test_initialisation.py",
    "tests/adapters/test_torch_attention.py",
    "tests/adapters/test_transformers.py",
)

SETTINGS = ("addopts=--import-mode=importlib --strict-markers", "filterwarnings=default")
"""The run-time check of types needs a newer jaxtyping than the package, and other packages warn about one another."""

EXAMPLE = """
import timm, torch, transformers
import convattn
from convattn.cli import main
from convattn.models import ResNet

network, images = ResNet(1, width=8).eval(), torch.randn(2, 3, 16, 16)
attention, certificate = convattn.network_to_attention(network, images=images)
assert certificate.verdict == "exact", certificate.summary()
back, certificate = convattn.network_to_conv(attention, images=images)
assert certificate.verdict == "exact", certificate.summary()

vit = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1).eval()
sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "image_size": 64}
other = transformers.ViTModel(transformers.ViTConfig(**sizes)).eval()
for model in (vit, other):
    report = convattn.analyze(model, torch.randn(4, 3, 64, 64), controls=(), progress=False)
    _, record = convattn.replace_convolutional_heads(model, report, heads=[(report.layers[0].name, 0)])
    assert len(record.replaced) == 1
small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
convattn.train(convattn.load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"}), progress=False)
assert not main(["info"])
"""


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, without this checkout on Python's path."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    clean["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=clean, text=True, capture_output=True, check=False
    )


def require(*command: str | Path) -> str:
    """Runs a command; one that fails ends the script, and what it printed is shown."""
    done = run(*command)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout}{done.stderr}\nversions.py: {' '.join(map(str, command))[:100]} failed"
        )
    return done.stdout


def make_environment(place: Path, wheel: Path, python: str, end: str) -> Path:
    """Makes an environment with the packages of one end, and the wheel; returns its folder."""
    environment, tools, pins = place / "environment", place / "tools.in", place / "pins.txt"
    tools.write_text("\n".join(TOOLS), encoding="utf-8")
    require("uv", "venv", "--quiet", "--python", python, environment)
    interpreter = environment / "bin" / "python"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    options = (
        "--quiet",
        "--only-binary",
        ":all:",
        "--resolution",
        ENDS[end],
        "--python",
        interpreter,
        *extras,
    )
    require("uv", "pip", "compile", *options, ROOT / "pyproject.toml", tools, "--output-file", pins)
    require("uv", "pip", "install", "--quiet", "--python", interpreter, "--requirements", pins)
    require("uv", "pip", "install", "--quiet", "--no-deps", "--python", interpreter, wheel)
    return environment


def check(place: Path, wheel: Path, python: str, end: str) -> dict[str, Any]:
    """Makes an environment, runs the example and the tests in it, and returns its row."""
    environment = make_environment(place, wheel, python, end)
    interpreter = environment / "bin" / "python"
    packages, size = contents(environment)
    listed = json.loads(
        require("uv", "pip", "list", "--quiet", "--format", "json", "--python", interpreter)
    )
    versions = {item["name"]: item["version"] for item in listed}
    version = require(
        interpreter, "-c", "import platform; print(platform.python_version())"
    ).strip()
    start = time.monotonic()
    example = run(interpreter, "-W", "ignore", "-c", EXAMPLE, folder=place)
    settings = [word for setting in SETTINGS for word in ("-o", setting)]
    tests = run(
        interpreter,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *settings,
        *TESTS,
    )
    if example.returncode or tests.returncode:
        print(example.stderr[-2000:], tests.stdout[-4000:], tests.stderr[-2000:], sep="\n")
    counts = {
        kind: int(number)
        for number, kind in re.findall(r"(\d+) (passed|failed|errors?|skipped)", tests.stdout)
    }
    return {
        "python": version,
        "end": end,
        "versions": versions,
        "green": not example.returncode and not tests.returncode,
        "example": not example.returncode,
        "tests": counts,
        "seconds": round(time.monotonic() - start),
        "packages": packages,
        "MB": round(size),
    }


def as_table(record: dict[str, Any]) -> str:
    """Returns the rows as a Markdown table, followed by what they were measured with."""
    lines = [
        f"| Python | packages | {' | '.join(SHOWN)} | example and tests | number | MB |",
        "|---" * (5 + len(SHOWN)) + "|",
    ]
    for row in record["rows"]:
        told = ", ".join(f"{number} {kind}" for kind, number in row["tests"].items())
        result = f"{'✓' if row['green'] else '✗'} {told}"
        shown = " | ".join(row["versions"].get(name, "–") for name in SHOWN)
        lines.append(
            f"| {row['python']} | {row['end']} | {shown} | {result} | {row['packages']} | {row['MB']:,} |"
        )
    return "\n".join(lines)


def write(record: dict[str, Any], folder: Path) -> None:
    """Adds the rows to those of other Pythons in the folder, and writes the table between the marks of the page."""
    file, made = folder / "versions.json", {(row["python"], row["end"]) for row in record["rows"]}
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    rows = [row for row in before if (row["python"], row["end"]) not in made] + record["rows"]
    record = {**record, "rows": sorted(rows, key=lambda row: (row["python"], row["end"]))}
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = folder / "versions.md"
    text = page.read_text(encoding="utf-8") if page.exists() else "<!-- table -->\n<!-- end -->\n"
    between = re.compile(r"(<!-- table -->\n).*(<!-- end -->)", re.DOTALL)
    page.write_text(
        between.sub(lambda found: f"{found[1]}\n{as_table(record)}\n\n{found[2]}", text),
        encoding="utf-8",
    )


def main() -> int:
    """Checks every Python with both ends, writes the record after each, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="folder of versions.json and versions.md"
    )
    parser.add_argument(
        "--pythons", nargs="+", default=["3.11", "3.12", "3.13"], help="versions, or interpreters"
    )
    parser.add_argument(
        "--ends", nargs="+", choices=[*ENDS], default=[*ENDS], help="lowest, newest or both"
    )
    given = parser.parse_args()
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "dependencies"
    ]
    record: dict[str, Any] = {
        "system": platform.platform(),
        "extras": EXTRAS,
        "dependencies": bounds,
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as built:
        require("uv", "build", "--quiet", "--wheel", "--out-dir", built, ROOT)
        (wheel,) = Path(built).glob("*.whl")
        for python in given.pythons:
            for end in given.ends:
                with tempfile.TemporaryDirectory() as place:
                    record["rows"].append(check(Path(place), wheel, python, end))
                write(record, given.output)
                print(as_table(record).splitlines()[-1], flush=True)
    return 0 if all(row["green"] for row in record["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
