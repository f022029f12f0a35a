"""Last part of the demo: the interactive page of the trained network, beside the same network without training."""

from pathlib import Path

from convattn.cli.convert_network import Origin

VIEW = "view"
"""Folder of the page, in that of the demo."""


def show_view(folder: Path, source: Path) -> None:
    """Writes the page of the trained network in a folder, with the embedded images."""
    from convattn.cli.view_networks import UNTRAINED, gather
    from convattn.viewer import build_scene, write_page

    origin = Origin(str(source), weights=None, pretrained=False, random_weights=False, arguments={})
    shown = gather(origin, None, compare=(UNTRAINED,))
    write_page(build_scene(shown.exhibits, names=shown.names, labels=shown.labels), folder / VIEW)
