"""Attention over all tokens: vision transformers of timm, torchvision and transformers."""

import torch
from torch import nn

from convattn.convert.surgery import full_name
from convattn.errors import UnsupportedModelError
from convattn.heads.layout import Frame, Layout, Read, Seen, global_layout

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


_HOME = "torchvision.models.vision_transformer"


def read_torch_attention(seen: Seen) -> Layout:
    """Reads torch's attention inside torchvision's network: a class token, then patches row by row."""
    network = seen.parent_of_kind(f"{_HOME}.VisionTransformer").module
    embedding: nn.Module = network.conv_proj  # type: ignore[assignment]
    return seen.global_layout(seen.grid_of(embedding), 1, "the output of conv_proj, and the class token before it")


TORCHVISION_VIT: dict[str, tuple[str, Read]] = {
    "torch.nn.modules.activation.MultiheadAttention": ("global", read_torch_attention),
}
"""Family and reader by full name of the class."""


_PREFIX = ("cls_token", "class_embedding", "distillation_token", "register_tokens")


def read_tower(seen: Seen) -> Layout:
    """Reads patches of an image where the embeddings hold a convolution, and else a sequence of tokens."""
    embeddings: nn.Module = _embeddings(seen).module.embeddings  # type: ignore[assignment]
    if any(part in seen.features for part in embeddings.modules()):
        prefix = sum(_tokens(embeddings, name) for name in _PREFIX)
        return seen.global_layout(
            seen.grid_of(embeddings), prefix, "the output of the embeddings, and their prefix tokens"
        )
    return read_sequence(seen)


def read_sequence(seen: Seen) -> Layout:
    """Reads tokens in their order, one axis; a class token such as BERT's is the first of them."""
    if seen.keys != seen.queries:
        raise UnsupportedModelError(f"its {seen.keys} keys are other tokens than its {seen.queries} queries")
    if any(seen.kwargs.get(name) is not None for name in ("key_value_states", "encoder_hidden_states")):
        raise UnsupportedModelError("its keys are those of another sequence")
    return seen.global_layout((seen.queries,), 0, "the order of the tokens")


def _embeddings(seen: Seen) -> Frame:
    try:
        return seen.parent("embeddings")
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            "no model with embeddings is around it, so where its tokens lie is not known"
        ) from error


def _tokens(embeddings: nn.Module, name: str) -> int:
    token = getattr(embeddings, name, None)
    return 0 if token is None else int(token.shape[-2]) if token.ndim == 3 else 1


def _classes(family: str, *names: str) -> tuple[str, ...]:
    return tuple(f"transformers.models.{family}.modeling_{family}.{name}" for name in names)


_TOWERS = (
    *_classes("vit", "ViTAttention"),
    *_classes("deit", "DeiTAttention"),
    *_classes("beit", "BeitAttention"),
    *_classes("dinov2", "Dinov2Attention"),
    *_classes("dinov2_with_registers", "Dinov2WithRegistersAttention"),
    *_classes("dinov3_vit", "DINOv3ViTAttention"),
    *_classes("clip", "CLIPAttention"),
    *_classes("siglip", "SiglipAttention"),
    *_classes("ijepa", "IJepaAttention"),
    *_classes("vit_msn", "ViTMSNAttention"),
    *_classes("mlcd", "MLCDAttention"),
    *_classes("audio_spectrogram_transformer", "ASTAttention"),
)
_SEQUENCES = (
    *_classes("bert", "BertSelfAttention"),
    *_classes("distilbert", "DistilBertSelfAttention"),
    *_classes("roberta", "RobertaSelfAttention"),
    *_classes("xlm_roberta", "XLMRobertaSelfAttention"),
    *_classes("camembert", "CamembertSelfAttention"),
    *_classes("electra", "ElectraSelfAttention"),
    *_classes("mpnet", "MPNetSelfAttention"),
    *_classes("albert", "AlbertAttention"),
    *_classes("wav2vec2", "Wav2Vec2Attention"),
    *_classes("hubert", "HubertAttention"),
    *_classes("whisper", "WhisperAttention"),
    *_classes("gpt2", "GPT2Attention"),
    *_classes("llama", "LlamaAttention"),
    *_classes("opt", "OPTAttention"),
)
TRANSFORMERS: dict[str, tuple[str, Read]] = {
    **dict.fromkeys(_TOWERS, ("global", read_tower)),
    **dict.fromkeys(_SEQUENCES, ("sequence", read_sequence)),
}
"""Family and reader by full name of the class."""
