"""Small networks of timm with every pattern of attention, and what is known about where their tokens lie."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
from tests.heads.vit_cases import vit
from torch import nn


class Case(NamedTuple):
    """A network, and one of its attention layers to look at closely."""

    build: Callable[[], nn.Module]
    size: tuple[int, ...]  # Size of an image
    layer: str  # Name of the layer
    pattern: str
    grid: tuple[int, ...]
    prefix: int = 0
    moved: str | None = (
        None  # Module whose input is a grid of tokens; None: patches of the image are moved
    )
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


def tiny_vit_of_timm(**options):
    return lambda: vit(**{"embed_dim": 12, "num_heads": 3, "depth": 1, **options})


def pooled_queries():
    torch.manual_seed(0)
    sizes = timm.models.mvitv2.MultiScaleVitCfg(
        depths=(1, 1), embed_dim=12, stride_q=((1, 1), (2, 2)), stride_kv_adaptive=(2, 2)
    )
    return timm.models.MultiScaleVit(sizes, img_size=64, num_classes=3)


SWIN = "layers.0.blocks.1"

TIMM = {
    "no prefix": Case(
        tiny_vit_of_timm(class_token=False, global_pool="avg"),
        (3, 20, 28),
        "blocks.0.attn",
        "global",
        (5, 7),
    ),
    "class token": Case(tiny_vit_of_timm(), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 1),
    "q and k normalised": Case(
        tiny_vit_of_timm(qk_norm=True), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 1
    ),
    "distilled": Case(
        timm_model("deit_tiny_distilled_patch16_224", depth=1, img_size=(80, 112)),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
        2,
    ),
    "registers": Case(
        tiny_vit_of_timm(reg_tokens=4), (3, 20, 28), "blocks.0.attn", "global", (5, 7), 5
    ),
    "other size": Case(
        tiny_vit_of_timm(dynamic_img_size=True), (3, 28, 12), "blocks.0.attn", "global", (7, 3), 1
    ),
    "relative bias": Case(
        timm_model("beit_base_patch16_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3),
        (3, 80, 112),
        "blocks.0.attn",
        "global",
        (5, 7),
        1,
    ),
    "relative positions": Case(
        timm_model(
            "vit_relpos_small_patch16_224", depth=1, img_size=(80, 112), embed_dim=24, num_heads=3
        ),
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
        timm_model(
            "vit_small_patch16_dinov3", depth=1, img_size=(80, 112), embed_dim=48, num_heads=3
        ),
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
        timm_model("pit_ti_224", img_size=(80, 112)),
        (3, 80, 112),
        "transformers.0.blocks.0.attn",
        "global",
        (9, 13),
        1,
        moved="pos_drop",
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
        swin("swinv2_tiny_window8_256", (8, 12), 4),
        (3, 32, 48),
        f"{SWIN}.attn",
        "shifted windows",
        (8, 12),
        moved=SWIN,
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
        timm_model(
            "samvit_base_patch16_224",
            depth=1,
            img_size=(80, 112),
            embed_dim=24,
            num_heads=3,
            window_size=3,
        ),
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
        timm_model(
            "pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)
        ),
        (3, 64, 96),
        "stages.0.blocks.0.attn",
        "reduced keys",
        (16, 24),
        moved="stages.0.blocks.0.attn",
    ),
    "pooled keys": Case(
        timm_model(
            "pvt_v2_b2_li", depths=(1, 1, 1, 1), embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)
        ),
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
    "both partitions at once": Case(
        timm_model(
            "maxvit_tiny_pm_256", img_size=64, depths=(1, 1, 1, 1), embed_dim=(64, 64, 64, 64)
        ),
        (3, 64, 64),
        "stages.0.blocks.0.attn.attn_grid",
        "grid",
        (16, 16),
        moved="stages.0.blocks.0.attn",
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
