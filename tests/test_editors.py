"""What a user's editor says: the README's lines pass pyright, and the name of a layer shows its arguments."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import convattn

SOURCE = Path(__file__).parents[1] / "src"
LAYER = """from convattn import RelativeAttention2d

layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic", kernel_size=3, padding=1)
"""
ERRORS = {
    "layer.encoding.sharpness = 2.0": 0,
    "layer.encoding = layer.encoding.soften(5.0)": 0,
    "layer.encoding = 5.0": 1,
    "layer.stride = 5": 1,
}
"""How many errors pyright finds in a line that follows."""


def test_pyright_on_lines_of_the_readme(tmp_path):
    settings = {"extraPaths": [str(SOURCE)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for number, line in enumerate(ERRORS):
        (tmp_path / f"{number}.py").write_text(f"{LAYER}{line}\n")
    pyright = Path(sys.executable).with_name("pyright")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    report = json.loads(finished.stdout)
    errors = dict.fromkeys(ERRORS, 0)
    for diagnostic in report["generalDiagnostics"]:
        line = list(ERRORS)[int(Path(diagnostic["file"]).stem)]
        errors[line] += diagnostic["severity"] == "error"
    assert report["summary"]["filesAnalyzed"] == len(ERRORS)
    assert errors == ERRORS


def test_the_name_of_a_layer_shows_every_argument():
    layer = convattn.RelativeAttention2d
    documented = layer.__doc__.partition("Args:")[2]
    names = [name for name in inspect.signature(layer).parameters if name != "options"]
    assert set(names) <= set(re.findall(r"^ {8}(\w+)", documented, re.MULTILINE))


def test_layers_of_other_axes_name_the_class_that_lists_their_arguments():
    for layer in (convattn.RelativeAttention1d, convattn.RelativeAttention3d):
        assert "`RelativeAttention2d`" in layer.__doc__
