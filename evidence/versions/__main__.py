"""Checks the wheel with the lowest and the newest packages that it allows: python -m evidence.versions.

For each Python and each end, uv makes a fresh environment with the extras `EXTRAS`, from wheels alone. The built wheel
is installed there, `EXAMPLE` runs, then `TESTS` run against it. Writes versions.json and versions.md; exit code 1 means
that a row is not green. Each environment is removed after its run. A torch for CUDA takes several gigabytes in each.
"""

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

from evidence.results import ROOT, new_parser

EXTRAS = ("train", "timm", "hf")
ENDS = {"lowest": "lowest-direct", "newest": "highest"}
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.120", "beartype>=0.20", "psutil>=6")
"""What the tests themselves need, and pyproject.toml names only among the tools of development."""

TESTS = (
    "tests/test_sealed.py",
    "tests/layers/test_relative.py",
    "tests/heads/test_initialise.py",
    "tests/heads/test_torch_attention.py",
    "tests/heads/test_transformers_encoders.py",
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
    _, record = convattn.replace_heads(model, report, heads=[(report.layers[0].name, 0)])
    assert len(record.replaced) == 1
small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
convattn.train(convattn.load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"}), progress=False)
assert not main(["info"])
"""


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, without this checkout on Python's path."""
    clean = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        clean.pop(name, None)
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


def make_environment(environment: Path, wheel: Path, python: str, end: str) -> Path:
    """Makes an environment with the packages of one end, and the wheel; returns its interpreter."""
    tools, pins = environment.with_name("tools.in"), environment.with_name("pins.txt")
    tools.write_text("\n".join(TOOLS), encoding="utf-8")
    require("uv", "venv", "--quiet", "--python", python, environment)
    interpreter = environment / "bin" / "python"
    options = ["--quiet", "--python", interpreter]
    compiled = ["--only-binary", ":all:", "--resolution", ENDS[end], "--output-file", pins]
    for extra in EXTRAS:
        compiled += ["--extra", extra]
    require("uv", "pip", "compile", *options, *compiled, ROOT / "pyproject.toml", tools)
    require("uv", "pip", "install", *options, "--requirements", pins)
    require("uv", "pip", "install", *options, "--no-deps", wheel)
    return interpreter


def contents(environment: Path) -> tuple[int, float]:
    """Returns the number of packages in an environment, and their size in MB (10⁶ bytes)."""
    (packages,) = environment.glob("lib/python*/site-packages")
    files = [file for file in packages.rglob("*") if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files)
    return len(list(packages.glob("*.dist-info"))), size / 1e6


def check(place: Path, wheel: Path, python: str, end: str) -> dict[str, Any]:
    """Makes an environment, runs the example and the tests in it, and returns its row."""
    environment = place / "environment"
    interpreter = make_environment(environment, wheel, python, end)
    packages, size = contents(environment)
    listed = require("uv", "pip", "list", "--quiet", "--format", "json", "--python", interpreter)
    version = require(interpreter, "-c", "import platform; print(platform.python_version())")
    start = time.monotonic()
    example = run(interpreter, "-W", "ignore", "-c", EXAMPLE, folder=place)
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider"]
    for setting in SETTINGS:
        options += ["-o", setting]
    tests = run(interpreter, "-m", "pytest", *options, *TESTS)
    green = not example.returncode and not tests.returncode
    if not green:
        print(example.stderr[-2000:], tests.stdout[-4000:], tests.stderr[-2000:], sep="\n")
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", tests.stdout)
    return {
        "python": version.strip(),
        "end": end,
        "versions": {item["name"]: item["version"] for item in json.loads(listed)},
        "green": green,
        "example": not example.returncode,
        "tests": {kind: int(number) for number, kind in counts},
        "seconds": round(time.monotonic() - start),
        "packages": packages,
        "MB": round(size),
    }


def write(record: dict[str, Any], file: Path) -> None:
    """Adds the rows to those of other Pythons in the file."""
    rows = {(row["python"], row["end"]): row for row in record["rows"]}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))["rows"]
        rows = {(row["python"], row["end"]): row for row in before} | rows
    record = {**record, "rows": [rows[key] for key in sorted(rows)]}
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Checks every Python with both ends, writes the record after each, and returns the exit code."""
    parser = new_parser(__doc__)
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--ends", nargs="+", choices=[*ENDS], default=[*ENDS])
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    record: dict[str, Any] = {
        "system": platform.platform(),
        "extras": EXTRAS,
        "dependencies": project["dependencies"],
        "rows": [],
    }
    file = Path(__file__).with_name("versions.json")
    with tempfile.TemporaryDirectory() as built:
        require("uv", "build", "--quiet", "--wheel", "--out-dir", built, ROOT)
        (wheel,) = Path(built).glob("*.whl")
        for python in options.pythons:
            for end in options.ends:
                with tempfile.TemporaryDirectory() as place:
                    record["rows"].append(check(Path(place), wheel, python, end))
                write(record, file)
                print(record["rows"][-1], flush=True)
    return 0 if all(row["green"] for row in record["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
