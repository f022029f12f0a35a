"""`convattn analyze`: what the heads of a network look at."""

from dataclasses import replace
from pathlib import Path

from convattn.cli.image_options import pictures_need, require_images
from convattn.cli.network_options import (
    DEFAULTS,
    NetworkOptions,
    require_network,
    require_packages_of,
)
from convattn.cli.output import Count, Output, WholeNumber, print_record
from convattn.cli.threads import one_thread


def analyze(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    images: Path | None = None,
    output: Output,
    network: NetworkOptions = DEFAULTS,
    limit: Count = 100,
    layer: tuple[str, ...] = (),
    kernel_size: WholeNumber = 3,
    radius: WholeNumber = 7,
    no_controls: bool = False,
    view: Count | None = None,
    json: bool = False,
) -> int:
    """Measure where the heads of a network look, and which of them are convolutions.

    The folder gets report.json with every number and its standard error, figures, and the page
    index.html: the answer, and what each head is. Beside every number stand two controls: the network with its
    weights drawn anew, and images with their patches shuffled. A network of timm, torchvision or hf: needs
    --weights, --pretrained or --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, hf:NAME for OWNER/MODEL on the Hugging Face Hub or a folder that
            transformers saved, convattn:NAME for a trained network of this package (`convattn info` lists them), or the
            folder of a network or a training run.
        images: Folder of pictures, one picture, or a .npy array of pictures (bytes), of token ids (whole
            numbers), or of what the network takes (floating-point numbers).
            Pictures are prepared as the network's own configuration says. Networks that were trained on
            CIFAR-10 or digits need none: test images come with the packages, twenty of CIFAR-10.
        output: Folder to make; it must be new or empty.
        network: Which weights the network has.
        limit: How many of the images to take, in the order of their names.
        layer: Name of a layer to measure, or a pattern such as 'blocks.*'; may be given more than once. Default: all.
        kernel_size: Taps along each axis of the convolutions that layers are compared with; odd.
        radius: Largest displacement along each axis, in cells, at which the report holds mean weights.
        no_controls: Leave the controls out; it takes less time. Random weights have no control of untrained weights.
        view: Write the interactive page, too, as view.html with that many of the images; a press on a head of
            index.html opens it there.
        json: Print the report as JSON.

    Returns:
        0.

    Raises:
        ArgumentError: The output folder holds something, or an option has a wrong value.
        MissingDependencyError: Packages of the extra "analyze", or with `view` of "view", are not installed; the
            message names them all.
    """
    require_network(source)
    require_images(images, source)
    shown = {"view": ("pyarrow",)} if view is not None else {}
    require_packages_of(source, analyze=("matplotlib", "jinja2", *pictures_need(images)), **shown)
    from convattn.files import new_folder
    from convattn.heads import CONTROLS
    from convattn.heads import analyze as measure
    from convattn.lab.html_pages import write_report
    from convattn.networks.images import open_for, require_own_images
    from convattn.viewer.exhibition import gather

    with new_folder(output, "--output") as folder:
        loaded = network.load(source)
        if images is None:
            own = require_own_images(loaded, source, limit)
            opened, words = own.prepared, own.what
        else:
            opened = open_for(loaded, images, limit)
            words = images.resolve().name
        controls = CONTROLS
        if no_controls:
            controls = ()
        elif loaded.drawn:
            controls = CONTROLS[:1]
        exhibition = None
        if view is not None:
            exhibition = gather(
                source, images, load=lambda _: loaded, limit=min(view, limit), layers=layer
            )
            exhibition.scene()  # refuses what the page cannot show before the long work
        with one_thread(opened[0].numel() <= 3 * 64 * 64):
            report = measure(
                loaded.network,
                opened,
                layers=layer or None,
                kernel_size=kernel_size,
                radius=radius,
                controls=controls,
                progress=not json,
            )
        if loaded.drawn and not no_controls:
            note = "untrained: the measured weights are themselves random"
            report = replace(report, not_covered=(*report.not_covered, note))
        write_report(
            report, folder, source=source, images=words, drawn=loaded.drawn, shown=exhibition
        )
    summary = f"{report.summary()}\nwrote {output}; look at {output / 'index.html'}"
    print_record(report, summary, json=json)
    return 0
