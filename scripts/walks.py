"""Counts what one meets on the way through the library, by following the calls: python scripts/walks.py.

There are six walks: one image through a layer, one nn.Conv2d to its certificate, a network to attention, a saved
network to its weights, a network's heads to their report, and a recipe to its trained weights. For each it counts the
files of convattn that are entered, the stays in them, their functions, the calls of them (frames), and the classes of
convattn that are passed to them or returned. A stay is what one reads in a file before the next: functions are read in
the order in which they are first entered, each once. Each walk is taken once before it is counted: imports do not
count; what torch and other packages do is left out, and so are comprehensions.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn

import convattn
from convattn import (
    AttentionNet,
    RelativeAttention2d,
    analyze,
    conv_to_attention,
    load_network,
    load_recipe,
    network_to_attention,
    resnet18,
    train,
)

PACKAGE = Path(inspect.getfile(convattn)).parent
TINY = {
    "model.width": "8",
    "model.depth": "1",
    "model.heads": "4",
    "model.ffn": "8",
    "training.epochs": "1",
}


@dataclass
class Walk:
    """What was met on one walk.

    Attributes:
        functions: Code of every function of convattn that was entered.
        frames: How many times one was entered.
        stays: How many times a function that is new on the walk lies in another file than the new one before.
        types: Classes of convattn that were passed or returned, also in a list or a tuple.
    """

    functions: set[CodeType] = field(default_factory=set)
    frames: int = 0
    stays: int = 0
    last: str = ""
    types: set[type] = field(default_factory=set)

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {code.co_filename for code in self.functions}

    def follow(self, frame: FrameType, event: str, result: object) -> None:
        """Takes one event of `sys.setprofile`."""
        code = frame.f_code
        if event not in ("call", "return") or not is_ours(code):
            return
        if event == "return":
            self.types.update(classes(result))
            return
        self.frames += 1
        if code not in self.functions:
            self.functions.add(code)
            self.stays += code.co_filename != self.last
            self.last = code.co_filename
        for value in list(frame.f_locals.values()):
            self.types.update(classes(value))


def is_ours(code: CodeType) -> bool:
    """Tells whether code is a function of convattn; comprehensions and the bodies of files and classes are none."""
    return code.co_filename.startswith(str(PACKAGE)) and (
        code.co_name == "<lambda>" or code.co_name[0] != "<"
    )


def classes(value: object) -> Iterator[type]:
    """Yields the classes of convattn that a value shows."""
    for item in value if isinstance(value, list | tuple) else (value,):
        kind = item if isinstance(item, type) else type(item)
        if kind.__module__.split(".")[0] == "convattn":
            yield kind
    if isinstance(value, tuple) and type(value).__module__.startswith("convattn."):
        yield type(value)


def take(walk: Callable[[], object]) -> Walk:
    """Takes a walk twice, and counts the second time."""
    walk()
    met, before = Walk(), sys.getprofile()
    sys.setprofile(met.follow)
    try:
        walk()
    finally:
        sys.setprofile(before)
    return met


def image(encoding: str, *, training: bool) -> Callable[[], object]:
    """Makes the walk of one image through a layer of nine heads, with gradients where it is in training."""
    layer = RelativeAttention2d(
        3, 5, num_heads=9, encoding=encoding, kernel_size=3, padding=1
    ).train(training)
    x = torch.randn(1, 3, 17, 13)

    def walk() -> None:
        with torch.set_grad_enabled(training):
            layer(x)

    return walk


def conversion() -> Callable[[], object]:
    """Makes the walk of a residual network to attention, checked on images."""
    network, images = resnet18().eval(), torch.randn(2, 3, 32, 32)
    return lambda: network_to_attention(network, images=images)


def report() -> Callable[[], object]:
    """Makes the walk of a small network's heads to their report, with the controls that `analyze` makes by itself."""
    network = AttentionNet("quadratic", width=8, depth=2, ffn=8).eval()
    images = torch.randn(4, 3, 16, 16)
    return lambda: analyze(network, images, progress=False)


def recipe() -> object:
    """Trains a tiny network for one epoch, by a recipe of the package."""
    return train(load_recipe("digits-quadratic", overrides=TINY), progress=False)


WALKS: dict[str, Callable[[], object]] = {
    "image, hard heads, evaluation": image("shift", training=False),
    "image, hard heads, training": image("shift", training=True),
    "image, quadratic heads, evaluation": image("quadratic", training=False),
    "image, quadratic heads, training": image("quadratic", training=True),
    "nn.Conv2d to its certificate": lambda: conv_to_attention(nn.Conv2d(3, 5, 3, padding=1)),
    "network to attention": conversion(),
    "saved network to its weights": lambda: load_network("convattn:cifar10-small"),
    "heads to their report": report(),
    "recipe to its weights": recipe,
}
"""Each walk by its name; an image walks from `forward` to the output."""


def table(walks: dict[str, Walk]) -> str:
    """Returns the counts as a table in Markdown."""
    lines = ["| walk | files | stays | functions | frames | types |", "|---|---|---|---|---|---|"]
    for name, walk in walks.items():
        counts = [len(walk.files), walk.stays, len(walk.functions), walk.frames, len(walk.types)]
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def listing(walk: Walk) -> str:
    """Returns the names of a walk's files and types."""
    files = sorted(Path(file).relative_to(PACKAGE).as_posix() for file in walk.files)
    return f"  files: {', '.join(files)}\n  types: {', '.join(sorted(kind.__name__ for kind in walk.types))}"


if __name__ == "__main__":
    met = {name: take(walk) for name, walk in WALKS.items()}
    sys.stdout.write(f"{table(met)}\n")
    if "--names" in sys.argv:
        for name, walk in met.items():
            sys.stdout.write(f"\n{name}\n{listing(walk)}\n")
