"""Small networks of every pattern of attention, and what is known about where their tokens lie."""

from collections.abc import Callable
from typing import Any, NamedTuple

import timm
import torch
from tests.adapters.vit_cases import vit
from torch import nn

from convattn.layers import GatedRelativeAttention2d, RelativeAttention1d, RelativeAttention2d
from convattn.models import AttentionNet


class Case(NamedTuple):
    """A network, and one of its attention layers to look at closely."""

    build: Callable[[], nn.Module]
    size: tuple[int, ...]  # Size of an image
    layer: str  # Name of the layer
    pattern: str
    grid: tuple[int, ...]
    prefix: int = 0
    moved: str | None = None  # Module whose input is a grid of tokens; None: patches of the image are moved
    exact: bool = True  # Whether a token depends on one position alone
    normalised: bool = True


def timm_model(name, **options):
    def build():
        torch.manual_seed(0)
        return timm.create_model(name, **options)

    return build


def pure_content(name, **options):
    """ConViT or CaiT with heads that do not mix with one another or with position, so that tokens can be located."""

    def build():
        network = timm_model(name, **options)()
        for module in network.modules():
            if hasattr(module, "gating_param"):
                nn.init.constant_(module.gating_param, -1e4)
            for part in ("proj_l", "proj_w"):
                if hasattr(module, part):
                    nn.init.eye_(getattr(module, part).weight)
                    nn.init.zeros_(getattr(module, part).bias)
        return network

    return build


def swin(family, grid, window, **options):
    size = tuple(4 * side for side in grid)
    widths = {"embed_dim": 12, "depths": (2,), "num_heads": (2,)}
    return timm_model(family, img_size=size, window_size=window, **{**widths, **options})


def transformers_model(kind, config=None, part=None, **options):
    def build():
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, f"{kind}Model")(getattr(transformers, config or f"{kind}Config")(**options))
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
        block = swin_transformer.SwinTransformerBlockV2 if version == 2 else swin_transformer.SwinTransformerBlock
        return swin_transformer.SwinTransformer([4, 4], 12, [2], [2], [window, window], block=block, num_classes=3)

    return build


def own(kind, *arguments, **options):
    def build():
        torch.manual_seed(0)
        return kind(*arguments, **options)

    return build


def tiny_vit_of_timm(**options):
    return lambda: vit(**{"embed_dim": 12, "num_heads": 3, "depth": 1, **options})


def pooled_queries():
    torch.manual_seed(0)
    sizes = timm.models.mvitv2.MultiScaleVitCfg(
        depths=(1, 1), embed_dim=12, stride_q=((1, 1), (2, 2)), stride_kv_adaptive=(2, 2)
    )
    return timm.models.MultiScaleVit(sizes, img_size=64, num_classes=3)


TOWER = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 16}
IMAGE = {"image_size": (20, 28), "patch_size": 4}
SQUARE = {"image_size": 20, "patch_size": 4}
TEXT = {"vocab_size": 97, **TOWER}
BLOCK = "blocks.0"
SWIN = "layers.0.blocks.1"

TIMM = {
    "no prefix": Case(
        tiny_vit_of_timm(class_token=False, global_pool="avg"), (3, 20, 28), "blocks.0.attn", "global", (5, 7)
    ),
    "class token": Case(tiny_vit_of_timm(), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 1),
    "q and k normalised": Case(tiny_vit_of_timm(qk_norm=True), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 1),
    "distilled": Case(
        timm_model("deit_tiny_distilled_patch16_224", depth=1, img_size=(80, 112)),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
        2,
    ),
    "registers": Case(tiny_vit_of_timm(reg_tokens=4), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 5),
    "other size": Case(tiny_vit_of_timm(dynamic_img_size=True), (3, 28, 12), "blocks.0.attn", "global", (7, 3), 1),
    "relative bias": Case(
        timm_model("beit_base_patch16_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
        1,
    ),
    "relative positions": Case(
        timm_model("vit_relpos_small_patch16_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
    ),
    "rotary": Case(
        timm_model("eva02_tiny_patch14_224", depth=1, img_size=(70, 98)),
        (3, 70, 98),
        "blocks.0.attn",
        "global",
        (5, 7),
        1,
    ),
    "rotary, registers": Case(
        timm_model("vit_small_patch16_dinov3", depth=1, img_size=(80, 112), embed_dim=48, num_heads=3),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
        5,
    ),
    "gated positional": Case(
        pure_content("convit_tiny", depth=1, img_size=80, local_up_to_layer=1),
        (3, 80, 80),
        "blocks.0.attn",
        "global",
        (5, 5),
    ),
    "talking heads": Case(
        pure_content("cait_xxs24_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
    ),
    "class attention": Case(
        timm_model("cait_xxs24_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3),
        (3, 80, 112),
        "blocks_token_only.0.attn",
        "class token",
        (5, 7),
        1,
        moved="blocks_token_only.0",
    ),
    "stages with tokens": Case(
        timm_model("pit_ti_224", img_size=80),
        (3, 80, 80),
        "transformers.0.blocks.0.attn",
        "global",
        (9, 9),
        1,
        exact=False,
    ),
    "windows": Case(
        swin("swin_tiny_patch4_window7_224", (8, 12), 4),
        (3, 32, 48),
        "layers.0.blocks.0.attn",
        "windows",
        (8, 12),
        moved="layers.0.blocks.0",
    ),
    "shifted windows": Case(
        swin("swin_tiny_patch4_window7_224", (8, 12), 4),
        (3, 32, 48),
        f"{SWIN}.attn",
        "shifted windows",
        (8, 12),
        moved=SWIN,
    ),
    "shifted windows, padded": Case(
        swin("swin_tiny_patch4_window7_224", (7, 10), 4),
        (3, 28, 40),
        f"{SWIN}.attn",
        "shifted windows",
        (7, 10),
        moved=SWIN,
    ),
    "shifted along one axis": Case(
        swin("swin_tiny_patch4_window7_224", (4, 12), 4),
        (3, 16, 48),
        f"{SWIN}.attn",
        "shifted windows",
        (4, 12),
        moved=SWIN,
    ),
    "cosine windows": Case(
        swin("swinv2_tiny_window8_256", (8, 12), 4), (3, 32, 48), f"{SWIN}.attn", "shifted windows", (8, 12), moved=SWIN
    ),
    "cosine windows, cr": Case(
        swin("swinv2_cr_tiny_224", (8, 12), 4),
        (3, 32, 48),
        "stages.0.blocks.1.attn",
        "shifted windows",
        (8, 12),
        moved="stages.0.blocks.1",
    ),
    "padded windows": Case(
        timm_model("samvit_base_patch16_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3, window_size=3),
        (3, 80, 112),
        "blocks.0.attn",
        "windows",
        (5, 7),
        moved="blocks.0",
    ),
    "local groups": Case(
        timm_model("twins_svt_small", depths=(2, 1, 1, 1), img_size=32),
        (3, 32, 40),
        "blocks.0.0.attn",
        "windows",
        (8, 10),
        moved="blocks.0.0.attn",
    ),
    "sub-sampled keys": Case(
        timm_model("twins_svt_small", depths=(2, 1, 1, 1), img_size=32),
        (3, 64, 64),
        "blocks.0.1.attn",
        "reduced keys",
        (16, 16),
        moved="blocks.0.1.attn",
    ),
    "reduced keys": Case(
        timm_model("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)),
        (3, 64, 96),
        "stages.0.blocks.0.attn",
        "reduced keys",
        (16, 24),
        moved="stages.0.blocks.0.attn",
    ),
    "pooled keys": Case(
        timm_model("pvt_v2_b2_li", depths=(1, 1, 1, 1), embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)),
        (3, 56, 84),
        "stages.0.blocks.0.attn",
        "reduced keys",
        (14, 21),
        moved="stages.0.blocks.0.attn",
    ),
    "pooled queries": Case(
        pooled_queries,
        (3, 64, 64),
        "stages.1.blocks.0.attn",
        "pooled queries",
        (8, 8),
        moved="stages.1.blocks.0.attn",
        exact=False,
    ),
    "sparse grid": Case(
        timm_model("maxvit_pico_rw_256", img_size=64),
        (3, 64, 64),
        "stages.0.blocks.0.attn_grid.attn",
        "grid",
        (16, 16),
        moved="stages.0.blocks.0.attn_grid",
    ),
    "partition windows": Case(
        timm_model("maxvit_pico_rw_256", img_size=64),
        (3, 64, 64),
        "stages.0.blocks.0.attn_block.attn",
        "windows",
        (16, 16),
        moved="stages.0.blocks.0.attn_block",
    ),
    "heads before blocks": Case(
        timm_model("nest_tiny", img_size=64),
        (3, 64, 64),
        "levels.0.transformer_encoder.0.attn",
        "windows",
        (16, 16),
    ),
    "channels first": Case(
        timm_model("visformer_tiny", img_size=64),
        (3, 64, 64),
        "stage2.0.attn",
        "global",
        (4, 4),
        moved="stage2.0.attn",
    ),
}
OTHERS = {
    "transformers ViT": Case(
        transformers_model("ViT", **TOWER, **IMAGE), (3, 20, 28), "layers.0.attention", "global", (5, 7), 1
    ),
    "transformers DeiT": Case(
        transformers_model("DeiT", **TOWER, **IMAGE), (3, 20, 28), "layers.0.attention", "global", (5, 7), 2
    ),
    "transformers BEiT": Case(
        transformers_model("Beit", **TOWER, **IMAGE), (3, 20, 28), "layers.0.attention", "global", (5, 7), 1
    ),
    "DINOv2": Case(
        transformers_model("Dinov2", **TOWER, **SQUARE), (3, 20, 20), "encoder.layer.0.attention", "global", (5, 5), 1
    ),
    "DINOv2 with registers": Case(
        transformers_model("Dinov2WithRegisters", **TOWER, **SQUARE),
        (3, 20, 20),
        "encoder.layer.0.attention",
        "global",
        (5, 5),
        5,
    ),
    "DINOv3": Case(
        transformers_model("DINOv3ViT", **{**TOWER, "hidden_size": 24}, **SQUARE, num_register_tokens=4),
        (3, 20, 28),
        "model.layer.0.attention",
        "global",
        (5, 7),
        5,
    ),
    "CLIP": Case(
        transformers_model("CLIPVision", **TOWER, **SQUARE),
        (3, 20, 20),
        "encoder.layers.0.self_attn",
        "global",
        (5, 5),
        1,
    ),
    "SigLIP": Case(
        transformers_model("SiglipVision", **TOWER, **SQUARE),
        (3, 20, 20),
        "encoder.layers.0.self_attn",
        "global",
        (5, 5),
    ),
    "transformers Swin": Case(
        transformers_model("Swin", embed_dim=12, depths=[2], num_heads=[2], image_size=(28, 40), window_size=4),
        (3, 28, 40),
        "encoder.layers.0.blocks.1.attention",
        "shifted windows",
        (7, 10),
        moved="encoder.layers.0.blocks.1",
    ),
    "transformers Swin v2": Case(
        transformers_model("Swinv2", embed_dim=12, depths=[2], num_heads=[2], image_size=(28, 40), window_size=4),
        (3, 28, 40),
        "encoder.layers.0.blocks.1.attention.self",
        "shifted windows",
        (7, 10),
        moved="encoder.layers.0.blocks.1",
    ),
    "transformers PVT": Case(
        transformers_model("Pvt", image_size=64, depths=[1] * 4, hidden_sizes=[8] * 4, num_attention_heads=[1] * 4),
        (3, 64, 64),
        "encoder.block.0.0.attention.self",
        "reduced keys",
        (16, 16),
        moved="encoder.block.0.0.attention.self",
    ),
    "Segformer": Case(
        transformers_model("Segformer", depths=[1] * 4, hidden_sizes=[8] * 4, num_attention_heads=[1] * 4),
        (3, 64, 96),
        "stages.0.blocks.0.attention",
        "reduced keys",
        (16, 24),
        moved="stages.0.blocks.0.attention",
    ),
    "audio spectrogram": Case(
        transformers_model(
            "AST", **TOWER, patch_size=4, frequency_stride=4, time_stride=4, max_length=28, num_mel_bins=20
        ),
        (28, 20),
        "layers.0.attention",
        "global",
        (5, 7),
        2,
        moved="layers.0",
    ),
    "torchvision ViT": Case(
        torchvision_model(
            "VisionTransformer", image_size=20, patch_size=4, num_layers=1, num_heads=3, hidden_dim=12, mlp_dim=16
        ),
        (3, 20, 20),
        "encoder.layers.encoder_layer_0.self_attention",
        "global",
        (5, 5),
        1,
    ),
    "torchvision Swin": Case(
        torchvision_swin(1, 4), (3, 28, 40), "features.1.1.attn", "shifted windows", (7, 10), moved="features.1.1"
    ),
    "torchvision Swin v2": Case(
        torchvision_swin(2, 4), (3, 28, 40), "features.1.1.attn", "shifted windows", (7, 10), moved="features.1.1"
    ),
    "torchvision MaxViT": Case(
        torchvision_model(
            "MaxVit",
            input_size=(32, 32),
            stem_channels=8,
            partition_size=4,
            block_channels=[8],
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
TEXTS = {
    "BERT": (transformers_model("Bert", **TEXT), "encoder.layer.0.attention.self", False),
    "RoBERTa": (transformers_model("Roberta", **TEXT), "encoder.layer.0.attention.self", False),
    "DistilBERT": (
        transformers_model("DistilBert", vocab_size=97, dim=12, n_layers=1, n_heads=3, hidden_dim=16),
        "transformer.layer.0.attention",
        False,
    ),
    "CLIP text": (
        transformers_model("CLIPText", **TEXT, bos_token_id=1, eos_token_id=2),
        "encoder.layers.0.self_attn",
        True,
    ),
    "GPT-2": (
        transformers_model("GPT2", vocab_size=97, n_embd=12, n_layer=1, n_head=3, bos_token_id=1, eos_token_id=2),
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
    "quadratic": (own(RelativeAttention2d, 3, 5, 4, "quadratic", kernel_size=3, padding=1), (3, 5, 7)),
    "content": (own(RelativeAttention2d, 3, 5, 4, "quadratic", content=True, kernel_size=3, padding=1), (3, 5, 7)),
    "strided": (own(RelativeAttention2d, 3, 5, 4, "quadratic", kernel_size=3, stride=2), (3, 7, 11)),
    "gated": (own(GatedRelativeAttention2d, 3, 5, 4, "quadratic"), (3, 5, 7)),
    "sequence": (own(RelativeAttention1d, 3, 5, 4, "distance"), (3, 11)),
    "the paper's network": (own(AttentionNet, width=18, depth=2, ffn=16), (3, 10, 14)),
}
