"""`convattn demo`: converts a trained network, measures its heads, and opens its page, on embedded data."""

from pathlib import Path

from convattn.cli.network_options import DEFAULTS
from convattn.cli.output import OutputOrDefault, first_free
from convattn.cli.threads import one_thread
from convattn.cli.view import open_page
from convattn.errors import require_packages

NETWORK = "convattn:cifar10-small"


def demo(*, output: OutputOrDefault = None) -> int:
    """Convert a trained network with its certificate, measure its heads, and open its page.

    Nothing is downloaded or trained. The network, of attention and trained on CIFAR-10, comes with the package, and so
    do the twenty test images on which it is compared with its convolutions. The folder holds these in convolutions,
    with their certificate, the measurements in report.json, and the interactive page page.html.

    Args:
        output: Folder to make; it must be new or empty. Default: demo, or the first of demo-2, demo-3, … that is free.
            An earlier demo is never replaced.

    Returns:
        0, or 1 if the conversion failed.

    Raises:
        MissingDependencyError: Packages of the extra "view" are not installed; the message names them all.
    """
    require_packages(view=("PIL", "pyarrow"))
    from convattn.convert import network_to_conv
    from convattn.files import new_folder
    from convattn.heads import analyze
    from convattn.networks import save_network
    from convattn.networks.images import require_own_images
    from convattn.viewer import write_page
    from convattn.viewer.exhibition import gather

    folder = output or first_free(Path("demo"))
    with new_folder(folder, "--output") as unfinished, one_thread():
        loaded = DEFAULTS.load(NETWORK)
        images = require_own_images(loaded, NETWORK, 20).prepared
        convolutions, certificate = network_to_conv(loaded.network, images=images, borders="exact")
        save_network(convolutions, unfinished / "convolutions", certificate=certificate)
        report = analyze(loaded.network, images, controls=(), progress=False)
        report.save(unfinished / "report.json")
        shown = gather(NETWORK, compare=["untrained"], report=unfinished / "report.json")
        write_page(shown.scene(), unfinished / "page.html")
    heads = sum(len(layer.heads) for layer in report.layers)
    print(f"""\
network      {NETWORK}: attention with {heads} heads, trained on CIFAR-10
converted    {certificate.verdict}: {certificate.top1_changed} of {len(images)} predictions changed
measured     {report.headline()}
wrote        {folder}: the convolutions with their certificate, report.json, page.html
next         convattn view {NETWORK} --compare converted""")
    open_page(folder / "page.html")
    return int(certificate.verdict == "failed")
