"""Self-attention that is a convolution, and back.

The names below are the whole public interface. Each is imported from its private module when it is first asked for, so
that `import convattn` is quick and loads no torch.

Example:
    >>> import convattn
    >>> convattn.__version__
    '0.1.0'
"""

from importlib import import_module
from typing import TYPE_CHECKING

from convattn.__about__ import __version__

if TYPE_CHECKING:
    from convattn.convert import (
        attention_to_conv,
        conv_to_attention,
        freeze,
        load_layer,
        network_to_attention,
        network_to_conv,
        patch_convolution,
        refine,
        save_layer,
    )
    from convattn.convert.certificate import Certificate, NetworkCertificate
    from convattn.encodings import (
        AxisAdditiveEncoding,
        Distance,
        Encoding,
        GeneralizedQuadratic,
        LearnedAxial,
        LearnedTable,
        LinearDistance,
        Quadratic,
        Shift,
        Sinusoidal,
        register_encoding,
    )
    from convattn.errors import ConvAttnError
    from convattn.heads import analyze, convolutional_init, random_heads, replace_convolutional_heads
    from convattn.heads.head_report import HeadReport
    from convattn.heads.initialise import ConvolutionalInit
    from convattn.heads.replace import HeadReplacement
    from convattn.lab import load_recipe, train
    from convattn.layers import (
        Content,
        GatedRelativeAttention1d,
        GatedRelativeAttention2d,
        GatedRelativeAttention3d,
        RelativeAttention1d,
        RelativeAttention2d,
        RelativeAttention3d,
        fuse,
    )
    from convattn.models import AttentionNet, ConvNet, resnet18
    from convattn.networks import from_pretrained, load_network, push_to_hub, save_network
    from convattn.provenance import RunRecord
    from convattn.viewer import view

__all__ = [
    "AttentionNet",
    "AxisAdditiveEncoding",
    "Certificate",
    "Content",
    "ConvAttnError",
    "ConvNet",
    "ConvolutionalInit",
    "Distance",
    "Encoding",
    "GatedRelativeAttention1d",
    "GatedRelativeAttention2d",
    "GatedRelativeAttention3d",
    "GeneralizedQuadratic",
    "HeadReplacement",
    "HeadReport",
    "LearnedAxial",
    "LearnedTable",
    "LinearDistance",
    "NetworkCertificate",
    "Quadratic",
    "RelativeAttention1d",
    "RelativeAttention2d",
    "RelativeAttention3d",
    "RunRecord",
    "Shift",
    "Sinusoidal",
    "__version__",
    "analyze",
    "attention_to_conv",
    "conv_to_attention",
    "convolutional_init",
    "freeze",
    "from_pretrained",
    "fuse",
    "load_layer",
    "load_network",
    "load_recipe",
    "network_to_attention",
    "network_to_conv",
    "patch_convolution",
    "push_to_hub",
    "random_heads",
    "refine",
    "register_encoding",
    "replace_convolutional_heads",
    "resnet18",
    "save_layer",
    "save_network",
    "train",
    "view",
]

_HOMES = {
    "AttentionNet": "convattn.models",
    "AxisAdditiveEncoding": "convattn.encodings",
    "Certificate": "convattn.convert.certificate",
    "Content": "convattn.layers",
    "ConvAttnError": "convattn.errors",
    "ConvNet": "convattn.models",
    "ConvolutionalInit": "convattn.heads.initialise",
    "Distance": "convattn.encodings",
    "Encoding": "convattn.encodings",
    "GatedRelativeAttention1d": "convattn.layers",
    "GatedRelativeAttention2d": "convattn.layers",
    "GatedRelativeAttention3d": "convattn.layers",
    "GeneralizedQuadratic": "convattn.encodings",
    "HeadReplacement": "convattn.heads.replace",
    "HeadReport": "convattn.heads.head_report",
    "LearnedAxial": "convattn.encodings",
    "LearnedTable": "convattn.encodings",
    "LinearDistance": "convattn.encodings",
    "NetworkCertificate": "convattn.convert.certificate",
    "Quadratic": "convattn.encodings",
    "RelativeAttention1d": "convattn.layers",
    "RelativeAttention2d": "convattn.layers",
    "RelativeAttention3d": "convattn.layers",
    "RunRecord": "convattn.provenance",
    "Shift": "convattn.encodings",
    "Sinusoidal": "convattn.encodings",
    "analyze": "convattn.heads",
    "attention_to_conv": "convattn.convert",
    "conv_to_attention": "convattn.convert",
    "convolutional_init": "convattn.heads",
    "freeze": "convattn.convert",
    "from_pretrained": "convattn.networks",
    "fuse": "convattn.layers",
    "load_layer": "convattn.convert",
    "load_network": "convattn.networks",
    "load_recipe": "convattn.lab",
    "network_to_attention": "convattn.convert",
    "network_to_conv": "convattn.convert",
    "patch_convolution": "convattn.convert",
    "push_to_hub": "convattn.networks",
    "random_heads": "convattn.heads",
    "refine": "convattn.convert",
    "register_encoding": "convattn.encodings",
    "replace_convolutional_heads": "convattn.heads",
    "resnet18": "convattn.models",
    "save_layer": "convattn.convert",
    "save_network": "convattn.networks",
    "train": "convattn.lab",
    "view": "convattn.viewer",
}

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Import a public name from its home when it is first used."""
        if name not in _HOMES:
            message = f"module 'convattn' has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
