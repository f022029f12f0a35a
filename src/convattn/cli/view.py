"""`convattn view`: the interactive page of a network."""

import webbrowser
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from convattn.cli.image_options import pictures_need, require_images
from convattn.cli.network_options import (
    DEFAULTS,
    NetworkOptions,
    require_network,
    require_packages_of,
)
from convattn.cli.output import Count, OutputOrDefault, first_free, print_record, say
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, must_be
from convattn.files import require_writable
from convattn.record import Record


@dataclass(frozen=True)
class WrittenPage(Record):
    """A page that was written."""

    page: str  # Its file
    bytes: int  # Its size


def view(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    images: Path | None = None,
    output: OutputOrDefault = None,
    network: NetworkOptions = DEFAULTS,
    limit: Count | None = None,
    layer: tuple[str, ...] = (),
    compare: tuple[str, ...] = (),
    kernel_size: Count | None = None,
    report: Path | None = None,
    json: bool = False,
) -> int:
    """Look at the attention of a network: write an interactive page, and open it in the browser.

    The page is one file with everything inside, and needs no network connection. Heads that attend by displacement
    alone are computed in the page, and networks of this library that are made of them run in it, also on an image that
    you drop on the page. The maps of other networks are stored, so that a page of many images is large. A network of
    timm, torchvision or hf: needs --weights, --pretrained or --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, hf:NAME for OWNER/MODEL on the Hugging Face Hub or a folder that
            transformers saved, convattn:NAME for a trained network of this package (`convattn info` lists them), or the
            folder of a network or a training run.
        images: Folder of pictures, one picture, or a .npy array of pictures (bytes), or of what the network
            takes (floating-point numbers). Pictures are prepared as the network's own
            configuration says. Networks that were trained on CIFAR-10 or digits need none: test images come with the
            packages, twenty of CIFAR-10.
        output: File to write; it must not exist. Default: view.html, or the first of view-2.html, view-3.html, … that
            is free.
        network: Which weights the network has.
        limit: How many of the images to take, in the order of their names. Default: 8, or 20 without
            --images.
        layer: Name of a layer to show, or a pattern such as 'blocks.*'; may be given more than once. Default: all.
        compare: What to show beside the network: untrained for the same network with drawn weights, converted for what
            conversion makes of it, or another source. May be given more than once.
        kernel_size: Taps along each axis of the convolutions that --compare converted makes. Default: 3; heads that are
            taps already keep their kernel.
        report: Folder or report.json of `convattn analyze` on this network, whose numbers the page shows.
        json: Print where the page is as JSON, and do not open it.

    Returns:
        0.

    Raises:
        ArgumentError: The output file exists, or an option has a wrong value.
    """
    if kernel_size is not None and "converted" not in compare:
        raise ArgumentError(
            "--kernel-size needs --compare converted: it is of the convolutions made for that"
        )
    if "untrained" in compare and network.random_weights:
        raise ArgumentError(
            "--compare untrained cannot be given with --random-weights, which are that"
        )
    if output is not None:
        _require_new_file(output)
    require_network(source)
    require_images(images, source)
    require_packages_of(source, *compare, view=pictures_need(images))
    from convattn.viewer import write_page
    from convattn.viewer.exhibition import gather

    with one_thread():
        exhibition = gather(
            source,
            images,
            load=partial(network.load, beside=[source, *compare]),
            limit=limit,
            layers=layer,
            compare=compare,
            kernel_size=kernel_size,
            report=report,
            tell=say,
        )
        say("computing the maps")
        scene = exhibition.scene()
    if output is not None:  # again: another command may have made it meanwhile
        _require_new_file(output)
    page = output or first_free(Path("view"), ".html")
    write_page(scene, page)
    written = WrittenPage(str(page), page.stat().st_size)
    print_record(written, f"wrote {page} ({written.bytes / 1e6:.1f} MB)", json=json)
    if not json:
        open_page(page)
    return 0


def _require_new_file(path: Path) -> None:
    """Raises ArgumentError if a file that is to be written exists, or its folder does not."""
    if path.exists():
        raise ArgumentError(must_be("--output", "a file that does not exist", str(path)))
    try:
        require_writable(path.parent)
    except OSError as error:
        raise ArgumentError(f"--output cannot be made: {error.strerror}: {str(path)!r}") from None


def open_page(page: Path) -> None:
    """Opens a page in the browser; where there is none, nothing happens."""
    webbrowser.open(page.absolute().as_uri())
