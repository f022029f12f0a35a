"""Conversion between convolutions and attention, each with a certificate of what it promises and what was measured."""

from convattn.convert.attention_to_conv import attention_to_conv
from convattn.convert.conv_to_attention import conv_to_attention
from convattn.convert.freeze import freeze
from convattn.convert.leak import off_centre_mass
from convattn.convert.network import network_to_attention
from convattn.convert.network_to_conv import network_to_conv
from convattn.convert.patch_convolution import patch_convolution
from convattn.convert.refine import refine
from convattn.convert.same_padding import SamePaddedAttention
from convattn.convert.saved import load_layer, save_layer
from convattn.convert.taps import SUPPORTED_CONVOLUTIONS

__all__ = [
    "SUPPORTED_CONVOLUTIONS",
    "SamePaddedAttention",
    "attention_to_conv",
    "conv_to_attention",
    "freeze",
    "load_layer",
    "network_to_attention",
    "network_to_conv",
    "off_centre_mass",
    "patch_convolution",
    "refine",
    "save_layer",
]
