"""Conversion between convolutions and attention, each with a certificate of what it promises and what was measured."""

from convattn.convert.certificate.bounds import off_centre_mass
from convattn.convert.classes import SUPPORTED_CONVOLUTIONS
from convattn.convert.fit.refinement import refine
from convattn.convert.freezing import freeze
from convattn.convert.layer.patches import patch_convolution
from convattn.convert.layer.same_padding import SamePaddedAttention
from convattn.convert.layer.to_attention import conv_to_attention
from convattn.convert.layer.to_conv import attention_to_conv
from convattn.convert.network.to_attention import network_to_attention
from convattn.convert.network.to_conv import network_to_conv
from convattn.convert.saved import load_layer, save_layer

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
