"""Small networks of timm with every pattern of attention, and what is known about where their tokens lie."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
from tests.heads.vit_cases import vit
from timm.models import naflexvit
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


def patches(build, side, prefix=0, *, layer="blocks.0.attn", grid=(5, 7)):
    """A network whose layer sees all patches of an image, of some pixels a side, after prefix tokens."""
    size = (3, side * grid[0], side * grid[1])
    return Case(build, size, layer, "global", grid, prefix)


def windows(build, size, block, pattern, grid, *, part="attn"):
    """A network one of whose blocks is given a grid of tokens and attends in parts of it."""
    return Case(build, size, f"{block}.{part}", pattern, grid, moved=block)


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


def any_size():
    torch.manual_seed(0)
    widths = {"embed_dim": 12, "depth": 1, "num_heads": 3, "patch_size": 4, "reg_tokens": 2}
    return naflexvit.NaFlexVit(naflexvit.NaFlexVitCfg(**widths), num_classes=3)


SWIN = "layers.0.blocks.1"

STAGES = {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8), "num_heads": (1, 1, 1, 1)}
NARROW = {"depth": 1, "img_size": (80, 112), "embed_dim": 24, "num_heads": 3}

TIMM = {
    "no prefix": patches(tiny_vit_of_timm(class_token=False, global_pool="avg"), 4),
    "class token": patches(tiny_vit_of_timm(), 4, 1),
    "q and k normalised": patches(tiny_vit_of_timm(qk_norm=True), 4, 1),
    "distilled": patches(
        timm_model("deit_tiny_distilled_patch16_224", depth=1, img_size=(80, 112)), 16, 2
    ),
    "registers": patches(tiny_vit_of_timm(reg_tokens=4), 4, 5),
    "other size": patches(tiny_vit_of_timm(dynamic_img_size=True), 4, 1, grid=(7, 3)),
    "any size, patches by a linear map": patches(any_size, 4, 2),
    "relative bias": patches(timm_model("beit_base_patch16_224", **NARROW), 16, 1),
    "relative positions": patches(timm_model("vit_relpos_small_patch16_224", **NARROW), 16),
    "rotary": patches(timm_model("eva02_tiny_patch14_224", depth=1, img_size=(70, 98)), 14, 1),
    "rotary, registers": patches(
        timm_model("vit_small_patch16_dinov3", **NARROW | {"embed_dim": 48}), 16, 5
    ),
    "gated positional": patches(
        pure_content("convit_tiny", depth=1, img_size=80, local_up_to_layer=1), 16, grid=(5, 5)
    ),
    "talking heads": patches(pure_content("cait_xxs24_224", **NARROW), 16),
    "class attention": Case(
        timm_model("cait_xxs24_224", **NARROW),
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
    "windows": windows(
        swin("swin_tiny_patch4_window7_224", (8, 12), 4),
        (3, 32, 48),
        "layers.0.blocks.0",
        "windows",
        (8, 12),
    ),
    "shifted windows": windows(
        swin("swin_tiny_patch4_window7_224", (8, 12), 4),
        (3, 32, 48),
        SWIN,
        "shifted windows",
        (8, 12),
    ),
    "shifted windows, padded": windows(
        swin("swin_tiny_patch4_window7_224", (7, 10), 4),
        (3, 28, 40),
        SWIN,
        "shifted windows",
        (7, 10),
    ),
    "shifted along one axis": windows(
        swin("swin_tiny_patch4_window7_224", (4, 12), 4),
        (3, 16, 48),
        SWIN,
        "shifted windows",
        (4, 12),
    ),
    "cosine windows": windows(
        swin("swinv2_tiny_window8_256", (8, 12), 4), (3, 32, 48), SWIN, "shifted windows", (8, 12)
    ),
    "cosine windows, cr": windows(
        swin("swinv2_cr_tiny_224", (8, 12), 4),
        (3, 32, 48),
        "stages.0.blocks.1",
        "shifted windows",
        (8, 12),
    ),
    "padded windows": windows(
        timm_model("samvit_base_patch16_224", **NARROW, window_size=3),
        (3, 80, 112),
        "blocks.0",
        "windows",
        (5, 7),
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
        timm_model("pvt_v2_b0", **STAGES),
        (3, 64, 96),
        "stages.0.blocks.0.attn",
        "reduced keys",
        (16, 24),
        moved="stages.0.blocks.0.attn",
    ),
    "pooled keys": Case(
        timm_model("pvt_v2_b2_li", **STAGES),
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
    "sparse grid": windows(
        timm_model("maxvit_pico_rw_256", img_size=64),
        (3, 64, 64),
        "stages.0.blocks.0.attn_grid",
        "grid",
        (16, 16),
    ),
    "partition windows": windows(
        timm_model("maxvit_pico_rw_256", img_size=64),
        (3, 64, 64),
        "stages.0.blocks.0.attn_block",
        "windows",
        (16, 16),
    ),
    "both partitions at once": windows(
        timm_model(
            "maxvit_tiny_pm_256", img_size=64, depths=(1, 1, 1, 1), embed_dim=(64, 64, 64, 64)
        ),
        (3, 64, 64),
        "stages.0.blocks.0.attn",
        "grid",
        (16, 16),
        part="attn_grid",
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
