"""Vision transformers of other libraries in the one form that all adapters return: attention, and grid of patches."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from convattn.convert.certificate import LeftAlone
from convattn.convert.surgery import full_name, names_by_module
from convattn.errors import ArgumentError, ShapeError, UnsupportedModelError, must_be


@dataclass(frozen=True, kw_only=True)
class TokenAttention:
    """What every layer of multi-head attention over tokens has: y = W_out · concat_h softmax(s q_h k_hᵀ) v_h + b."""

    heads: int  # N_h
    query: nn.Linear  # W_q with its bias, D → N_h·D_h; heads stand one after the other
    key: nn.Linear  # W_k with its bias
    value: nn.Linear  # W_v with its bias
    dropout: float  # Probability with which an attention weight is dropped in training
    scale: float | None = None  # s; None is 1/√D_h
    query_norm: nn.Module = field(default_factory=nn.Identity)  # What is applied to each query before the product
    key_norm: nn.Module = field(default_factory=nn.Identity)  # What is applied to each key
    after: nn.Module = field(default_factory=nn.Identity)  # What follows W_out: the dropout of the output

    @property
    def head_width(self) -> int:
        """D_h."""
        return self.value.out_features // self.heads


@final
@dataclass(frozen=True, kw_only=True)
class NativeAttention(TokenAttention):
    """One layer of a vision transformer."""

    names: tuple[str, ...]  # Its dotted names in the network, the first one first
    output: nn.Linear  # W_out with its bias, N_h·D_h → D_out


@final
class PatchGrid:
    """Rows and columns of the patches of the last image batch.

    An attention layer receives a sequence of tokens, which does not tell 2 × 8 from 4 × 4 patches. So the grid is a
    forward pre-hook of the module that cuts images into patches, and reads the sizes from its input.

    Attributes:
        sizes: Rows and columns.
        measure: Returns rows and columns, given that module and the height and width of an image.
    """

    def __init__(
        self, sizes: tuple[int, int], measure: Callable[[nn.Module, tuple[int, int]], tuple[int, int]]
    ) -> None:
        """Starts with the sizes for the network's own images."""
        self.sizes, self.measure = sizes, measure

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the sizes from an image, as a forward pre-hook."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.measure(module, (int(height), int(width)))
        if sizes != self.sizes:
            self.sizes = sizes

    def require(self, tokens: int, prefix: int) -> tuple[int, int]:
        """Returns rows and columns; raises ShapeError if the tokens are not `prefix` tokens and as many patches."""
        rows, cols = self.sizes
        if tokens != prefix + rows * cols:
            raise ShapeError(
                f"tokens must be {prefix + rows * cols} ({prefix} prefix and {rows} x {cols} patches), but are {tokens}"
            )
        return rows, cols

    def __repr__(self) -> str:
        """Returns the sizes, for printing."""
        return "{} x {} patches".format(*self.sizes)


@dataclass(frozen=True)
class NativeTransformer:
    """A vision transformer whose tokens are prefix tokens, then patches row by row."""

    layers: tuple[NativeAttention, ...]  # Its layers of attention
    prefix: int  # Number of tokens before the patches
    grid: PatchGrid  # Rows and columns of the patches, updated by the module that cuts images into patches
    embedding: str  # Name of that module
    # Gives a module from tokens to tokens the call signature of the native layer
    wrap: Callable[[nn.Module], nn.Module]
    left: tuple[LeftAlone, ...] = ()  # Attention that is left alone, and why


def linear(
    weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None, *, like: nn.Linear
) -> nn.Linear:
    """Makes a linear map from copied numbers, with the dtype, device and `requires_grad` of the map `like`."""
    outputs, inputs = weight.shape
    old = like.weight
    made = nn.Linear(inputs, outputs, bias=bias is not None, device="meta", dtype=old.dtype)
    made = made.to_empty(device=old.device)  # no random numbers are drawn
    with torch.no_grad():
        made.weight.copy_(weight).requires_grad_(old.requires_grad)
        if bias is not None:
            assert like.bias is not None
            made.bias.copy_(bias).requires_grad_(like.bias.requires_grad)
    return made


def split_linear(whole: nn.Linear, parts: int) -> tuple[nn.Linear, ...]:
    """Copies the outputs of a linear map into as many maps of equal size."""
    biases = (None,) * parts if whole.bias is None else whole.bias.chunk(parts)
    return tuple(linear(*part, like=whole) for part in zip(whole.weight.chunk(parts), biases, strict=True))


_RECORDERS = "transformers.utils.output_capturing"
"""Module of the hooks by which transformers records outputs; they belong to the network, not to its user."""


def read_layers(
    model: nn.Module,
    kinds: Collection[str],
    read: Callable[[tuple[str, ...], nn.Module], NativeAttention],
    *,
    within: str,
    reasons: Sequence[str] = (),
    none: str,
) -> tuple[NativeAttention, ...]:
    """Reads the attention layers of a network, or raises UnsupportedModelError with all reasons why it cannot.

    These are the modules of the classes `kinds`, given by full name, whose names begin with `within`. `read` reads one
    layer or raises the reason alone; `reasons` are further ones, `none` is that of a network without attention layers.
    """
    layers, refused = [], list(reasons)
    for module, names in names_by_module(model).items():
        inside = tuple(name for name in names if name.startswith(within))
        if not inside or full_name(type(module)) not in kinds:
            continue
        try:
            layers.append(read(inside, module))
        except UnsupportedModelError as error:
            refused.append(f"{inside[0]} ({type(module).__name__}): {error}")
    if refused or not layers:
        listed = "\n".join(f"  {reason}" for reason in refused or [none])
        raise UnsupportedModelError(f"cannot initialise {type(model).__name__} as a convolution:\n{listed}")
    return tuple(layers)


def require_linear(attention: nn.Module, name: str) -> nn.Linear:
    """Returns a linear map of an attention layer, or raises UnsupportedModelError.

    The map must be an `nn.Linear` itself and its weight not computed; neither of the two may have hooks of the user.
    """
    linear = getattr(attention, name, None)
    if isinstance(linear, nn.Module) and parametrize.is_parametrized(linear):
        raise UnsupportedModelError(f"its {name} has a parametrised weight; make it permanent first")
    if type(linear) is not nn.Linear:
        raise UnsupportedModelError(f"its {name} must be an nn.Linear, but is a {type(linear).__name__}")
    for module, where in ((attention, "it"), (linear, f"its {name}")):
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *module._backward_hooks.values()]
        if any(getattr(hook, "__module__", None) != _RECORDERS for hook in hooks):
            raise UnsupportedModelError(f"{where} has hooks, which would be lost; remove them first")
    return linear


TIMM = ("timm.models.vision_transformer.VisionTransformer", "timm.models.deit.VisionTransformerDistilled")
"""Classes that `read_timm` reads."""

_TIMM_ATTENTION = "timm.layers.attention.Attention"
_BLOCKS = {
    "timm.models.vision_transformer.ParallelScalingBlock": "it computes attention and feed-forward in one product",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "it takes the difference of two attentions",
    "timm.layers.diff_attention.DiffAttention": "it takes the difference of two attentions",
    "timm.layers.attention.AttentionRope": "it rotates queries and keys by their positions",
}
_POOLS = ("timm.layers.attention_pool.AttentionPoolLatent", "timm.layers.attention_pool.AttentionPoolPrr")


@final
class TimmAttention(nn.Module):
    """A layer from tokens to tokens with the call signature of timm's attention."""

    def __init__(self, tokens: nn.Module) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens

    def forward(
        self, x: Float[Tensor, "batch tokens width"], attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Attends; a mask or causal attention raises ArgumentError."""
        if attn_mask is not None:
            raise ArgumentError("attn_mask must be None: heads that attend by position take no mask")
        if is_causal:
            raise ArgumentError(must_be("is_causal", "False", is_causal, because="patches have no order in time"))
        return self.tokens(x)


def read_timm(vit: nn.Module) -> NativeTransformer:
    """Reads one of `TIMM` without copying its tensors and modules.

    If parts of it compute something else, UnsupportedModelError names them all.
    """
    reasons = []
    if not isinstance(vit.patch_drop, nn.Identity):
        reasons.append("patch_drop (PatchDropout): it drops patches, and the remaining ones form no grid")
    none = "blocks: no supported attention was found"
    layers = read_layers(
        vit, (_TIMM_ATTENTION, *_BLOCKS), read_timm_attention, within="blocks.", reasons=reasons, none=none
    )
    embed: nn.Module = vit.patch_embed  # type: ignore[assignment]
    rows, cols = embed.grid_size  # type: ignore[misc]
    pools = [(name, module) for name, module in vit.named_modules() if full_name(type(module)) in _POOLS]
    return NativeTransformer(
        layers=layers,
        prefix=int(vit.num_prefix_tokens),  # type: ignore[arg-type]
        grid=PatchGrid((int(rows), int(cols)), rows_and_cols_of_timm),
        embedding="patch_embed",
        wrap=TimmAttention,
        left=tuple(LeftAlone(name, type(module).__name__, "it pools the tokens at the end") for name, module in pools),
    )


def rows_and_cols_of_timm(embed: nn.Module, image: tuple[int, int]) -> tuple[int, int]:
    """Returns rows and columns of the patches into which timm's embedding cuts an image of this height and width."""
    rows, cols = embed.dynamic_feat_size(image)  # type: ignore[operator]
    return int(rows), int(cols)


def read_timm_attention(names: tuple[str, ...], attention: nn.Module) -> NativeAttention:
    """Reads one layer; a part that computes something else raises UnsupportedModelError with the reason alone."""
    kind = full_name(type(attention))
    if kind != _TIMM_ATTENTION:
        raise UnsupportedModelError(_BLOCKS[kind])
    if not isinstance(attention.norm, nn.Identity):
        raise UnsupportedModelError("it normalises the heads' outputs, which no convolution does")
    if attention.gate is not None:
        raise UnsupportedModelError("it multiplies the heads' outputs by a gate, which no convolution does")
    qkv, proj = require_linear(attention, "qkv"), require_linear(attention, "proj")
    query, key, value = split_linear(qkv, 3)
    return NativeAttention(
        names=names,
        heads=int(attention.num_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=linear(proj.weight, proj.bias, like=proj),
        query_norm=attention.q_norm,  # type: ignore[arg-type]
        key_norm=attention.k_norm,  # type: ignore[arg-type]
        dropout=float(attention.attn_drop.p),  # type: ignore[union-attr, arg-type]
        scale=None if attention.fused_attn else float(attention.scale),  # type: ignore[arg-type]
        after=attention.proj_drop,  # type: ignore[arg-type]
    )


_HOME = "transformers.models.vit.modeling_vit"
TRANSFORMERS = (f"{_HOME}.ViTModel", f"{_HOME}.ViTForImageClassification", f"{_HOME}.ViTForMaskedImageModeling")
"""Classes that `read_transformers` reads."""

_TRANSFORMERS_ATTENTION = f"{_HOME}.ViTAttention"
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
    layers = read_layers(model, (_TRANSFORMERS_ATTENTION,), read_transformers_attention, within=base, none=none)
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
