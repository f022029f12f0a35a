"""The report of heads, and that of a conversion, as one HTML file each, with figures."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from convattn.convert.certificate import IN_WORDS, LeftAlone, NetworkCertificate
from convattn.files import write_atomically
from convattn.heads.head_report import HeadReport
from convattn.heads.verdict import MEANINGS, count_words
from convattn.lab.layer_costs import layer_costs
from convattn.lab.page_templates import fill_template
from convattn.lab.report_figures import distance_by_depth, head_grid, head_pictures
from convattn.viewer import write_page
from convattn.viewer.exhibition import Exhibition


def write_report(
    report: HeadReport,
    folder: Path,
    *,
    source: str,
    images: str,
    drawn: bool = False,
    shown: Exhibition | None = None,
) -> Path:
    """Writes report.json, the figures and the page into an existing folder, and returns the page, `index.html`.

    The page shows `source`, what the network was built from, `images`, the name of their folder, file or test set, and
    in its title whether the weights were drawn at random. If the network is `shown`, the folder gets `view.html`, the
    interactive page, and a press on a head opens it there.
    """
    report.save(folder / "report.json")
    distance_by_depth(folder / "distance.png", report)
    head_grid([folder / "heads.svg", folder / "heads.pdf"], report)
    interactive = []
    if shown is not None:
        scene = shown.scene(report)
        write_page(scene, folder / "view.html")
        interactive = [layer["name"] for layer in scene.header["networks"][0]["layers"]]
    page = fill_template(
        "analyze_page.html",
        report=report,
        distance=(folder / "distance.png").read_bytes(),
        pictures=head_pictures,
        drawn=drawn,
        meanings=MEANINGS,
        words=count_words,
        name=Path(source.partition(":")[2] or source).resolve().name,
        source=source,
        images=images,
        interactive=interactive,
    )
    return write_atomically(folder / "index.html", page)


def write_conversion(
    certificate: NetworkCertificate,
    folder: Path,
    *,
    source: str,
    networks: Sequence[nn.Module],
    x: Tensor,
) -> Path:
    """Measures a network before and after its conversion, and writes the page of that as `index.html`.

    The page shows `source`, what the first of the two networks was built from, and what both cost on the first of the
    images `x`.
    Returns the page, which is in an existing folder.
    """
    names = [layer.name for layer in certificate.layers]
    before, after = (layer_costs(network, x[:1], names) for network in networks)
    page = fill_template(
        "convert_page.html",
        certificate=certificate,
        meaning=IN_WORDS[certificate.verdict],
        source=source,
        before=before,
        after=after,
        left_alone=LeftAlone.in_words(certificate.left_alone),
    )
    return write_atomically(folder / "index.html", page)
