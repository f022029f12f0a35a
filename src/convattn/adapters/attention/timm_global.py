"""timm's attention over all tokens of a vision transformer: prefix tokens, then patches row by row."""

from convattn.adapters.attention.layout import Layout
from convattn.adapters.attention.seen import Read, Seen


def read_tokens(seen: Seen) -> Layout:
    """Reads tokens whose grid is that of the patch embedding, and whose prefix the network counts."""
    network = seen.parent("patch_embed", "num_prefix_tokens").module
    grid = seen.grid_of(network.patch_embed)  # type: ignore[arg-type]
    prefix = int(network.num_prefix_tokens)  # type: ignore[arg-type]
    return seen.global_layout(grid, prefix, "the output of patch_embed, and num_prefix_tokens before it")


TIMM_GLOBAL: dict[str, tuple[str, Read]] = {
    kind: ("global", read_tokens)
    for kind in (
        "timm.layers.attention.Attention",
        "timm.layers.attention.AttentionRope",
        "timm.models.beit.Attention",
        "timm.models.eva.EvaAttention",
        "timm.models.vision_transformer_relpos.RelPosAttention",
        "timm.models.convit.GPSA",
        "timm.models.convit.MHSA",
    )
}
"""Family and reader by full name of the class."""
