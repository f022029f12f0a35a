"""Whether a layer with a gate on content has to look at content in a call."""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.functional import position_share
from convattn.functional.derivatives import can_be_read

GateKind: TypeAlias = Literal["sigmoid", "tanh"]
"""How a number per head becomes a share of attention; see `position_share`."""


def share_of_position(gate: Tensor | None, kind: GateKind | None) -> Float[Tensor, " heads"] | None:
    """Computes a layer's share of position from its gate.

    Args:
        gate: λ or g per head, or None.
        kind: What it goes through; None without a gate.

    Returns:
        The share in at least float32; None without a gate.
    """
    return None if gate is None or kind is None else position_share(gate, kind)


def looks_at_content(content: nn.Module | None, gate: Tensor | None, kind: GateKind | None, impl: str) -> bool:
    """Tells whether a call needs the content scores.

    It does not where every gate is closed exactly and nobody asks for the gradient by which gates open.

    Args:
        content: The layer's content scores, or None.
        gate: Its gate, or None.
        kind: What the gate goes through.
        impl: Path demanded; "content" is taken at its word.

    Returns:
        Whether the content scores change the result or have a gradient. True in a compiled graph, which cannot look at
        numbers.
    """
    if content is None:
        return False
    if gate is None or kind != "tanh" or impl == "content" or not can_be_read(gate):
        return True
    learns = torch.is_grad_enabled() and (gate.requires_grad or any(p.requires_grad for p in content.parameters()))
    return learns or bool(gate.detach().any())
