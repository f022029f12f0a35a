"""Random changes to saved folders, and what loading makes of them: `python tests/networks/tampering.py 1000`."""

import argparse
import json
import random
import shutil
import struct
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from convattn import load_network, network_to_attention, save_network
from convattn.convert import conv_to_attention, save_layer
from convattn.errors import ConvAttnError
from convattn.models import AttentionNet, ResNet

WEIGHTS = "model.safetensors"


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
    model: Callable[[], nn.Module] | None
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
    plain.save_pretrained(place / "plain")
    folders = [
        (save_network(made, place / "network", certificate=certificate), None),
        (save_network(tied, place / "own", certificate=promise), Own),
        (save_layer(layer, place / "layer", certificate=proof), None),
        (place / "plain", None),
    ]
    return [Saved(folder, model, state(load_network(folder, model=model))) for folder, model in folders]


def state(network: nn.Module) -> tuple:
    """Returns all that loading decides: the modules, each tensor with its place in memory, ties, and the outputs."""
    tensors = network.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    ties = [first.setdefault(id(tensor), name) for name, tensor in tensors.items()]
    kept = [(name, t.dtype, t.shape, t.stride(), t.requires_grad, bits(t)) for name, t in tensors.items()]
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


# --- Changes --------------------------------------------------------------------------------------------------------


def flip(folder: Path, draw: random.Random) -> None:
    """Flips one to three bits of a file."""
    file = any_file(folder, draw)
    data = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def cut(folder: Path, draw: random.Random) -> None:
    """Cuts a file off, or adds bytes."""
    file = any_file(folder, draw)
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))] if draw.random() < 0.7 else data + draw.randbytes(9))


def lose(folder: Path, draw: random.Random) -> None:
    """Removes a file, or puts a folder or a link to nowhere in its place."""
    file = any_file(folder, draw)
    file.unlink()
    how = draw.randrange(3)
    if how == 1:
        file.mkdir()
    elif how == 2:
        file.symlink_to(folder / "nowhere")


def swap(folder: Path, draw: random.Random) -> None:
    """Exchanges two tensors of one dtype and shape, or the halves of the file's numbers where there are no two."""
    head, data = read_weights(folder)
    names = [name for name in head if name != "__metadata__"]
    pairs = [(a, b) for a in names for b in names if a < b and size(head[a]) == size(head[b])]
    pairs = [p for p in pairs if content(head[p[0]], data) != content(head[p[1]], data)]
    if pairs:
        one, other = draw.choice(pairs)
        head[one]["data_offsets"], head[other]["data_offsets"] = head[other]["data_offsets"], head[one]["data_offsets"]
    else:
        half = len(data) // 8 * 4
        data = data[half:] + data[:half]
    write_weights(folder, head, data)


def rename(folder: Path, draw: random.Random) -> None:
    """Gives a tensor another name, or that of another one and back."""
    head, data = read_weights(folder)
    names = [name for name in head if name != "__metadata__"]
    one, other = draw.sample(names, 2)
    if draw.random() < 0.5:
        head[f"{one}s"] = head.pop(one)
    else:
        head[one], head[other] = head[other], head[one]
    write_weights(folder, head, data)


def edit_head(folder: Path, draw: random.Random) -> None:
    """Changes a value in the head of the file of tensors: dtype, shape, place, or metadata."""
    head, data = read_weights(folder)
    change(head, draw)
    write_weights(folder, head, data)


def edit_json(folder: Path, draw: random.Random) -> None:
    """Changes a value of the configuration or of the certificate."""
    file = json_file(folder, draw)
    tree = json.loads(file.read_text())
    change(tree, draw)
    file.write_text(json.dumps(tree))


def delete_key(folder: Path, draw: random.Random) -> None:
    """Deletes a key, or an item of a list."""
    file = json_file(folder, draw)
    tree = json.loads(file.read_text())
    parent, key = draw.choice(places(tree))
    del parent[key]
    file.write_text(json.dumps(tree))


def add_key(folder: Path, draw: random.Random) -> None:
    """Adds a key, or an item to a list."""
    file = json_file(folder, draw)
    tree = json.loads(file.read_text())
    parents = [tree, *(parent[key] for parent, key in places(tree) if isinstance(parent[key], dict | list))]
    parent, value = draw.choice(parents), draw.choice([None, 0, True, "eager", [], {}, 0.5])
    if isinstance(parent, list):
        parent.append(value)
    else:
        parent[draw.choice(["dropout", "again", "impl", "stride", "bias", "frozen"])] = value
    file.write_text(json.dumps(tree))


CHANGES = {
    "bits flipped, in any file": flip,
    "file cut off or longer": cut,
    "file missing, or a folder or a dead link in its place": lose,
    "tensors of one shape exchanged": swap,
    "tensor renamed": rename,
    "head of the tensors edited": edit_head,
    "JSON value edited": edit_json,
    "JSON key deleted": delete_key,
    "JSON key added": add_key,
}


def any_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(folder.iterdir()))


def json_file(folder: Path, draw: random.Random) -> Path:
    files = sorted(folder.glob("*.json"))
    return folder / "config.json" if draw.random() < 0.7 else draw.choice(files)


def places(tree: object) -> list[tuple]:
    """Lists every parent and key below a tree."""
    found, keys = [], tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in keys:
        found += [(tree, key), *places(value)]
    return found


def change(tree: object, draw: random.Random) -> None:
    """Gives one place of a tree another value."""
    parent, key = draw.choice(places(tree))
    old = parent[key]
    others = {
        bool: [not old, None],
        int: [old + draw.randint(1, 3) if isinstance(old, int) else 0, -1, 0.5, "2"],
        float: [0.25, 0, None],
        str: [f"{old}x", "", "relu", 3, None],
        list: [[], old[::-1] if isinstance(old, list) else 0, 1, None],
        dict: [{}, [], None],
        type(None): [0, "none", []],
    }[type(old)]
    parent[key] = draw.choice([other for other in others if other != old or type(other) is not type(old)])


def read_weights(folder: Path) -> tuple[dict, bytes]:
    data = (folder / WEIGHTS).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_weights(folder: Path, head: dict, data: bytes) -> None:
    text = json.dumps(head).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)


def size(entry: dict) -> tuple:
    return entry["dtype"], *entry["shape"]


def content(entry: dict, data: bytes) -> bytes:
    return data[slice(*entry["data_offsets"])]


# --- Trials ---------------------------------------------------------------------------------------------------------


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
        counts = tamper(arguments.trials, arguments.seed, Path(place), verify=not arguments.no_verify)
    outcomes = ["refused", "no effect", *sorted({o for _, o in counts} - {"refused", "no effect"})]
    lines = [f"| change | {' | '.join(outcomes)} |", f"|---|{'---|' * len(outcomes)}"]
    lines.extend(f"| {kind} | {' | '.join(str(counts[kind, outcome]) for outcome in outcomes)} |" for kind in CHANGES)
    totals = [sum(number for (_, o), number in counts.items() if o == outcome) for outcome in outcomes]
    lines.append(f"| all | {' | '.join(map(str, totals))} |")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(any(outcome not in ("refused", "no effect") for _, outcome in counts))


if __name__ == "__main__":
    main()
