"""Gathers what the page shows: a network on images, and beside it its copies or other networks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from convattn.convert import network_to_attention, network_to_conv
from convattn.errors import ArgumentError, CheckpointError, must_be
from convattn.heads.analysis import analyze
from convattn.heads.catalogue import layers_to_read
from convattn.heads.head_report import HeadReport, read_report
from convattn.heads.head_snapshots import HEADS, read_heads
from convattn.layers import RelativeAttention
from convattn.networks import create_network
from convattn.networks.images import (
    OwnImages,
    class_names,
    normalisation,
    read_images,
    require_own_images,
    trained_on,
)
from convattn.networks.loading import LoadedNetwork, load_with_source
from convattn.networks.source import HOMES
from convattn.viewer.build import build_scene
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.image_maps import is_positional
from convattn.viewer.scene import Scene
from convattn.wording import counted, some

_LIMIT, _OWN_LIMIT = 8, 20
"""Default number of a user's images, and of a network's own."""

_KERNEL_SIZE = 3
"""Default number of taps along each axis for heads that are not hard."""


class Exhibition(NamedTuple):
    """Networks on the same images."""

    exhibits: tuple[Exhibit, ...]
    names: tuple[str, ...]  # Of the images
    labels: tuple[str, ...]  # What they show; () if unknown

    def scene(self, report: HeadReport | None = None) -> Scene:
        """Makes what the page shows of them, with a report on the first; without one, its heads are measured here."""
        first, *others = self.exhibits
        report = report or first.report or _measured(first)
        first = replace(first, report=report)
        return build_scene([first, *others], names=self.names, labels=self.labels)


def gather(  # noqa: PLR0913 - what the command of the page takes
    source: str,
    images: Path | None = None,
    *,
    load: Callable[[str], LoadedNetwork] = load_with_source,
    limit: int | None = None,
    layers: Sequence[str] = (),
    compare: Sequence[str] = (),
    kernel_size: int | None = None,
    report: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Exhibition:
    """Loads a network, its images, and what is shown beside it.

    Args:
        source: What `load` takes; by default the folder of a network.
        images: What `open_images` takes; None takes test images of the data that the network was trained on.
        load: Loads the network of a source.
        limit: How many images to take; None takes 8 of a user's, or 20 of the network's own.
        layers: Names of the layers to show, or patterns as in `fnmatch`; () shows all.
        compare: "untrained", "converted" or another source, each shown beside the network.
        kernel_size: Taps along each axis of the convolutions of "converted"; None keeps the taps of hard heads, and
            gives three to others.
        report: Folder or file of a head report on the network.
        tell: Takes a line before each step that may be long.

    Returns:
        The networks, first the one of `source`. One without attention is left out if another is shown.
    """
    if len({*compare}) < len(compare):
        raise ArgumentError(must_be("compare", "different networks, each once", list(compare)))
    tell(f"loading {source}")
    loaded = load(source)
    pictures = _open(source, loaded, images, limit)
    name = "trained" if loaded.folder else "network"
    first = _exhibit(source, loaded, pictures, name)
    if layers:
        first = replace(first, layers=tuple(layers_to_read(loaded.network, layers)))
    exhibits = []
    if layers_to_read(loaded.network) or not compare:
        exhibits.append(first)
    for copy in compare:
        tell(f"making what stands beside it: {copy}")
        if copy == "untrained":
            exhibits.append(untrained(first, _draw(loaded)))
        elif copy == "converted":
            exhibits.append(converted(first, kernel_size))
        elif ":" in copy or Path(copy).is_dir():
            other = load(copy)
            if images is None and trained_on(other.folder) != trained_on(loaded.folder):
                raise ArgumentError(
                    f"images must be given: nothing says that {_title(copy)} and {first.title} were trained on the"
                    " same data"
                )
            name = f"{_title(copy)} {len(exhibits) + 1}"
            same_images = _open(copy, other, images, limit)
            exhibits.append(_beside(first, _exhibit(copy, other, same_images, name)))
        else:
            expected = "untrained, converted, or a network such as a folder"
            raise ArgumentError(must_be("compare", expected, copy))
    if report is not None:
        measured = _read_report(report, exhibits[0])
        exhibits[0] = replace(exhibits[0], report=measured)
    return Exhibition(tuple(exhibits), pictures.names, pictures.labels)


def _title(source: str) -> str:
    """Returns what the page calls the network of a source."""
    home, _, name = source.partition(":")
    if home in HOMES:
        return name
    return Path(source).resolve().name


def _open(source: str, loaded: LoadedNetwork, path: Path | None, limit: int | None) -> OwnImages:
    """Reads and prepares images: those at a path, or the network's own."""
    if path is None:
        return require_own_images(loaded, _title(source), limit or _OWN_LIMIT)
    return read_images(path, loaded, limit or _LIMIT)


def _exhibit(source: str, loaded: LoadedNetwork, pictures: OwnImages, name: str) -> Exhibit:
    """Shows a network on images, with the heads that its training recorded."""
    mean, std = normalisation(loaded) or ((), ())
    heads = []
    # A folder that is not a run has no such file, nor has one of heads without centres.
    if loaded.folder and (loaded.folder / HEADS).is_file():
        heads = read_heads(loaded.folder)
    return Exhibit(
        network=loaded.network,
        images=pictures.prepared,
        name=name,
        title=_title(source),
        note="Its weights are random, drawn with seed 0." if loaded.drawn else "",
        mean=mean,
        std=std,
        classes=class_names(loaded.folder),
        heads=heads,
    )


def _beside(first: Exhibit, other: Exhibit) -> Exhibit:
    """Shows of another network the layers that are shown of the first if it has them, else all."""
    readable = layers_to_read(other.network)
    missing = [name for name in first.layers or () if name not in readable]
    if not missing:
        return replace(other, layers=first.layers)
    note = f"{other.note} All its layers are shown, because it has no {some(missing)}."
    return replace(other, note=note.lstrip())


def _measured(first: Exhibit) -> HeadReport | None:
    """Measures heads of content on the images that are shown, so that the page has a word for each.

    Heads of displacement need none: the page knows their scores. One image alone tells nothing of content.
    """
    shown = layers_to_read(first.network, first.layers).items()
    names = [name for name, module in shown if not is_positional(module)]
    if not names or len(first.images) == 1:
        return None
    return analyze(first.network, first.images, layers=names, controls=(), progress=False)


def _draw(loaded: LoadedNetwork) -> nn.Module:
    """Builds a network anew, with weights drawn with seed 0."""
    if loaded.source is None:
        kind = type(loaded.network).__name__
        raise ArgumentError(
            f"untrained builds the network anew, and nothing says what builds a {kind}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone, where it is built
        return create_network(loaded.source, loaded.options)


def _read_report(path: Path, first: Exhibit) -> HeadReport:
    """Reads what `convattn analyze` measured of a network."""
    try:
        report = read_report(path)
    except CheckpointError as error:
        reason = re.sub(r"(a )?HeadReport", "a head report", str(error))
        raise CheckpointError(
            f"report must be a head report (the folder that `convattn analyze -o` makes): {reason}"
        ) from None
    modules = dict(first.network.named_modules())
    measured = [layer.name for layer in report.layers]
    if not modules.keys() & set(measured):
        raise ArgumentError(
            f"report is of another network: {first.title} has no layer {some(measured)}"
        )
    layers = report.changed_in(first.network)
    if layers:
        raise ArgumentError(
            f"report was measured with other weights than {first.title} has, of {layers}"
        )
    return report


def untrained(first: Exhibit, drawn: nn.Module) -> Exhibit:
    """Shows a network beside itself with drawn weights, which are rounded to 16 bits to make the page smaller."""
    with torch.no_grad():
        for parameter in drawn.eval().parameters():
            parameter.copy_(parameter.half())
    drawn.to(first.images)  # device, and dtype
    return replace(
        first,
        network=drawn,
        name="untrained",
        title=f"{first.title}, untrained",
        note="The same network before any training: weights drawn with seed 0, rounded to 16 bits.",
        heads=(),
    )


def converted(first: Exhibit, kernel_size: int | None = None) -> Exhibit:
    """Converts convolutions to attention, or attention to convolutions and those to attention with hard heads.

    The page compares layers by their place. So of a network with attention of its own, the layers of the copy are the
    same ones, without those that convolutions became: the many heads of a patch embedding stand beside nothing.
    `kernel_size` is the number of taps along each axis; None keeps the taps of hard heads, and gives three to others.
    """
    network, images, readable = first.network, first.images, tuple(layers_to_read(first.network))
    convolutions, note = network, "Its convolutions as attention: every head is one tap."
    if _own_layers(network):
        convolutions, size = _as_convolutions(network, images, kernel_size)
        note = f"Converted to convolutions{size}, and back: every head is one tap."
    elif kernel_size is not None:
        raise ArgumentError(
            "kernel_size needs attention of this library, which becomes convolutions"
        )
    attention, _ = network_to_attention(convolutions, images=images)
    notes = [note]
    left_out = [name for name in _own_layers(attention) if name not in readable]
    if readable and left_out:
        notes.append(f"Left out are those that have no counterpart to compare: {some(left_out)}.")
    with torch.no_grad():
        before, after = network(images), attention(images)
    if isinstance(before, Tensor) and before.ndim == 2:
        same = before.argmax(1) == after.argmax(1)
        count = counted(len(images), "image")
        notes.append(f"The class is the same for {int(same.sum())} of {count}.")
    if first.note:
        notes.append(first.note)
    return replace(
        first,
        network=attention,
        name="converted",
        title=f"{first.title}, converted",
        note=" ".join(notes),
        heads=(),
        layers=first.layers or readable or None,
    )


def _as_convolutions(
    network: nn.Module, images: Tensor, kernel_size: int | None
) -> tuple[nn.Module, str]:
    """Converts attention to convolutions, and says their size."""
    size = kernel_size or _KERNEL_SIZE
    words = f" of {size} × {size}"
    own = _own_layers(network).items()
    hard = [name for name, layer in own if layer.encoding.fixed_displacements is not None]
    if hard and not kernel_size:
        network, _ = network_to_conv(network, include=hard, images=images)
        if not any(map(is_positional, network.modules())):
            return network, ""
        words = f",{words} where heads are not hard"
    convolutions, _ = network_to_conv(network, kernel_size=size, images=images)
    return convolutions, words


def _own_layers(network: nn.Module) -> dict[str, RelativeAttention]:
    """Returns the attention layers of this library by name."""
    modules = network.named_modules()
    return {name: module for name, module in modules if isinstance(module, RelativeAttention)}
