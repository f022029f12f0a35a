"""Small networks of transformers, torchvision and this library, and what is known about where their tokens lie."""

from typing import Any

import pytest
import torch
from tests.heads.attention_cases import TIMM, Case, patches, windows

from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.models import AttentionNet


def transformers_model(kind, config=None, part=None, **options):
    def build():
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, f"{kind}Model")(
            getattr(transformers, config or f"{kind}Config")(**options)
        )
        return made if part is None else made.get_submodule(part)

    return build


def torchvision_model(kind, **options):
    def build():
        import torchvision

        torch.manual_seed(0)
        return getattr(torchvision.models, kind)(**options)

    return build


def torchvision_swin(version, window):
    def build():
        from torchvision.models import swin_transformer

        torch.manual_seed(0)
        block = (
            swin_transformer.SwinTransformerBlockV2
            if version == 2
            else swin_transformer.SwinTransformerBlock
        )
        return swin_transformer.SwinTransformer(
            [4, 4], 12, [2], [2], [window, window], block=block, num_classes=3
        )

    return build


def own(kind, *arguments, **options):
    def build():
        torch.manual_seed(0)
        return kind(*arguments, **options)

    return build


def sam(kind):
    """An encoder of SAM, with windows of 3 × 3 on 5 × 5 patches."""
    build = transformers_model(
        kind,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        image_size=80,
        window_size=3,
        global_attn_indexes=[],
        mlp_dim=16,
        output_channels=8,
        initializer_range=0.3,
    )
    return windows(build, (3, 80, 80), "vision_encoder.layers.0", "windows", (5, 5))


TOWER = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 16,
}
IMAGE = {"image_size": (20, 28), "patch_size": 4}
SQUARE = {"image_size": 20, "patch_size": 4}
TEXT = {"vocab_size": 97, **TOWER}
LAYER = "layers.0.attention"
OTHERS = {
    "transformers ViT": patches(transformers_model("ViT", **TOWER, **IMAGE), 4, 1, layer=LAYER),
    "transformers DeiT": patches(transformers_model("DeiT", **TOWER, **IMAGE), 4, 2, layer=LAYER),
    "transformers BEiT": patches(transformers_model("Beit", **TOWER, **IMAGE), 4, 1, layer=LAYER),
    "DINOv2": patches(
        transformers_model("Dinov2", **TOWER, **SQUARE),
        4,
        1,
        layer="encoder.layer.0.attention",
        grid=(5, 5),
    ),
    "DINOv2 with registers": patches(
        transformers_model("Dinov2WithRegisters", **TOWER, **SQUARE),
        4,
        5,
        layer="encoder.layer.0.attention",
        grid=(5, 5),
    ),
    "DINOv3": patches(
        transformers_model(
            "DINOv3ViT", **TOWER | {"hidden_size": 24}, **SQUARE, num_register_tokens=4
        ),
        4,
        5,
        layer="model.layer.0.attention",
    ),
    "CLIP": patches(
        transformers_model("CLIPVision", **TOWER, **SQUARE),
        4,
        1,
        layer="encoder.layers.0.self_attn",
        grid=(5, 5),
    ),
    "SigLIP": patches(
        transformers_model("SiglipVision", **TOWER, **SQUARE),
        4,
        layer="encoder.layers.0.self_attn",
        grid=(5, 5),
    ),
    "transformers Swin": windows(
        transformers_model(
            "Swin", embed_dim=12, depths=[2], num_heads=[2], image_size=(28, 40), window_size=4
        ),
        (3, 28, 40),
        "encoder.layers.0.blocks.1",
        "shifted windows",
        (7, 10),
        part="attention",
    ),
    "transformers Swin v2": windows(
        transformers_model(
            "Swinv2", embed_dim=12, depths=[2], num_heads=[2], image_size=(28, 40), window_size=4
        ),
        (3, 28, 40),
        "encoder.layers.0.blocks.1",
        "shifted windows",
        (7, 10),
        part="attention.self",
    ),
    "transformers SAM": sam("SamVision"),
    "transformers SAM-HQ": sam("SamHQVision"),
    "transformers PVT": Case(
        transformers_model(
            "Pvt", image_size=64, depths=[1] * 4, hidden_sizes=[8] * 4, num_attention_heads=[1] * 4
        ),
        (3, 64, 64),
        "encoder.block.0.0.attention.self",
        "reduced keys",
        (16, 16),
        moved="encoder.block.0.0.attention.self",
    ),
    "Segformer": Case(
        transformers_model(
            "Segformer", depths=[1] * 4, hidden_sizes=[8] * 4, num_attention_heads=[1] * 4
        ),
        (3, 64, 96),
        "stages.0.blocks.0.attention",
        "reduced keys",
        (16, 24),
        moved="stages.0.blocks.0.attention",
    ),
    "audio spectrogram": Case(
        transformers_model(
            "AST",
            **TOWER,
            patch_size=4,
            frequency_stride=4,
            time_stride=4,
            max_length=28,
            num_mel_bins=20,
        ),
        (28, 20),
        "layers.0.attention",
        "global",
        (5, 7),
        2,
        moved="layers.0",
    ),
    "torchvision ViT": patches(
        torchvision_model(
            "VisionTransformer",
            image_size=20,
            patch_size=4,
            num_layers=1,
            num_heads=3,
            hidden_dim=12,
            mlp_dim=16,
        ),
        4,
        1,
        layer="encoder.layers.encoder_layer_0.self_attention",
        grid=(5, 5),
    ),
    "torchvision Swin": windows(
        torchvision_swin(1, 4),
        (3, 28, 40),
        "features.1.1",
        "shifted windows",
        (7, 10),
    ),
    "torchvision Swin v2": windows(
        torchvision_swin(2, 4),
        (3, 28, 40),
        "features.1.1",
        "shifted windows",
        (7, 10),
    ),
    "torchvision MaxViT": Case(
        torchvision_model(
            "MaxVit",
            input_size=(32, 32),
            stem_channels=8,
            partition_size=4,
            block_channels=[12],
            block_layers=[1],
            head_dim=4,
            stochastic_depth_prob=0.0,
        ),
        (3, 32, 32),
        "blocks.0.layers.0.layers.grid_attention.attn_layer.1",
        "grid",
        (8, 8),
        moved="blocks.0.layers.0.layers.grid_attention",
    ),
}
SLOW = (
    "reduced keys",
    "pooled keys",
    "pooled queries",
    "sparse grid",
    "partition windows",
    "heads before blocks",
    "stages with tokens",
    "cosine windows, cr",
    "sub-sampled keys",
    "Segformer",
    "q and k normalised",
    "distilled",
    "other size",
    "relative positions",
    "rotary, registers",
    "cosine windows",
    "both partitions at once",
    "transformers DeiT",
    "transformers BEiT",
    "DINOv2",
    "DINOv3",
    "SigLIP",
    "transformers Swin v2",
    "transformers SAM-HQ",
    "transformers PVT",
    "torchvision Swin v2",
    "torchvision MaxViT",
)
"""Cases whose like is among the quick ones: their tokens are moved one by one in slow tests only."""
ALL = {**TIMM, **OTHERS}
CASES = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, case in ALL.items()
]
TEXTS = {
    "BERT": (transformers_model("Bert", **TEXT), "encoder.layer.0.attention.self", False),
    "RoBERTa": (transformers_model("Roberta", **TEXT), "encoder.layer.0.attention.self", False),
    "DistilBERT": (
        transformers_model(
            "DistilBert", vocab_size=97, dim=12, n_layers=1, n_heads=3, hidden_dim=16
        ),
        "transformer.layer.0.attention",
        False,
    ),
    "T5": (
        transformers_model(
            "T5Encoder",
            "T5Config",
            vocab_size=97,
            d_model=12,
            d_kv=4,
            d_ff=16,
            num_layers=1,
            num_heads=3,
        ),
        "encoder.block.0.layer.0.SelfAttention",
        False,
    ),
    "CLIP text": (
        transformers_model("CLIPText", **TEXT, bos_token_id=1, eos_token_id=2),
        "encoder.layers.0.self_attn",
        True,
    ),
    "GPT-2": (
        transformers_model(
            "GPT2", vocab_size=97, n_embd=12, n_layer=1, n_head=3, bos_token_id=1, eos_token_id=2
        ),
        "h.0.attn",
        True,
    ),
    "Llama": (
        transformers_model("Llama", **{**TEXT, "num_attention_heads": 6}, num_key_value_heads=3),
        "layers.0.self_attn",
        True,
    ),
}
"""Builder, layer and whether it is causal."""
AUDIO = {
    "Wav2Vec2": (
        transformers_model("Wav2Vec2", **TOWER, conv_dim=[8] * 7, num_conv_pos_embedding_groups=3),
        (4000,),
        "encoder.layers.0.attention",
        12,
    ),
    "Whisper encoder": (
        transformers_model(
            "Whisper",
            part="encoder",
            d_model=12,
            encoder_layers=1,
            encoder_attention_heads=3,
            encoder_ffn_dim=16,
            decoder_layers=1,
            decoder_attention_heads=3,
            decoder_ffn_dim=16,
            max_source_positions=13,
            num_mel_bins=5,
        ),
        (5, 26),
        "layers.0.self_attn",
        13,
    ),
}
OWN: dict[str, tuple[Any, tuple[int, ...]]] = {
    "quadratic": (
        own(RelativeAttention2d, 3, 5, num_heads=4, encoding="quadratic", kernel_size=3, padding=1),
        (3, 5, 7),
    ),
    "content": (
        own(
            RelativeAttention2d,
            3,
            5,
            num_heads=4,
            encoding="quadratic",
            content=True,
            kernel_size=3,
            padding=1,
        ),
        (3, 5, 7),
    ),
    "strided": (
        own(RelativeAttention2d, 3, 5, num_heads=4, encoding="quadratic", kernel_size=3, stride=2),
        (3, 7, 11),
    ),
    "gated": (
        own(RelativeAttention2d, 3, 5, num_heads=4, encoding="quadratic", gate="sigmoid"),
        (3, 5, 7),
    ),
    "sequence": (own(RelativeAttention1d, 3, 5, num_heads=4, encoding="distance"), (3, 11)),
    "the paper's network": (own(AttentionNet, width=18, depth=2, ffn=16), (3, 10, 14)),
}
