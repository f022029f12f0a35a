"""Encoders of transformers: vision towers with prefix tokens, and sequences of text or audio."""

from torch import nn

from convattn.adapters.attention.layout import Layout
from convattn.adapters.attention.seen import Frame, Read, Seen
from convattn.errors import UnsupportedModelError

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
