"""`convattn demo`: converts a convolution and a trained network on embedded images, and writes a page about it."""

import time
from pathlib import Path

from convattn.cli.demo_conversion import show_conversions
from convattn.cli.demo_network import show_network
from convattn.cli.demo_page import write_page
from convattn.cli.demo_record import Demonstration
from convattn.cli.demo_view import VIEW, show_view
from convattn.cli.options import AsJson, OutputOrDefault, first_free
from convattn.cli.output import print_record, print_text
from convattn.cli.threads import one_thread

_NETWORK = "convattn:cifar10-small"


def demo(*, output: OutputOrDefault = None, json: AsJson = False) -> int:
    """Convert and certify in less than a minute, and write a page about it.

    Nothing is downloaded or trained. A convolution of a photograph becomes attention that computes the same. A network
    of attention, trained on CIFAR-10, comes with the package: it sees twenty test images, its heads are drawn, and it
    becomes convolutions, and attention again. The folder holds the page index.html, its figures, its numbers as
    demo.json, the convolution, the attention layer and the network of convolutions with their certificates, and in view
    the interactive page of the trained network.

    Args:
        output: Folder to make; it must be new or empty. Default: demo, or the first of demo-2, demo-3, … that is free.
            An earlier demo is never replaced.
        json: Print what was shown as JSON.

    Returns:
        0, or 1 if a certificate failed or the network sees something else than its card says.
    """
    from convattn.files import new_folder
    from convattn.models.pretrained import network_folder

    folder = first_free(Path("demo")) if output is None else output
    with new_folder(folder, "--output") as temporary:
        shown = demonstrate(temporary, network_folder(_NETWORK), quiet=json)
    print_record(shown, f"\n{shown.summary()}\n\n{_where_next(folder)}", json=json)
    return 0 if shown.passed else 1


def demonstrate(folder: Path, network: Path, *, quiet: bool = False) -> Demonstration:
    """Makes everything that the demo shows in an empty folder, with the trained network in another."""
    from convattn.data.photograph import PHOTOGRAPHS

    say = (lambda _: None) if quiet else print_text
    began = time.perf_counter()
    with one_thread():
        say("1/3  converting a convolution of a photograph to attention")
        conversions = show_conversions(folder)
        say("2/3  converting a trained network of attention to convolutions and back")
        trained = show_network(folder, network)
        say("3/3  writing the interactive page of the trained network")
        show_view(folder, network)
    held = all(item.certificate.verdict != "failed" for item in (*conversions, *trained.conversions))
    shown = Demonstration(
        conversions=tuple(conversions),
        network=trained,
        photograph=PHOTOGRAPHS["china"],
        seconds=time.perf_counter() - began,
        passed=held and trained.as_on_card and trained.back.passed,
    )
    shown.save(folder / "demo.json")
    write_page(shown, folder)
    return shown


def _where_next(folder: Path) -> str:
    """Returns the page to open, and commands to try next."""
    return "\n".join(
        [
            f"wrote {folder}; look at {folder / 'index.html'}, and touch the heads in {folder / VIEW / 'index.html'},",
            "then try:",
            f"  convattn convert {folder / 'convolution'} -o {folder.name}-softer --sharpness 5 --allow-difference",
            f"  convattn view {_NETWORK} --compare untrained --compare converted -o {folder.name}-view",
            f"  convattn convert {_NETWORK} --to conv --kernel-size 3 --allow-difference -o {folder.name}-narrow",
            "  convattn train digits-quadratic",
            "  convattn info",
        ]
    )
