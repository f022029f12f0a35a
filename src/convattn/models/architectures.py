"""Loading a saved network without knowing its class."""

import os
from types import MappingProxyType

from torch import nn

from convattn.errors import CheckpointError, UnknownNameError
from convattn.models.attention_net import AttentionNet, ConvNet
from convattn.models.resnet import ResNet
from convattn.models.speed_net import SpeedNet
from convattn.sealed import read_config

NETWORKS = MappingProxyType({kind.__name__: kind for kind in (AttentionNet, ConvNet, ResNet, SpeedNet)})
"""Every network that can be saved and loaded, by the name of its class."""


def load_network(folder: str | os.PathLike[str], *, verify: bool = True) -> nn.Module:
    """Loads a network that `save_pretrained` or a training run saved.

    Args:
        folder: Folder with ``config.json`` and ``model.safetensors``.
        verify: Whether to raise if files were changed after they were saved.

    Returns:
        The network on the CPU, in evaluation mode.

    Raises:
        CheckpointError: A file is missing, damaged or was changed.
        UnknownNameError: The configuration names a network that this version does not have.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ConvNet(width=8, depth=1, ffn=8).save_pretrained(folder)
        ...     type(load_network(folder)).__name__
        'ConvNet'
    """
    name = read_config(folder).get("architecture")
    if name is None:
        raise CheckpointError(f"{folder} holds no saved network: config.json names no architecture")
    if not isinstance(name, str) or name not in NETWORKS:
        raise UnknownNameError("network", name, NETWORKS)
    return NETWORKS[name].from_pretrained(folder, verify=verify)
