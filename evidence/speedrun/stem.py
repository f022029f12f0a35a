"""The committed speed run, whose stem is four hard heads, against the network whose stem is the 2 x 2 convolution.

Converts that convolution, compares both networks on all test images of CIFAR-10, and writes the certificate into the
folder of the network:

    CONVATTN_CIFAR10=FOLDER python -m evidence.speedrun.stem
"""

import copy
import json
from typing import Any

from safetensors.torch import load_file
from torch import nn

from convattn import load_network, network_to_attention
from convattn.data import normalise
from convattn.lab.speed_net import SpeedNet
from convattn.sealed import CERTIFICATE, WEIGHTS, read_config, write_sealed
from convattn.structure import network_digest
from evidence.results import ROOT, cifar10, new_parser

FOLDER = ROOT / "pretrained" / "speedrun"


def with_convolution(network: SpeedNet) -> SpeedNet:
    """Copies a network, with the convolution of the same weight as its stem."""
    copied, stem = copy.deepcopy(network), network.stem
    convolution = nn.Conv2d(stem.in_channels, stem.out_channels, stem.kernel_size)
    convolution.load_state_dict({"weight": stem.weight, "bias": stem.bias})
    convolution.weight.requires_grad_(False)
    copied.stem = convolution
    return copied.eval()


def convolutions_in_words() -> str:
    """Says whether the committed network has a convolution, by the classes of its modules."""
    modules = read_config(FOLDER)["structure"]["modules"].values()
    count = sum("Conv" in one["class"].rpartition(".")[2] for one in modules)
    return f"with {count} convolutions" if count else "without any convolution"


def certificate() -> dict[str, Any]:
    """Reads the certificate of the committed network."""
    return json.loads((FOLDER / CERTIFICATE).read_text(encoding="utf-8"))


def main() -> None:
    """Converts, compares and writes."""
    new_parser(__doc__).parse_args()
    data = cifar10()
    images = normalise(data.test.images, data.mean, data.std)
    network = load_network(FOLDER)
    converted, proof = network_to_attention(with_convolution(network), images=images)
    print(proof.summary())
    if network_digest(converted) != network_digest(network):
        raise SystemExit(f"the stem of {FOLDER} is not that of the convolution, converted")
    write_sealed(FOLDER, read_config(FOLDER), load_file(FOLDER / WEIGHTS), proof)


if __name__ == "__main__":
    main()
