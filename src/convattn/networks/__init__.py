"""Whole networks, converted or not: where their architecture comes from, and how they are saved, loaded and shared."""

from convattn.networks.loading import load_network
from convattn.networks.saving import push_to_hub, save_network
from convattn.networks.source import create_network

__all__ = ["create_network", "load_network", "push_to_hub", "save_network"]
