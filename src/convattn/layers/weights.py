"""The weights of every query and key, computed by the definition."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import Encoding
from convattn.functional import attention_weights, displacement_scores, gated_weights
from convattn.functional.autocast import without_autocast
from convattn.grid import Axis
from convattn.layers.content import ContentScores


def explicit_weights(
    encoding: Encoding,
    content: ContentScores | None,
    share: Float[Tensor, " heads"] | None,
    keys: Float[Tensor, "images channels *keys"] | None,
    axes: Sequence[Axis],
    like: Tensor,
) -> Float[Tensor, "*images heads queries keys"]:
    """Computes the weights of every query and key, in at least float32; with content one set for each image."""
    # Without key images, content is left out and the dtype of `like` counts; its device always does.
    dtype = torch.promote_types(like.dtype if keys is None else keys.dtype, torch.float32)
    with without_autocast(like.device):
        position = displacement_scores(encoding.table(axes, dtype, like.device), axes)
    if content is None or keys is None:
        return attention_weights(position)
    scores = content(keys, axes, encoding)
    if share is None:
        return attention_weights(position + scores)
    return gated_weights(attention_weights(scores), attention_weights(position), share)
