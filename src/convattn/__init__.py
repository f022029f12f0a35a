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
        certify,
        conv_to_attention,
        freeze,
        load_layer,
        network_to_attention,
        network_to_conv,
        patch_convolution,
        refine,
        save_layer,
    )
    from convattn.convert.agreement import AgreementCertificate
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
    "AgreementCertificate",
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
    "certify",
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

_NAMES = {
    "convattn.convert": (
        "attention_to_conv certify conv_to_attention freeze load_layer network_to_attention network_to_conv "
        "patch_convolution refine save_layer"
    ),
    "convattn.convert.certificate": "Certificate NetworkCertificate",
    "convattn.convert.agreement": "AgreementCertificate",
    "convattn.encodings": (
        "AxisAdditiveEncoding Distance Encoding GeneralizedQuadratic LearnedAxial LearnedTable LinearDistance "
        "Quadratic Shift Sinusoidal register_encoding"
    ),
    "convattn.errors": "ConvAttnError",
    "convattn.heads": "analyze convolutional_init random_heads replace_convolutional_heads",
    "convattn.heads.head_report": "HeadReport",
    "convattn.heads.initialise": "ConvolutionalInit",
    "convattn.heads.replace": "HeadReplacement",
    "convattn.lab": "load_recipe train",
    "convattn.layers": (
        "Content GatedRelativeAttention1d GatedRelativeAttention2d GatedRelativeAttention3d "
        "RelativeAttention1d RelativeAttention2d RelativeAttention3d fuse"
    ),
    "convattn.models": "AttentionNet ConvNet resnet18",
    "convattn.networks": "from_pretrained load_network push_to_hub save_network",
    "convattn.provenance": "RunRecord",
    "convattn.viewer": "view",
}
"""The names that each module gives, separated by spaces."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Import a public name from its home when it is first used."""
        if name not in _HOMES:
            message = f"module 'convattn' has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
