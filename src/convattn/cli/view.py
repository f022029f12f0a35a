"""`convattn view`: the interactive page of a network."""

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from convattn.cli.convert import Origin
from convattn.cli.output import (
    AsJson,
    OutputOrDefault,
    WholeNumber,
    key_values,
    print_record,
    print_text,
    require_images,
)
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, must_be
from convattn.record import Record

_Flag = Parameter(negative="", show_default=False)
_Optional = Parameter(show_default=False)
_Repeated = Parameter(negative="", show_default=False)


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
    images: Annotated[Path | None, _Optional] = None,
    output: OutputOrDefault = None,
    weights: Annotated[Path | None, _Optional] = None,
    pretrained: Annotated[bool, _Flag] = False,
    random_weights: Annotated[bool, _Flag] = False,
    arguments: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    limit: Annotated[WholeNumber | None, _Optional] = None,
    layer: Annotated[tuple[str, ...], _Repeated] = (),
    compare: Annotated[tuple[str, ...], _Repeated] = (),
    kernel_size: Annotated[WholeNumber | None, _Optional] = None,
    report: Annotated[Path | None, _Optional] = None,
    host: str = "127.0.0.1",
    port: WholeNumber = 8017,
    open_: Annotated[bool, Parameter(name="--open", negative="", show_default=False)] = False,
    no_verify: Annotated[bool, _Flag] = False,
    json: AsJson = False,
) -> int:
    """Look at the attention of a network: an interactive page, which needs no network connection.

    Without --output a server on this machine shows the page until Ctrl-C; maps are computed when they are asked for,
    also of an image that you drop on the page. With --output the page is written: the folder gets index.html, which
    opens from the disk with everything inside, and scene.safetensors, the same as numbers. Heads that attend by
    displacement alone are computed in the page, and networks of this library that are made of them run in it. The maps
    of other networks are stored, so that a page of many images is large. A network of timm or torchvision needs
    --weights, --pretrained or --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, convattn:NAME for a trained network of this package (`convattn info` lists
            them), or the folder of a network or a training run.
        images: Folder of images; a .parquet file with a column image or img of pictures; or a .npy array of pictures
            (bytes), or of what the network takes (floating-point numbers). Pictures are prepared as the network's own
            configuration says. Networks that were trained on CIFAR-10 or digits need none: test images come with the
            packages, twenty of CIFAR-10.
        output: Folder to make; it must be new or empty. Default: none, but a server.
        weights: File with the weights of a network of timm or torchvision, a state dict in safetensors or as torch.save
            writes it; all names and shapes must fit.
        pretrained: Fetch the weights that timm or torchvision has for the network.
        random_weights: Draw the weights, with seed 0.
        arguments: KEY=VALUE, an argument for the builder of a network of timm or torchvision. May be given more than
            once.
        limit: How many of the images to take, in the order of their names. Default: 8, or 20 without
            --images.
        layer: Name of a layer to show; may be given more than once. Default: all.
        compare: What to show beside the network: untrained for the same network with drawn weights, converted for what
            conversion makes of it, or another source. May be given more than once.
        kernel_size: Taps along each axis of the convolutions that --compare converted makes. Default: 3; heads that are
            taps already keep their kernel.
        report: Folder or report.json of `convattn analyze` on this network, whose numbers the page shows.
        host: Address at which the server listens: 127.0.0.1 is this machine only, 0.0.0.0 lets other machines in.
        port: Port at which the server listens; 0 takes any that is free.
        open_: Open the page in the browser.
        no_verify: Accept a folder whose files were changed after it was saved.
        json: Print where the page is as JSON.

    Returns:
        0.

    Raises:
        ArgumentError: The output folder holds something, or an option has a wrong value.
    """
    given = key_values(arguments, "--set")
    for name, value in (("--limit", limit), ("--kernel-size", kernel_size)):
        if value is not None and value < 1:
            raise ArgumentError(must_be(name, "at least 1", value))
    require_images(images, source)
    from convattn.cli.view_networks import gather
    from convattn.files import require_new_folder
    from convattn.viewer import build_scene, write_page

    origin = Origin(source, weights, pretrained, random_weights, given, verify=not no_verify)
    if output is None:
        from convattn.viewer.live import Live
        from convattn.viewer.server import listening, serve

        with listening(host, port) as opened, one_thread():
            shown = gather(origin, images, limit=limit, layers=layer, compare=compare, kernel_size=kernel_size)
            live = Live(shown.exhibits_with(report), prepare=shown.prepare, names=shown.names, labels=shown.labels)
            address = _address(host, opened.getsockname()[1])
            served = ServedPage(live.title, address)
            print_record(served, f"{served.title} at {address} (Ctrl-C stops)", json=json)
            if open_:
                webbrowser.open(address)
            serve(live, opened)
        if not json:
            print_text("stopped")
        return 0
    require_new_folder(output, "--output")
    with one_thread():
        shown = gather(origin, images, limit=limit, layers=layer, compare=compare, kernel_size=kernel_size)
        scene = build_scene(shown.exhibits_with(report), names=shown.names, labels=shown.labels)
        page = write_page(scene, output)
    networks = tuple(network["title"] for network in scene.header["networks"])
    written = WrittenPage(str(page), page.stat().st_size, len(scene.header["images"]), networks)
    print_record(written, f"wrote {output} ({written.bytes / 1e6:.1f} MB); open {page}", json=json)
    return 0


def _address(host: str, port: int) -> str:
    """Returns the address of the page; a host that stands for all of this machine's is reached at this machine."""
    near = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{near}]:{port}/" if ":" in near else f"http://{near}:{port}/"
