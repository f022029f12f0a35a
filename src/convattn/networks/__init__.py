"""Whole networks, converted or not: where their architecture comes from, and how they are saved, loaded and shared."""

from convattn.networks.loading import from_pretrained, load_network
from convattn.networks.saving import push_to_hub, save_network
from convattn.networks.source import create_network

__all__ = ["create_network", "from_pretrained", "load_network", "push_to_hub", "save_network"]
