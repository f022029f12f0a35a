"""EfficientNet-Lite0 as attention with soft heads, before and after twenty steps of training on photographs.

    python -m evidence.efficientnet_lite.softened PHOTOGRAPHS.parquet

needs what the package's other script needs. Heads get sharpness 3, so that each leaves much of its attention beside its
tap. Networks stay in evaluation mode: batch normalisation keeps its statistics. Photographs 1 to 400 are for training,
401 to 500 choose the learning rate of the weights, and the others are for the result, in the order of the file. In one
arm heads stay as they are, in the other their centres and sharpness are learned as well. Writes softened.json.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import plain_float32
from convattn import network_to_attention
from convattn.files import write_atomically
from evidence.efficientnet_lite.__main__ import PACKAGES, SIZES, load, logits, read_photographs
from evidence.results import environment, new_parser

RECORD = Path(__file__).with_name("softened.json")
SHARPNESS = 3.0
STEPS, BATCH = 20, 8
TRAINING, CHOICE, RESULT = slice(0, 400), slice(400, 500), slice(500, 1000)
RATES = (1e-4, 1e-3)
"""Learning rates of weights, of which the photographs for choosing take one."""

HEAD_RATES = {"heads as they are": 0.0, "heads learned": 0.05}
"""Learning rate of centres and of the root of the sharpness, by arm."""

SEEDS = (0, 1, 2)


def soften(network: nn.Module) -> nn.Module:
    """Converts to attention whose heads blur."""
    attention, _ = network_to_attention(network, sharpness=SHARPNESS)
    return attention


def learn(
    network: nn.Module, images: Tensor, labels: Tensor, *, rate: float, head_rate: float, seed: int
) -> None:
    """Trains a network in place; a network without heads has no use for their rate."""
    heads = []
    others = []
    for name, parameter in network.named_parameters():
        of_heads = ".encoding." in name
        (heads if of_heads else others).append(parameter)
    groups: list[dict[str, Any]] = [{"params": others, "lr": rate}]
    if heads:
        groups.append({"params": heads, "lr": head_rate})
    optimiser = torch.optim.Adam(groups)
    for batch in batches(len(images), seed):
        optimiser.zero_grad()
        cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()


def batches(count: int, seed: int) -> Iterator[Tensor]:
    """Yields the places of the images of each step."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    yield from order[: STEPS * BATCH].split(BATCH)


def right(network: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Counts right decisions."""
    return int((logits(network, images).argmax(1) == labels).sum())


def measure(photographs: Path) -> dict[str, Any]:
    """Softens the network, trains it, and counts right decisions; the network of convolutions is trained as well."""
    network = load(0)
    images, labels = read_photographs(photographs, SIZES[0])
    training, choice, result = [(images[part], labels[part]) for part in (TRAINING, CHOICE, RESULT)]
    arms = []
    starts = {"convolutions": (lambda: load(0), 0.0)}
    starts |= {name: (lambda: soften(network), rate) for name, rate in HEAD_RATES.items()}
    for name, (start, head_rate) in starts.items():
        chosen = {}
        for rate in RATES:
            trial = start()
            learn(trial, *training, rate=rate, head_rate=head_rate, seed=SEEDS[0])
            chosen[str(rate)] = right(trial, *choice)
        rate = max(RATES, key=lambda one: chosen[str(one)])
        after = []
        for seed in SEEDS:
            trained = start()
            learn(trained, *training, rate=rate, head_rate=head_rate, seed=seed)
            after.append(right(trained, *result))
            print(name, rate, seed, after[-1], flush=True)
        arms.append({"arm": name, "chosen_on": chosen, "rate": rate, "right": after})
    return {
        **environment("evidence.efficientnet_lite.softened", *PACKAGES[:2]),
        "sharpness": SHARPNESS,
        "steps": STEPS,
        "batch": BATCH,
        "head_rate": HEAD_RATES["heads learned"],
        "images": len(result[1]),
        "right_before": right(network, *result),
        "right_softened": right(soften(network), *result),
        "arms": arms,
    }


def main() -> None:
    """Measures, and writes the record."""
    parser = new_parser(__doc__)
    parser.add_argument("photographs", type=Path, help="parquet file")
    options = parser.parse_args()
    with plain_float32():
        record = measure(options.photographs)
    write_atomically(RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
