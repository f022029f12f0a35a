"""`convattn analyze`: what the heads of a network look at; `convattn compare`: two such reports."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from convattn.cli.convert import Origin
from convattn.cli.output import (
    AsJson,
    Output,
    OutputOrDefault,
    WholeNumber,
    key_values,
    print_record,
    print_text,
    require_images,
    write_html,
)
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, MissingDependencyError, must_be
from convattn.heads.head_report import HeadReport

FILES = (
    "report.json",
    "report.parquet",
    "head-map.png",
    "distance.png",
    "convolution.png",
    "shifts.png",
    "kernels.png",
    "index.html",
)
"""Names of the files that `write_report` writes."""


def write_report(report: HeadReport, folder: Path, *, source: str, images: str) -> Path:
    """Writes report.json, report.parquet, the figures and the page.

    Args:
        report: The report.
        folder: Existing folder.
        source: What the network was built from, as the command line names it.
        images: Where the images are from: the name of a folder, of a file, or of a test set.

    Returns:
        The page.
    """
    from convattn.heads import write_table
    from convattn.lab import report_figures as figures

    report.save(folder / "report.json")
    write_table(report, folder / "report.parquet")
    figures.head_map(folder / "head-map.png", report)
    figures.distance_by_depth(folder / "distance.png", report)
    figures.convolution_by_depth(folder / "convolution.png", report)
    figures.shift_scatter(folder / "shifts.png", report)
    figures.kernel_gallery(folder / "kernels.png", report)
    return write_html("analyze_page.html", folder, report=report, source=source, images=images)


_Flag = Parameter(negative="", show_default=False)
_Optional = Parameter(show_default=False)

PARTIAL = "partial.pt"
"""File of what was measured before an interruption; it goes when all others are written."""


def analyze(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    images: Annotated[Path | None, _Optional] = None,
    output: Output,
    weights: Annotated[Path | None, _Optional] = None,
    pretrained: Annotated[bool, _Flag] = False,
    random_weights: Annotated[bool, _Flag] = False,
    arguments: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    limit: WholeNumber = 100,
    layer: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    kernel_size: WholeNumber = 3,
    radius: WholeNumber = 7,
    no_controls: Annotated[bool, _Flag] = False,
    no_verify: Annotated[bool, _Flag] = False,
    json: AsJson = False,
) -> int:
    """Measure where the heads of a network look, and which of them are convolutions.

    The folder gets report.json and report.parquet with every number and its standard error, figures, and the page
    index.html, with a sentence for each layer. Beside every number stand two controls: the network with its weights
    shuffled, and images with their patches shuffled. After an interruption (Ctrl-C) the folder holds partial.pt, and
    the same command goes on from it. A network of timm or torchvision needs --weights, --pretrained or
    --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, convattn:NAME for a trained network of this package (`convattn info` lists
            them), or the folder of a network or a training run.
        images: Folder of images; a .parquet file with a column image or img of pictures, or input_ids of token ids; or
            a .npy array of pictures (bytes), of token ids, or of what the network takes (floating-point numbers).
            Pictures are prepared as the network's own configuration says. Networks that were trained on
            CIFAR-10 or digits need none: test images come with the packages, twenty of CIFAR-10.
        output: Folder to make; it must be new or empty, or hold an interrupted analysis.
        weights: File with the weights of a network of timm or torchvision, a state dict in safetensors or as torch.save
            writes it; all names and shapes must fit.
        pretrained: Fetch the weights that timm or torchvision has for the network.
        random_weights: Draw the weights, with seed 0.
        arguments: KEY=VALUE, an argument for the builder of a network of timm or torchvision. May be given more than
            once.
        limit: How many of the images to take, in the order of their names.
        layer: Name of a layer to measure; may be given more than once. Default: all.
        kernel_size: Taps along each axis of the convolutions that layers are compared with; odd.
        radius: Largest displacement along each axis, in cells, at which the report holds mean weights.
        no_controls: Leave the controls out; it takes less time.
        no_verify: Accept a folder whose files were changed after it was saved.
        json: Print the report as JSON.

    Returns:
        0.

    Raises:
        ArgumentError: The output folder holds something else, or an option has a wrong value.
        MissingDependencyError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("matplotlib", "train")
    given = key_values(arguments, "--set")
    if limit < 1:
        raise ArgumentError(must_be("--limit", "at least 1", limit))
    require_images(images, source)
    folder = _require_own_folder(output)
    origin = Origin(source, weights, pretrained, random_weights, given, verify=not no_verify)
    from convattn.files import sole_use
    from convattn.heads import CONTROLS
    from convattn.heads.analysis import analyze_and_keep
    from convattn.networks.images import open_images, preparation, require_own_images

    loaded = origin.load(weights_matter=True)
    if images is None:
        own = require_own_images(loaded.folder, source, limit)
        opened, what = own.prepared.to(next(loaded.network.parameters())), own.what
    else:
        opened = open_images(images, partial(preparation, loaded.source, loaded.network, loaded.folder), limit=limit)
        what = images.resolve().name
    first = opened[0]
    folder.mkdir(parents=True, exist_ok=True)
    with sole_use(folder), one_thread(first.numel() <= 3 * 64 * 64):
        report = analyze_and_keep(
            loaded.network,
            opened,
            layers=layer or None,
            kernel_size=kernel_size,
            radius=radius,
            controls=() if no_controls else CONTROLS,
            progress=not json,
            partial=folder / PARTIAL,
        )
        write_report(report, folder, source=source, images=what)
        (folder / PARTIAL).unlink()
    print_record(report, f"{report.summary()}\nwrote {folder}; look at {folder / 'index.html'}", json=json)
    return 0


def compare(first: Path, second: Path, /, *, output: OutputOrDefault = None, json: AsJson = False) -> int:
    """Compare two reports of `convattn analyze`: which heads have changed, and by more than chance.

    Layers and heads are matched by their place. A difference is reported if it is
    larger than three of its standard errors.

    Args:
        first: Folder or report.json of a report.
        second: The same of the other.
        output: Folder to make, with comparison.json and a figure; it must be new or empty. Default: nothing is written.
        json: Print the comparison as JSON.

    Returns:
        0.
    """
    from convattn.heads import compare_reports
    from convattn.heads.head_report import HeadReport

    reports = [HeadReport.load(path / "report.json" if path.is_dir() else path) for path in (first, second)]
    comparison = compare_reports(*reports)
    text = comparison.summary()
    if output is not None:
        from convattn.files import new_folder
        from convattn.lab.report_figures import comparison_figure

        with new_folder(output, "--output") as temporary:
            comparison.save(temporary / "comparison.json")
            comparison_figure(temporary / "comparison.png", reports[0], reports[1])
        text += f"\nwrote {output}"
    if json:
        print_record(comparison, text, json=True)
    else:
        print_text(text)
    return 0


def _require_own_folder(folder: Path) -> Path:
    """Raises unless the folder is new or empty, or holds an interrupted analysis and nothing else."""
    from convattn.files import clear_leftovers, require_new_folder

    if folder.is_dir():
        clear_leftovers(folder)
        held = {file.name for file in folder.iterdir()} - {".lock"}  # what a killed analysis leaves
        if not held or (PARTIAL in held and held <= {PARTIAL, *FILES}):
            return folder
    return require_new_folder(folder, "--output")
