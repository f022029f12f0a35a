"""`convattn demo`: convert, train and certify on images that come with scikit-learn, and write a page about it."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from convattn.cli.demo_conversion import show_conversions
from convattn.cli.demo_page import write_page
from convattn.cli.demo_record import Demonstration
from convattn.cli.options import AsJson, OutputOrDefault, first_free
from convattn.cli.output import print_record, print_text
from convattn.cli.threads import one_thread

if TYPE_CHECKING:
    from convattn.training import Recipe

LEAST_ACCURACY = 0.96
"""Test accuracy that the trained network must reach."""

_RECIPE = "digits-quadratic"


def demo(*, output: OutputOrDefault = None, json: AsJson = False) -> int:
    """Convert, train and certify in a minute or two, and write a page about it.

    All images come with scikit-learn. A convolution of a photograph becomes attention that computes the same, and an
    attention-only network learns to read handwritten digits. The folder holds the page index.html, its figures, its
    numbers as demo.json, the convolution, the attention layer with its certificate, and the training run.

    Args:
        output: Folder to make; it must be new or empty. Default: demo, or the first of demo-2, demo-3, … that is free.
            An earlier demo is never replaced.
        json: Print what was shown as JSON.

    Returns:
        0, or 1 if a certificate failed or the accuracy was not reached.
    """
    from convattn.files import new_folder
    from convattn.training import load_recipe

    folder = first_free(Path("demo")) if output is None else output
    with new_folder(folder, "--output") as temporary:
        shown = demonstrate(temporary, load_recipe(_RECIPE), quiet=json)
    print_record(shown, f"\n{shown.summary()}\n\n{_where_next(folder)}", json=json)
    return 0 if shown.passed else 1


def demonstrate(folder: Path, recipe: "Recipe", *, quiet: bool = False) -> Demonstration:
    """Makes everything that the demo shows in an empty folder, with a recipe of a network with quadratic heads."""
    from convattn.analysis import head_centres, read_heads
    from convattn.data.photograph import PHOTOGRAPHS
    from convattn.training import train

    say = (lambda _: None) if quiet else print_text
    began = time.perf_counter()
    with one_thread():
        say("1/2  converting a convolution of a photograph to attention")
        conversions = show_conversions(folder)
        say(f"2/2  training {recipe.name} for {recipe.training.epochs} epochs")
        tell = None if sys.stderr.isatty() else say  # a terminal has the progress bar
        run = train(recipe, output=folder / "run", progress=not quiet, tell=tell)
    snapshots = read_heads(folder / "run")
    ends = (snapshots[0].step, snapshots[-1].step)
    figure = head_centres(folder / "heads.png", [item for item in snapshots if item.step in ends])
    accurate = run.results["test_accuracy"] >= LEAST_ACCURACY
    shown = Demonstration(
        conversions=tuple(conversions),
        run=run,
        heads=figure.name,
        photograph=PHOTOGRAPHS["china"],
        least_accuracy=LEAST_ACCURACY,
        seconds=time.perf_counter() - began,
        passed=accurate and all(item.certificate.passed for item in conversions),
    )
    shown.save(folder / "demo.json")
    write_page(shown, folder)
    return shown


def _where_next(folder: Path) -> str:
    """Returns the page to open, and commands to try next."""
    return "\n".join(
        [
            f"wrote {folder}; look at {folder / 'index.html'}, then try:",
            f"  convattn convert {folder / 'convolution'} -o {folder.name}-softer --sharpness 5",
            f"  convattn train {_RECIPE} --set seed=1",
            "  convattn info",
        ]
    )
