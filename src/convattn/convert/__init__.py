"""Conversion between convolutions and attention, each with a certificate of what it promises and what was measured."""

from convattn.convert.foreign_check import certify
from convattn.convert.freezing import freeze
from convattn.convert.network import network_to_attention, network_to_conv
from convattn.convert.to_attention import conv_to_attention
from convattn.convert.to_conv import attention_to_conv

__all__ = [
    "attention_to_conv",
    "certify",
    "conv_to_attention",
    "freeze",
    "network_to_attention",
    "network_to_conv",
]
