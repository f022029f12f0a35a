"""Loading a saved network without knowing its class."""

import json
import os
from pathlib import Path
from types import MappingProxyType

from torch import nn

from convattn.errors import CheckpointError, UnknownNameError
from convattn.models.attention_net import AttentionNet
from convattn.models.conv_net import ConvNet
from convattn.models.resnet import ResNet

__all__ = ["NETWORKS", "load_network"]

NETWORKS = MappingProxyType({kind.__name__: kind for kind in (AttentionNet, ConvNet, ResNet)})
"""Every network that can be saved and loaded, by the name of its class."""


def load_network(folder: str | os.PathLike[str]) -> nn.Module:
    """Loads the network that `save_pretrained` or a training run left in a folder.

    Args:
        folder: Folder with ``config.json`` and ``model.safetensors``.

    Returns:
        The network on the CPU, in evaluation mode.

    Raises:
        CheckpointError: A file is missing or damaged, or the weights do not fit.
        UnknownNameError: The configuration names a network that this version does not have.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ConvNet(width=8, depth=1, ffn=8).save_pretrained(folder)
        ...     type(load_network(folder)).__name__
        'ConvNet'
    """
    path = Path(folder) / "config.json"
    try:
        name = json.loads(path.read_text(encoding="utf-8"))["architecture"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder} holds no saved network: {path.name} is not readable ({type(error).__name__}: {error})"
        ) from None
    if name not in NETWORKS:
        raise UnknownNameError("network", name, NETWORKS)
    return NETWORKS[name].from_pretrained(path.parent)
