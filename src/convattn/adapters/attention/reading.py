"""Reads one call of an attention module: its layout, its weights, and the proof that they are right."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention.features import on_grid
from convattn.adapters.attention.kernels import Kernel
from convattn.adapters.attention.layout import AttentionCall, Layout
from convattn.adapters.attention.masks import allowed_of
from convattn.adapters.attention.own import read_own
from convattn.adapters.attention.registry import is_own, reader
from convattn.adapters.attention.seen import Frame, Seen
from convattn.convert.classes import full_name
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a


def read_call(
    frame: Frame,
    parents: tuple[Frame, ...],
    kernels: list[Kernel],
    out: Tensor,
    *,
    images: int,
    features: Mapping[nn.Module, tuple[int, ...]],
) -> AttentionCall:
    """Reads a call, or raises UnsupportedModelError with the reason alone.

    A registered `read` that returns no layout raises ArgumentError.
    """
    module, given = frame.module, _first_tensor(frame)
    allowed = None
    if is_own(module):
        given = module.batch_of(*frame.args, **frame.kwargs)  # type: ignore[operator]
        out = out if out.ndim == given.ndim else out[None]
        layout, weights, proof = read_own(module, given, out)  # type: ignore[arg-type]
        rounding = torch.finfo(weights.dtype).eps
    else:
        known, kernel = reader(module), _one(kernels)
        assert known is not None
        shape, rounding = kernel.shape(), kernel.rounding
        seen = Seen(
            name=frame.name,
            module=module,
            args=frame.args,
            kwargs=frame.kwargs,
            parents=parents,
            images=images,
            shape=shape,
            mask=kernel.mask,
            features=features,
        )
        layout = known.read(seen)
        if not isinstance(layout, Layout):
            raise ArgumentError(must_be_a(f"what `read` of {type(module).__name__} returns", "a Layout", layout))
        groups, queries, keys = layout.groups, layout.queries.shape[1], layout.keys.shape[1]
        lead = torch.Size(shape[:-2]).numel()
        if (queries, keys) != shape[-2:] or not images or shape[0] % images or lead % (images * groups):
            raise UnsupportedModelError(
                f"weights of {' × '.join(map(str, shape))} for {images} images are not those of {groups} groups of"
                f" {queries} queries and {keys} keys"
            )
        assert kernel.made is not None
        weights, proof = kernel.made
        heads = lead // (images * groups)
        sizes = (images, heads, groups) if known.heads_first else (images, groups, heads)
        weights = weights.reshape(*sizes, queries, keys)
        weights = weights.transpose(1, 2) if known.heads_first else weights
        mask = frame.kwargs.get("attention_mask")
        mask = mask if isinstance(mask, Tensor) and mask.ndim == 4 else None
        layout, allowed = allowed_of(kernel, mask, layout, weights.shape)
    if not proof.error <= proof.budget:
        raise UnsupportedModelError(
            f"weights × values is {proof.error:.3g} off what it computed, and rounding explains {proof.budget:.3g}"
        )
    return AttentionCall(
        name=frame.name,
        kind=full_name(type(module)),
        layout=layout,
        weights=weights,
        inputs=on_grid(given, layout, images),
        outputs=on_grid(out, layout, images),
        normalised=rows_sum_to_one(weights, rounding),
        error=proof.error,
        budget=proof.budget,
        allowed=allowed,
    )


def _one(kernels: list[Kernel]) -> Kernel:
    if len(kernels) == 1:
        return kernels[0]
    count = "no product" if not kernels else f"{len(kernels)} products"
    raise UnsupportedModelError(f"{count} of weights and values was seen in it, where there must be one")


def rows_sum_to_one(weights: Tensor, rounding: float) -> bool:
    """Tells whether rows sum to one, if every weight is off by `rounding` of itself.

    Two sums of n terms are rounded as well, that by which softmax divided and the one here. Each may be off by n · u,
    u = eps / 2, in any order of summation.
    """
    off = (weights.sum(-1) - 1).abs().max().item()
    return off <= rounding + weights.shape[-1] * torch.finfo(weights.dtype).eps


def _first_tensor(frame: Frame) -> Any:
    return next((part for part in (*frame.args, *frame.kwargs.values()) if isinstance(part, Tensor)), None)
