"""`convattn demo`: converts a trained network, measures its heads, and opens its page, on embedded data."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from convattn.cli.network_options import DEFAULTS
from convattn.cli.output import OutputOrDefault, first_free, print_record
from convattn.cli.threads import one_thread
from convattn.cli.view import open_page
from convattn.errors import optional_module
from convattn.record import Record

if TYPE_CHECKING:
    from convattn.convert.certificate import NetworkCertificate
    from convattn.heads.head_report import HeadReport

NETWORK = "convattn:cifar10-small"


@dataclass(frozen=True)
class Demonstration(Record):
    """What the demo showed."""

    verdict: str  # What came of its conversion to convolutions
    changed: int | None  # Predictions that changed
    images: int  # Test images
    convolutional: int  # Heads whose attention depends on the displacement alone
    heads: int  # All heads
    folder: str  # Where the convolutions, the report and the page are
    page: str  # The page

    def summary(self) -> str:
        """Returns it in five lines of plain text."""
        return f"""\
network      {NETWORK}: attention with {self.heads} heads, trained on CIFAR-10
converted    {self.verdict}: {self.changed} of {self.images} predictions changed, see {self.folder}/convolutions
measured     {self.convolutional} of {self.heads} heads are convolutions, on {self.images} test images
page         {self.page}
next         convattn view {NETWORK} --compare converted"""


def demo(*, output: OutputOrDefault = None, json: bool = False) -> int:
    """Convert a trained network with its certificate, measure its heads, and open its page.

    Nothing is downloaded or trained. The network, of attention and trained on CIFAR-10, comes with the package, and so
    do the twenty test images on which it is compared with its convolutions. The folder holds these in convolutions,
    with their certificate, the measurements in report.json, and the interactive page page.html.

    Args:
        output: Folder to make; it must be new or empty. Default: demo, or the first of demo-2, demo-3, … that is free.
            An earlier demo is never replaced.
        json: Print what was shown as JSON, and do not open the page.

    Returns:
        0, or 1 if the conversion failed.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    optional_module("pyarrow", "pyarrow", "parquet")
    from convattn.files import new_folder

    folder = first_free(Path("demo")) if output is None else output
    with new_folder(folder, "--output") as unfinished, one_thread():
        certificate, report = _run(unfinished)
    heads = [head for layer in report.layers for head in layer.heads]
    shown = Demonstration(
        verdict=certificate.verdict,
        changed=certificate.top1_changed,
        images=report.images,
        convolutional=sum(head.convolutional for head in heads),
        heads=len(heads),
        folder=str(folder),
        page=str(folder / "page.html"),
    )
    print_record(shown, shown.summary(), json=json)
    if not json:
        open_page(Path(shown.page))
    return int(certificate.verdict == "failed")


def _run(folder: Path) -> "tuple[NetworkCertificate, HeadReport]":
    """Does what `convert`, `analyze` and `view` do, and writes it into an empty folder."""
    from convattn.convert import network_to_conv
    from convattn.heads import analyze
    from convattn.networks import save_network
    from convattn.networks.images import require_own_images
    from convattn.viewer import build_scene, write_page
    from convattn.viewer.exhibition import gather

    loaded = DEFAULTS.load(NETWORK)
    images = require_own_images(loaded.folder, NETWORK, 20).prepared
    convolutions, certificate = network_to_conv(loaded.network, images=images, borders="exact")
    save_network(convolutions, folder / "convolutions", certificate=certificate)
    report = analyze(loaded.network, images, controls=(), progress=False)
    report.save(folder / "report.json")
    shown = gather(NETWORK, compare=["untrained"], report=folder / "report.json")
    scene = build_scene(shown.exhibits, names=shown.names, labels=shown.labels)
    write_page(scene, folder / "page.html")
    return certificate, report
