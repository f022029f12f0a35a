"""Self-attention that is a convolution, and back.

The names below are what a program most often needs; `docs/reference/api` lists all that is public. Each is imported
from its private module when it is first asked for, so that `import convattn` is quick and loads no torch.

Example:
    >>> import convattn
    >>> convattn.__version__
    '0.1.0'
"""

from importlib import import_module
from typing import TYPE_CHECKING

from convattn.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from convattn.convert import (
        attention_to_conv as attention_to_conv,
        certify as certify,
        conv_to_attention as conv_to_attention,
        freeze as freeze,
        network_to_attention as network_to_attention,
        network_to_conv as network_to_conv,
    )
    from convattn.encodings import (
        AxialDistance as AxialDistance,
        AxisAdditiveEncoding as AxisAdditiveEncoding,
        Distance as Distance,
        Encoding as Encoding,
        GeneralizedQuadratic as GeneralizedQuadratic,
        LearnedAxial as LearnedAxial,
        LearnedTable as LearnedTable,
        LinearDistance as LinearDistance,
        Quadratic as Quadratic,
        Shift as Shift,
        Sinusoidal as Sinusoidal,
        register_encoding as register_encoding,
    )
    from convattn.errors import ConvAttnError as ConvAttnError
    from convattn.heads import (
        analyze as analyze,
        attention_maps as attention_maps,
        init_heads_ as init_heads_,
        mean_maps as mean_maps,
        random_heads as random_heads,
        replace_heads as replace_heads,
    )
    from convattn.lab import (
        load_recipe as load_recipe,
        train as train,
    )
    from convattn.layers import (
        Content as Content,
        RelativeAttention1d as RelativeAttention1d,
        RelativeAttention2d as RelativeAttention2d,
        RelativeAttention3d as RelativeAttention3d,
    )
    from convattn.models import (
        AttentionNet as AttentionNet,
        ConvNet as ConvNet,
        resnet18 as resnet18,
    )
    from convattn.networks import (
        load_network as load_network,
        push_to_hub as push_to_hub,
        save_network as save_network,
    )
    from convattn.viewer import view as view

_NAMES = {
    "convattn.__about__": "__version__",
    "convattn.convert": (
        "attention_to_conv certify conv_to_attention freeze network_to_attention network_to_conv"
    ),
    "convattn.encodings": (
        "AxialDistance AxisAdditiveEncoding Distance Encoding GeneralizedQuadratic LearnedAxial LearnedTable "
        "LinearDistance Quadratic Shift Sinusoidal register_encoding"
    ),
    "convattn.errors": "ConvAttnError",
    "convattn.heads": "analyze attention_maps init_heads_ mean_maps random_heads replace_heads",
    "convattn.lab": "load_recipe train",
    "convattn.layers": "Content RelativeAttention1d RelativeAttention2d RelativeAttention3d",
    "convattn.models": "AttentionNet ConvNet resnet18",
    "convattn.networks": "load_network push_to_hub save_network",
    "convattn.viewer": "view",
}
"""The names that each module gives, separated by spaces."""

_HOMES: dict[str, str] = {}
for _module, _names in _NAMES.items():
    _HOMES |= dict.fromkeys(_names.split(), _module)

# A type checker takes the names imported above; with this function it would accept any.
if not TYPE_CHECKING:
    __all__ = sorted(_HOMES)  # noqa: PLE0605 - names, each a string

    def __getattr__(name: str) -> object:
        """Import a public name from its home when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module 'convattn' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
