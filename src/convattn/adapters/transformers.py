"""Reads the ViT of transformers. Classes are recognised by full name; transformers is not imported."""

from collections.abc import Mapping
from functools import partial
from typing import Any, final

from jaxtyping import Float
from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, NativeTransformer, PatchGrid
from convattn.adapters.readable import read_layers, require_linear
from convattn.errors import ArgumentError, UnsupportedModelError, must_be

_HOME = "transformers.models.vit.modeling_vit"
TRANSFORMERS = (f"{_HOME}.ViTModel", f"{_HOME}.ViTForImageClassification", f"{_HOME}.ViTForMaskedImageModeling")
"""Classes that `read_transformers` reads."""

_ATTENTION = f"{_HOME}.ViTAttention"
_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj")


@final
class TransformersAttention(nn.Module):
    """A layer from tokens to tokens with the call signature of transformers' attention."""

    def __init__(self, tokens: nn.Module, config: Any) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens, self.config = tokens, config

    def forward(
        self, hidden_states: Float[Tensor, "batch tokens width"], attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends, and returns None in place of attention weights.

        A mask, or a request for attention weights, raises ArgumentError.
        """
        if attention_mask is not None:
            raise ArgumentError("attention_mask must be None: heads that attend by position take no mask")
        require_no_weights(options, self.config)
        return self.tokens(hidden_states), None


def require_no_weights(options: Mapping[str, Any], config: Any) -> None:
    """Raises ArgumentError if a call of attention, or the network's configuration, asks for attention weights."""
    if options.get("output_attentions") or getattr(config, "output_attentions", False):
        raise ArgumentError(
            must_be("output_attentions", "False", True, because="the weights of all tokens are never computed")
        )


def read_transformers(model: nn.Module) -> NativeTransformer:
    """Reads one of `TRANSFORMERS` without copying its tensors and modules.

    A layout of another version, or a part that computes something else, raises UnsupportedModelError; it names them
    all.
    """
    base = "" if type(model).__name__ == "ViTModel" else "vit."
    none = "no attention with the layout of version 5 was found"
    layers = read_layers(model, (_ATTENTION,), read_transformers_attention, within=base, none=none)
    embedding = f"{base}embeddings.patch_embeddings"
    embed = model.get_submodule(embedding)
    return NativeTransformer(
        layers=layers,
        prefix=1,
        grid=PatchGrid(rows_and_cols_of_transformers(embed, embed.image_size), rows_and_cols_of_transformers),  # type: ignore[arg-type]
        embedding=embedding,
        wrap=partial(TransformersAttention, config=model.config),
    )


def rows_and_cols_of_transformers(embed: nn.Module, image: tuple[int, int]) -> tuple[int, int]:
    """Returns rows and columns of the patches into which the embedding of transformers' ViT cuts such an image."""
    rows, cols = (int(size) // int(step) for size, step in zip(image, embed.patch_size, strict=True))  # type: ignore[call-overload, arg-type]
    return rows, cols


def read_transformers_attention(names: tuple[str, ...], attention: nn.Module) -> NativeAttention:
    """Reads one layer; a layout of another version raises UnsupportedModelError with the reason alone."""
    missing = [name for name in _MAPS if not hasattr(attention, name)]
    if missing:
        raise UnsupportedModelError(f"it has no {missing[0]}: only the layout of version 5 is supported")
    query, key, value, output = (require_linear(attention, name) for name in _MAPS)
    return NativeAttention(
        names=names,
        heads=int(attention.num_attention_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=output,
        dropout=float(attention.attention_dropout),  # type: ignore[arg-type]
        scale=float(attention.scaling),  # type: ignore[arg-type]
    )
