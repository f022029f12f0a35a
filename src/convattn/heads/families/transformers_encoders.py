"""transformers' encoders, whose tokens attend to all others: vision towers, text and audio; and its decoders."""

from functools import partial

from torch import nn

from convattn.errors import UnsupportedModelError
from convattn.heads.families.attention_class import (
    PREFIX_TOKENS,
    AttentionClass,
    CallContext,
    TokenAttention,
    dropout_rate,
    require_part,
)
from convattn.heads.layout import Layout


def read_tower(call: CallContext) -> Layout:
    """Reads patches of an image where the embeddings hold a convolution, and else a sequence of tokens."""
    embeddings = call.parent("embeddings").module.embeddings
    if any(part in call.features for part in embeddings.modules()):
        prefix = sum(_count_tokens(embeddings, name) for name in PREFIX_TOKENS)
        return call.global_layout(call.grid_of(embeddings), prefix)
    return read_sequence(call)


def read_sequence(call: CallContext) -> Layout:
    """Reads tokens in their order, one axis; a class token such as BERT's is the first of them."""
    if call.keys != call.queries:
        raise UnsupportedModelError(
            f"its {call.keys} keys are other tokens than its {call.queries} queries"
        )
    for name in ("key_value_states", "encoder_hidden_states"):
        if call.kwargs.get(name) is not None:
            raise UnsupportedModelError("its keys are those of another sequence")
    return call.global_layout((call.queries,))


def _count_tokens(embeddings: nn.Module, name: str) -> int:
    token = getattr(embeddings, name, None)
    if token is None:
        return 0
    return int(token.shape[-2]) if token.ndim == 3 else 1


def _matrices(
    attention: nn.Module,
    output: str = "out_proj",
    *,
    heads: str = "num_heads",
    dropout: str = "dropout",
    scale: str = "scaling",
) -> TokenAttention:
    """Returns the matrices of a layer, by the names of its last map, numbers and dropout; Whisper's if not given."""
    if getattr(attention, "is_decoder", False) or getattr(attention, "is_causal", False):
        raise UnsupportedModelError("it is a decoder's, which sees only what comes before")
    return TokenAttention(
        heads=int(getattr(attention, heads)),
        query=require_part(attention, "q_proj"),
        key=require_part(attention, "k_proj"),
        value=require_part(attention, "v_proj"),
        output=require_part(attention, output),
        config=attention.config,
        dropout=dropout_rate(attention, dropout),
        scale=float(getattr(attention, scale)),
    )


_vit_matrices = partial(
    _matrices, output="o_proj", heads="num_attention_heads", dropout="attention_dropout"
)


def _tower_matrices(attention: nn.Module) -> TokenAttention:
    """Returns the matrices of a layer of CLIP or SigLIP, of a tower of images."""
    if "text" in str(getattr(attention.config, "model_type", "")):
        raise UnsupportedModelError("it is of a tower of texts, which gives it masks")
    return _matrices(attention, scale="scale")


def _by_full_name(how: AttentionClass, *classes: str) -> dict[str, AttentionClass]:
    """Says the same of classes, given as "vit.ViTAttention"."""
    catalogue = {}
    for name in classes:
        family, kind = name.split(".")
        catalogue[f"transformers.models.{family}.modeling_{family}.{kind}"] = how
    return catalogue


TRANSFORMERS_ENCODERS: dict[str, AttentionClass] = {
    **_by_full_name(
        AttentionClass("global", read_tower, matrices=_vit_matrices),
        "vit.ViTAttention",
        "deit.DeiTAttention",
        "dinov2.Dinov2Attention",
        "dinov2_with_registers.Dinov2WithRegistersAttention",
        "ijepa.IJepaAttention",
        "vit_msn.ViTMSNAttention",
    ),
    **_by_full_name(
        AttentionClass("global", read_tower, matrices=_tower_matrices),
        "clip.CLIPAttention",
        "siglip.SiglipAttention",
    ),
    **_by_full_name(
        AttentionClass("sequence", read_sequence, matrices=_matrices),
        "whisper.WhisperAttention",
    ),
    **_by_full_name(
        AttentionClass("global", read_tower),
        "beit.BeitAttention",
        "dinov3_vit.DINOv3ViTAttention",
        "mlcd.MLCDAttention",
        "audio_spectrogram_transformer.ASTAttention",
    ),
    **_by_full_name(
        AttentionClass("sequence", read_sequence),
        "bert.BertSelfAttention",
        "distilbert.DistilBertSelfAttention",
        "roberta.RobertaSelfAttention",
        "xlm_roberta.XLMRobertaSelfAttention",
        "camembert.CamembertSelfAttention",
        "electra.ElectraSelfAttention",
        "mpnet.MPNetSelfAttention",
        "albert.AlbertAttention",
        "wav2vec2.Wav2Vec2Attention",
        "hubert.HubertAttention",
        "gpt2.GPT2Attention",
        "llama.LlamaAttention",
        "opt.OPTAttention",
        "t5.T5Attention",
        "mt5.MT5Attention",
        "umt5.UMT5Attention",
    ),
}
"""Classes of attention by full name."""
