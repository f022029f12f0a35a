"""`convattn demo`: converts a convolution and a trained network on embedded images, and writes a page about it."""

from pathlib import Path
from shlex import quote

from convattn.cli.output import OutputOrDefault, first_free, print_record
from convattn.cli.threads import one_thread
from convattn.errors import require_packages

_NETWORK = "convattn:cifar10-small"


def demo(*, output: OutputOrDefault = None, json: bool = False) -> int:
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

    Raises:
        MissingDependencyError: Packages of the extra "train" are not installed; the message names them all.
    """
    require_packages("matplotlib", "jinja2", "sklearn", "PIL")
    from convattn.files import new_folder
    from convattn.lab.demonstration import demonstrate
    from convattn.networks.pretrained import network_folder

    folder = first_free(Path("demo")) if output is None else output
    with new_folder(folder, "--output") as temporary, one_thread():
        shown = demonstrate(
            temporary, network_folder(_NETWORK), tell=(lambda _: None) if json else print
        )
    print_record(shown, f"\n{shown.summary()}\n\n{_where_next(folder)}", json=json)
    return 0 if shown.passed else 1


def _where_next(folder: Path) -> str:
    """Returns the page to open, and commands to try next."""
    view, conv, name = (
        folder / "view" / "index.html",
        quote(str(folder / "convolution")),
        quote(folder.name),
    )
    return f"""wrote {folder}; look at {folder / "index.html"}, and touch the heads in {view},
then try:
  convattn convert {conv} -o {name}-softer --sharpness 5 --allow-difference
  convattn view {_NETWORK} --compare untrained --compare converted -o {name}-view
  convattn convert {_NETWORK} --to conv --kernel-size 3 --allow-difference -o {name}-narrow
  convattn train digits-quadratic
  convattn info"""
