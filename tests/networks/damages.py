"""Random changes to a saved folder: files cut, lost, swapped, renamed; bits flipped; JSON edited."""

import json
import random
import struct
from pathlib import Path

WEIGHTS = "model.safetensors"


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
    file.write_bytes(
        data[: draw.randrange(len(data))] if draw.random() < 0.7 else data + draw.randbytes(9)
    )


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
        head[one]["data_offsets"], head[other]["data_offsets"] = (
            head[other]["data_offsets"],
            head[one]["data_offsets"],
        )
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
    parents = [
        tree,
        *(parent[key] for parent, key in places(tree) if isinstance(parent[key], dict | list)),
    ]
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
    found, keys = (
        [],
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else (),
    )
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
    parent[key] = draw.choice(
        [other for other in others if other != old or type(other) is not type(old)]
    )


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
