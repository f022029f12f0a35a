"""Random changes to saved folders, and what loading makes of them: `python -m tests.networks.tampering 1000`."""

import argparse
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.networks.damages import CHANGES
from torch import Tensor, nn

from convattn import load_network, network_to_attention, save_network
from convattn.convert import conv_to_attention
from convattn.errors import ConvAttnError
from convattn.models import AttentionNet, ResNet


class Own(nn.Module):
    """A network that only its user can build, with a tie and a tensor in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
        self.plain = nn.Conv2d(3, 5, (1, 2)).to(memory_format=torch.channels_last)
        self.other = nn.Conv2d(3, 5, (1, 2))
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.first(x))
        return self.plain(x) - self.other(x)


@dataclass(frozen=True)
class Saved:
    """A saved folder, what its user gives to load it, and what it computes."""

    folder: Path
    model: nn.Module | None
    before: tuple

    def load(self, folder: Path, *, verify: bool) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load_network(folder, model=self.model, verify=verify)


def save_all(place: Path) -> list[Saved]:
    """Saves a folder of each form: a converted network, one of the user's own, a layer, and one without conversion."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 7)
    net, own = ResNet(1, width=4, num_classes=3).eval(), Own().eval()
    made, certificate = network_to_attention(net, include=["stem.*", "stages.0.*"], images=x)
    tied, promise = network_to_attention(own, exclude=["plain", "other"], images=x)
    layer, proof = conv_to_attention(nn.Conv2d(3, 5, 3, padding=1))
    plain = AttentionNet(width=8, depth=2, heads=4, ffn=8, patch=1).eval()
    folders = [
        (save_network(made, place / "network", certificate=certificate), None),
        (save_network(tied, place / "own", certificate=promise), Own()),
        (save_network(layer, place / "layer", certificate=proof), None),
        (save_network(plain, place / "plain"), None),
    ]
    return [
        Saved(folder, model, state(load_network(folder, model=model))) for folder, model in folders
    ]


def state(network: nn.Module) -> tuple:
    """Returns all that loading decides: the modules, each tensor with its place in memory, ties, and the outputs."""
    tensors = network.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    ties = [first.setdefault(id(tensor), name) for name, tensor in tensors.items()]
    kept = [
        (name, t.dtype, t.shape, t.stride(), t.requires_grad, bits(t))
        for name, t in tensors.items()
    ]
    torch.manual_seed(1)
    with torch.no_grad():
        return repr(network), ties, kept, bits(network(torch.randn(2, 3, 9, 7)))


def is_same(network: nn.Module, before: tuple) -> bool:
    """Tells whether a network is what it was; one that does not run is another."""
    try:
        return state(network) == before
    except Exception:  # noqa: BLE001 - what was edited on purpose may be no network that runs
        return False


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tamper(trials: int, seed: int, place: Path, *, verify: bool = True) -> Counter:
    """Changes folders, loads each and counts what came of it.

    Args:
        trials: How many changes.
        seed: Of the random numbers.
        place: An empty folder to work in.
        verify: Whether loading holds files against their digests.

    Returns:
        Counts by change and outcome: "refused", "no effect", "another result", or the error that is none of ours.
    """
    draw, counts = random.Random(seed), Counter()
    saved = save_all(place / "saved")
    for trial in range(trials):
        kind = [*CHANGES][trial % len(CHANGES)]
        one, folder = draw.choice(saved), place / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(one.folder, folder)
        CHANGES[kind](folder, draw)
        try:
            loaded = one.load(folder, verify=verify)
        except ConvAttnError:
            outcome = "refused"
        except Exception as error:  # noqa: BLE001 - what a trial is to find
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = "no effect" if is_same(loaded, one.before) else "another result"
        counts[kind, outcome] += 1
    return counts


def main() -> None:
    """Prints the counts as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        counts = tamper(
            arguments.trials, arguments.seed, Path(place), verify=not arguments.no_verify
        )
    outcomes = ["refused", "no effect", *sorted({o for _, o in counts} - {"refused", "no effect"})]
    lines = [f"| change | {' | '.join(outcomes)} |", f"|---|{'---|' * len(outcomes)}"]
    lines.extend(
        f"| {kind} | {' | '.join(str(counts[kind, outcome]) for outcome in outcomes)} |"
        for kind in CHANGES
    )
    totals = [
        sum(number for (_, o), number in counts.items() if o == outcome) for outcome in outcomes
    ]
    lines.append(f"| all | {' | '.join(map(str, totals))} |")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(any(outcome not in ("refused", "no effect") for _, outcome in counts))


if __name__ == "__main__":
    main()
