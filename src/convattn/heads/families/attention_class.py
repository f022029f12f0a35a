"""What a family says of its classes: where tokens lie, where the weight matrices are, and how a layer is called.

Classes are given by full name, so that no other library is imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.utils import parametrize

from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.layout import Layout, global_layout, times
from convattn.structure import replaced_methods


@dataclass(frozen=True, eq=False)
class CallContext:
    """One call of a module: its arguments, the modules around it, and, if it attends, the sizes of its weights."""

    name: str  # Dotted name of the module
    module: Any  # The module, of any class
    args: tuple[Any, ...]  # Positional arguments of the call
    kwargs: Mapping[str, Any]  # Named ones
    parents: tuple["CallContext", ...] = ()  # The modules around it, innermost first
    shape: tuple[int, ...] = ()  # Sizes of the weights: leading axes, heads, queries, keys
    # Rows and columns of what each convolution, or what it became, gave out last; the latest is last
    features: Mapping[nn.Module, tuple[int, ...]] = field(default_factory=dict)

    @property
    def queries(self) -> int:
        """Number of queries in a group."""
        return self.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys in a group."""
        return self.shape[-1]

    @property
    def grid_before_channels(self) -> tuple[int, ...]:
        """Rows and columns of its first argument, an image with its channels last."""
        return tuple(self.args[0].shape[1:3])

    @property
    def grid_after_channels(self) -> tuple[int, ...]:
        """Sizes of its first argument, an image with its channels first."""
        return tuple(self.args[0].shape[2:])

    def argument(self, number: int, name: str) -> Any:
        """Returns an argument of the call by its place or name; None if it was not given."""
        return self.args[number] if len(self.args) > number else self.kwargs.get(name)

    def parent(self, *attributes: str) -> "CallContext":
        """Returns the innermost module around this one that has all these attributes."""
        for parent in self.parents:
            if all(getattr(parent.module, name, None) is not None for name in attributes):
                return parent
        having = " and ".join(attributes)
        raise UnsupportedModelError(f"no module that was called around it has {having}")

    def grid_of(self, embedding: nn.Module) -> tuple[int, int]:
        """Returns rows and columns of the output of the last convolution in a module."""
        inside = set(embedding.modules())
        shapes = [shape for part, shape in self.features.items() if part in inside]
        if not shapes:
            raise UnsupportedModelError(
                f"no convolution ran in {type(embedding).__name__}, so its grid is not known"
            )
        *_, rows, cols = shapes[-1]
        return rows, cols

    def global_layout(self, grid: tuple[int, ...], prefix: int = 0) -> Layout:
        """Returns the layout of queries and keys that are prefix tokens and then a grid row by row."""
        return global_layout(grid, prefix)


PREFIX_TOKENS = {
    **dict.fromkeys(("cls_token", "class_token", "cls_embed", "class_embedding"), "class"),
    **dict.fromkeys(("dist_token", "distillation_token"), "distillation"),
    **dict.fromkeys(("reg_token", "register_tokens"), "register"),
}
"""Kinds of tokens that stand before the patches, in their order, by the names of the parameters that hold them."""


def how_to_register(cls: type[nn.Module]) -> str:
    """Returns the words, with the line to type, by which a user says where the tokens of a class lie."""
    return (
        f"say where its tokens lie: convattn.heads.reading.register_attention({cls.__name__}, lambda call:"
        " call.global_layout((rows, cols), prefix=tokens_before_them)), or name the layers to read"
    )


ReadLayout: TypeAlias = Callable[[CallContext], Layout]
"""Reads the layout of a call, or raises UnsupportedModelError with the reason alone."""


@dataclass(frozen=True, kw_only=True)
class TokenAttention:
    """Multi-head attention over tokens: y = W_out · concat_h softmax(s q_h k_hᵀ) v_h + b."""

    heads: int  # N_h
    query: nn.Linear  # W_q with its bias, D → N_h·D_h; heads stand one after the other
    key: nn.Linear  # W_k with its bias
    value: nn.Linear  # W_v with its bias
    output: nn.Linear  # W_out with its bias, N_h·D_h → D_out
    scale: float  # s
    config: Any = None  # Configuration of a layer of transformers
    dropout: float = 0.0  # Probability with which an attention weight is dropped in training
    # What is applied to each query before the product, to each key, and to the output
    query_norm: nn.Module = field(default_factory=nn.Identity)
    key_norm: nn.Module = field(default_factory=nn.Identity)
    after: nn.Module = field(default_factory=nn.Identity)

    @property
    def head_width(self) -> int:
        """D_h."""
        return self.value.out_features // self.heads


@dataclass(frozen=True, eq=False)
class AttentionClass:
    """How one class of attention is read, replaced and initialised."""

    pattern: str = "none"  # Family of layouts; the layout of a call says more
    layout: ReadLayout | None = None  # Where queries and keys lie; None if the class is refused
    heads_first: bool = False  # Whether the weights have their heads before their groups
    # Copies the matrices out of a module, or raises UnsupportedModelError with the reason alone
    matrices: Callable[[nn.Module], TokenAttention] | None = None
    refused: str | None = None  # Why the weights of the class are not read

    def read(self, call: CallContext) -> Layout:
        """Reads where queries and keys of a call lie; UnsupportedModelError if that is not known, or not so many.

        A `layout` that returns something else raises ArgumentError.
        """
        assert self.layout is not None
        layout = self.layout(call)
        if not isinstance(layout, Layout):
            returned = f"what `read` of {type(call.module).__name__} returns"
            raise ArgumentError(must_be_a(returned, "a Layout", layout))
        queries, keys = layout.queries.shape[1], layout.keys.shape[1]
        if (call.queries, call.keys) != (queries, keys):
            raise UnsupportedModelError(
                f"{call.queries} queries and {call.keys} keys are not the {queries} and {keys} of"
                f" {times(layout.grid)} positions and {layout.prefix} prefix tokens"
            )
        return layout

    def by_group(
        self, x: Shaped[Tensor, "*lead rows cols"], groups: int, heads: int
    ) -> Shaped[Tensor, "images groups heads rows cols"]:
        """Takes apart the leading axes of what a layer computes for every head."""
        lead = (heads, groups) if self.heads_first else (groups, heads)
        apart = x.reshape(-1, *lead, *x.shape[-2:])
        return apart.transpose(1, 2) if self.heads_first else apart


@dataclass(frozen=True)
class PatchNetwork:
    """A vision transformer whose tokens are prefix tokens, then patches row by row."""

    embedding: (
        str  # Dotted name of its patch embedding, which knows the sizes of images and of patches
    )
    blocks: str = ""  # Names of its attention layers over all tokens begin with this


_REFUSED = (
    "mask",
    "attn_mask",
    "attention_mask",
    "is_causal",
    "past_key_values",
    "output_attentions",
)
"""Options of a call that heads that average by displacement do not take."""


@final
class TokenLayer(nn.Module):
    """A layer from tokens to tokens, called as attention of timm is, or, if it has a configuration, of transformers."""

    def __init__(self, tokens: nn.Module, config: Any = None) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens
        self.config = config

    def forward(
        self,
        hidden_states: Float[Tensor, "batch tokens width"],
        mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Attends; transformers gets None beside it, in place of attention weights.

        A mask, causal attention, a cache, or a request for attention weights raises ArgumentError; so does an option
        that is not known, but for those that transformers passes on from layer to layer.
        """
        for name in options:
            if self.config is None and name not in _REFUSED:
                raise ArgumentError(must_be("options", f"among {_REFUSED}", name))
        options["mask"] = mask
        if not options.get("output_attentions"):
            options["output_attentions"] = getattr(self.config, "output_attentions", False)
        for name in _REFUSED:
            option = options.get(name)
            if option is not None and option is not False:
                raise ArgumentError(
                    f"{name} must be None or False, but is a {type(option).__name__}: heads that average by"
                    " displacement see both sides of a token, take no mask, and have no weights to return"
                )
        y = self.tokens(hidden_states)
        return y if self.config is None else (y, None)


def part_of(
    whole: nn.Linear, rows: Tensor | slice, columns: Tensor | slice = slice(None)
) -> nn.Linear:
    """Returns some outputs of a linear map for some of its inputs: copies of its numbers, or by slices its own."""
    weight = whole.weight[rows][:, columns]
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=whole.bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), whole.weight.requires_grad)
    if whole.bias is not None:
        layer.bias = nn.Parameter(whole.bias[rows].detach(), whole.bias.requires_grad)
    return layer


def split_linear(whole: nn.Linear, parts: int) -> tuple[nn.Linear, ...]:
    """Splits the outputs of a linear map into as many maps of equal size, which hold its own numbers."""
    size = len(whole.weight) // parts
    starts = range(0, parts * size, size)
    return tuple(part_of(whole, slice(start, start + size)) for start in starts)


_RECORDERS = "transformers.utils.output_capturing"
"""Module of the hooks by which transformers records outputs; they belong to the network, not to its user."""


def require_part(attention: nn.Module, name: str, kind: type[nn.Module] = nn.Linear) -> Any:
    """Returns a part of an attention layer, or raises UnsupportedModelError.

    It must be of the class `kind` itself and its weight not computed; it and the layer may have no hooks of the user
    and no methods in the place of their class's.
    """
    part: Any = getattr(attention, name, None)
    if isinstance(part, nn.Module) and parametrize.is_parametrized(part):
        raise UnsupportedModelError(
            f"its {name} has a parametrised weight; make it permanent first"
        )
    if type(part) is not kind:
        raise UnsupportedModelError(
            f"its {name} must be an nn.{kind.__name__}, but is a {type(part).__name__}"
        )
    for module, where in ((attention, "it"), (part, f"its {name}")):
        if methods := replaced_methods(module):
            raise UnsupportedModelError(
                f"{where} has a {' and '.join(methods)} of its own, which would be lost"
            )
        hooks = {**module._forward_hooks, **module._forward_pre_hooks, **module._backward_hooks}
        if any(getattr(hook, "__module__", None) != _RECORDERS for hook in hooks.values()):
            raise UnsupportedModelError(
                f"{where} has hooks, which would be lost; remove them first"
            )
    return part


def dropout_rate(attention: nn.Module, name: str) -> float:
    """Returns how often a layer drops a weight, which a number says, or a module; raises as `require_part` does."""
    dropout = getattr(attention, name, None)
    if isinstance(dropout, float | int):
        return float(dropout)
    kind = nn.Identity if isinstance(dropout, nn.Identity) else nn.Dropout
    return float(getattr(require_part(attention, name, kind), "p", 0.0))
