"""timm's attention over all tokens of a vision transformer: prefix tokens, then patches row by row."""

import torch

from convattn.adapters.attention.layout import Layout, global_layout
from convattn.adapters.attention.seen import Frame, Read, Seen
from convattn.convert.classes import full_name
from convattn.errors import UnsupportedModelError

_PIT = "timm.models.pit.Transformer"
_SOURCE = "the output of patch_embed"


def read_tokens(seen: Seen) -> Layout:
    """Reads tokens whose grid is that of the patch embedding, and whose prefix the network counts."""
    stage = next((frame for frame in seen.parents if full_name(type(frame.module)) == _PIT), None)
    if stage is not None:
        return _read_pit(seen, stage)
    network = seen.parent("patch_embed", "num_prefix_tokens").module
    prefix = int(network.num_prefix_tokens)  # type: ignore[arg-type]
    return seen.global_layout(_grid(seen), prefix, f"{_SOURCE}, and num_prefix_tokens before it")


def read_patches(seen: Seen) -> Layout:
    """Reads patches without prefix tokens, which join in later layers only."""
    return seen.global_layout(_grid(seen), 0, f"{_SOURCE}; the class token joins later")


def read_class_token(seen: Seen) -> Layout:
    """Reads a layer in which the class token looks at itself and all patches."""
    grid = _grid(seen)
    if (seen.queries, seen.keys) != (1, 1 + torch.Size(grid).numel()):
        raise UnsupportedModelError(
            f"{seen.queries} queries and {seen.keys} keys are not a class token and its patches"
        )
    whole = global_layout(grid, 1)
    return Layout("class token", grid, whole.queries[:, :1], whole.keys, whole.key_prefix, None, _SOURCE)


def _read_pit(seen: Seen, stage: Frame) -> Layout:
    """Reads a stage of PiT, which is given an image and its class tokens apart, and pools the image first."""
    image, tokens = stage.args[0]
    pool = stage.module.pool
    grid = tuple(image.shape[2:]) if pool is None else seen.grid_of(pool)  # type: ignore[arg-type]
    return seen.global_layout(grid, tokens.shape[1], "the image of its stage, and the class tokens beside it")


def _grid(seen: Seen) -> tuple[int, int]:
    return seen.grid_of(seen.parent("patch_embed").module.patch_embed)  # type: ignore[arg-type]


TIMM_GLOBAL: dict[str, tuple[str, Read]] = {
    "timm.layers.attention.Attention": ("global", read_tokens),
    "timm.layers.attention.AttentionRope": ("global", read_tokens),
    "timm.models.beit.Attention": ("global", read_tokens),
    "timm.models.eva.EvaAttention": ("global", read_tokens),
    "timm.models.vision_transformer_relpos.RelPosAttention": ("global", read_tokens),
    "timm.models.convit.GPSA": ("global", read_patches),
    "timm.models.convit.MHSA": ("global", read_tokens),
    "timm.models.cait.TalkingHeadAttn": ("global", read_patches),
    "timm.models.cait.ClassAttn": ("class token", read_class_token),
}
"""Family and reader by full name of the class."""
