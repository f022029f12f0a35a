"""`convattn view`: the interactive page of a network."""

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from convattn.cli.network_options import DEFAULTS, NetworkOptions
from convattn.cli.output import OutputOrDefault, WholeNumber, print_record, require_images
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, must_be
from convattn.record import Record

if TYPE_CHECKING:
    from convattn.viewer.exhibition import Exhibition


@dataclass(frozen=True)
class WrittenPage(Record):
    """A page that was written."""

    page: str  # Its file
    bytes: int  # Its size
    images: int  # Number of images
    networks: tuple[str, ...]  # Titles of the networks


@dataclass(frozen=True)
class ServedPage(Record):
    """A page that is served."""

    title: str  # Its title
    address: str  # Where it is


def view(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    images: Path | None = None,
    output: OutputOrDefault = None,
    network: NetworkOptions = DEFAULTS,
    limit: WholeNumber | None = None,
    layer: tuple[str, ...] = (),
    compare: tuple[str, ...] = (),
    kernel_size: WholeNumber | None = None,
    report: Path | None = None,
    host: str | None = None,
    port: WholeNumber | None = None,
    open_: Annotated[bool, Parameter(name="--open")] = False,
    json: bool = False,
) -> int:
    """Look at the attention of a network: an interactive page, which needs no network connection.

    Without --output a server on this machine shows the page until Ctrl-C. With --output the page is written: the
    folder gets index.html, which opens from the disk with everything inside, and scene.safetensors, the same as
    numbers. Heads that attend by displacement alone are computed in the page, and networks of this library that are
    made of them run in it, also on an image that you drop on the page. The maps of other networks are stored, so
    that a page of many images is large. A network of timm, torchvision or hf: needs --weights, --pretrained or
    --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, hf:NAME for OWNER/MODEL on the Hugging Face Hub or a folder that
            transformers saved, convattn:NAME for a trained network of this package (`convattn info` lists them), or the
            folder of a network or a training run.
        images: Folder of images; a .parquet file with a column image or img of pictures; or a .npy array of pictures
            (bytes), or of what the network takes (floating-point numbers). Pictures are prepared as the network's own
            configuration says. Networks that were trained on CIFAR-10 or digits need none: test images come with the
            packages, twenty of CIFAR-10.
        network: Which weights the network has.
        output: Folder to make; it must be new or empty. Default: none, but a server.
        limit: How many of the images to take, in the order of their names. Default: 8, or 20 without
            --images.
        layer: Name of a layer to show; may be given more than once. Default: all.
        compare: What to show beside the network: untrained for the same network with drawn weights, converted for what
            conversion makes of it, or another source. May be given more than once.
        kernel_size: Taps along each axis of the convolutions that --compare converted makes. Default: 3; heads that are
            taps already keep their kernel.
        report: Folder or report.json of `convattn analyze` on this network, whose numbers the page shows.
        host: Address at which the server listens; 0.0.0.0 lets other machines in. Default: 127.0.0.1, this machine.
        port: Port at which the server listens; 0 takes any that is free. Default: 8017.
        open_: Open the page in the browser.
        json: Print where the page is as JSON.

    Returns:
        0.

    Raises:
        ArgumentError: The output folder holds something, or an option has a wrong value.
    """
    for name, value in (("--limit", limit), ("--kernel-size", kernel_size)):
        if value is not None and value < 1:
            raise ArgumentError(must_be(name, "at least 1", value))
    if kernel_size is not None and "converted" not in compare:
        raise ArgumentError(
            "--kernel-size needs --compare converted: it is of the convolutions made for that"
        )
    if output is not None and (host, port) != (None, None):
        raise ArgumentError(
            "--host and --port are of the server, which --output does without: leave them or it out"
        )
    require_images(images, source)
    from convattn.files import require_new_folder
    from convattn.viewer.exhibition import gather

    load = network.loader([source, *compare])
    collect = partial(gather, source, images, load=load, limit=limit, layers=layer, compare=compare)
    collect = partial(collect, kernel_size=kernel_size, report=report)
    if output is None:
        return _serve(collect, host, port, open_=open_, json=json)
    from convattn.viewer import build_scene, write_page

    require_new_folder(output, "--output")
    with one_thread():
        shown = collect()
        scene = build_scene(shown.exhibits, names=shown.names, labels=shown.labels)
        page = write_page(scene, output)
    if open_:
        webbrowser.open(page.absolute().as_uri())
    networks = tuple(network["title"] for network in scene.header["networks"])
    written = WrittenPage(str(page), page.stat().st_size, len(scene.header["images"]), networks)
    print_record(written, f"wrote {output} ({written.bytes / 1e6:.1f} MB); open {page}", json=json)
    return 0


def _serve(
    collect: Callable[[], "Exhibition"],
    host: str | None,
    port: int | None,
    *,
    open_: bool,
    json: bool,
) -> int:
    """Shows networks from a server until Ctrl-C."""
    from convattn.viewer import build_scene
    from convattn.viewer.server import LARGEST, listening, serve

    with (
        listening("127.0.0.1" if host is None else host, 8017 if port is None else port) as opened,
        one_thread(),
    ):
        shown = collect()
        scene = build_scene(shown.exhibits, names=shown.names, labels=shown.labels, largest=LARGEST)
        title, address = (
            scene.header["title"],
            _address(*opened.getsockname()[:2]),
        )  # names of hosts are refused
        print_record(ServedPage(title, address), f"{title} at {address} (Ctrl-C stops)", json=json)
        if open_:
            webbrowser.open(address)
        serve(scene, opened)
    if not json:
        print("stopped")
    return 0


def _address(host: str, port: int) -> str:
    """Returns the address of the page; a host that stands for all of this machine's is reached at this machine."""
    near = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{near}]:{port}/" if ":" in near else f"http://{near}:{port}/"
