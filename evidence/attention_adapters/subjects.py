"""Architectures of timm, transformers and torchvision whose attention is read, with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn


@dataclass(frozen=True)
class Subject:
    """An architecture, and what it is run on."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    draw: Callable[[], Any]
    note: str = ""
    refused: bool = False  # Whether it is expected to be refused


def _image(*size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(1, *size)


def _timm(name: str, *, refused: bool = False, **options: Any) -> Subject:
    def draw() -> Tensor:
        return torch.randn(1, *timm.get_pretrained_cfg(name).input_size)  # type: ignore[union-attr]

    depth = options.get("depth") or options.get("depths")
    note = f"depth {depth}" if depth else ""
    return Subject(name, "timm", lambda: timm.create_model(name, **options), draw, note, refused)


def _torchvision(name: str, side: int) -> Subject:
    return Subject(name, "torchvision", getattr(torchvision.models, name), _image(3, side, side))


def _transformers(
    name: str, config: str, draw: Callable[[], Any], part: str = "", **options: Any
) -> Subject:
    def build() -> nn.Module:
        made = getattr(transformers, name)(getattr(transformers, config)(**options))
        return made.get_submodule(part) if part else made

    sizes = []
    for word, names in _SIZES.items():
        size = next((options[name] for name in names if name in options), None)
        if size is not None:
            sizes.append(f"{word} {size}")
    whole = f"{name}.{part}" if part else name
    return Subject(whole, "transformers", build, draw, ", ".join(sizes))


def _tokens() -> Tensor:
    return torch.randint(5, 900, (1, 128))


_SIZES = {
    "depth": ("depths", "num_hidden_layers", "n_layers", "n_layer", "encoder_layers"),
    "width": ("hidden_size", "dim", "d_model", "n_embd"),
}
"""Options of configurations that say how large a network is."""

_TWO: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 768,
}
_224 = _image(3, 224, 224)

SUBJECTS: tuple[Subject, ...] = (
    _timm("vit_tiny_patch16_224", depth=2),
    _timm("vit_small_patch14_reg4_dinov2", depth=1),
    _timm("deit_tiny_distilled_patch16_224", depth=2),
    _timm("vit_small_r26_s32_224", depth=2),
    _timm("vit_relpos_small_patch16_224", depth=2),
    _timm("beit_base_patch16_224", depth=2),
    _timm("eva02_tiny_patch14_224", depth=2),
    _timm("vit_small_patch16_dinov3", depth=2),
    _timm("convit_tiny", depth=4, local_up_to_layer=2),
    _timm("cait_xxs24_224", depth=2),
    _timm("xcit_nano_12_p16_224", depth=2),
    _timm("pit_ti_224"),
    _timm("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2)),
    _timm("swinv2_tiny_window8_256", depths=(2, 2, 2, 2)),
    _timm("swinv2_cr_tiny_224", depths=(2, 2, 2, 2)),
    _timm("samvit_base_patch16_224", depth=3),
    _timm("pvt_v2_b0"),
    _timm("pvt_v2_b2_li", depths=(2, 2, 2, 2)),
    _timm("twins_svt_small", depths=(2, 2, 2, 2)),
    _timm("twins_pcpvt_small", depths=(1, 1, 1, 1)),
    _timm("mvitv2_tiny"),
    _timm("maxvit_pico_rw_256"),
    _timm("coatnet_0_rw_224"),
    _timm("tiny_vit_5m_224"),
    _timm("davit_tiny"),
    _timm("gcvit_xxtiny"),
    _timm("nest_tiny"),
    _timm("visformer_tiny"),
    _timm("fastvit_sa12"),
    _torchvision("vit_b_16", 224),
    _torchvision("swin_t", 224),
    _torchvision("swin_v2_t", 256),
    _torchvision("maxvit_t", 224),
    _transformers("ViTModel", "ViTConfig", _224, **_TWO),
    _transformers("DeiTModel", "DeiTConfig", _224, **_TWO),
    _transformers("BeitModel", "BeitConfig", _224, **_TWO),
    _transformers("Dinov2Model", "Dinov2Config", _224, image_size=224, **_TWO),
    _transformers(
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _224, image_size=224, **_TWO
    ),
    _transformers("DINOv3ViTModel", "DINOv3ViTConfig", _224, num_register_tokens=4, **_TWO),
    _transformers("CLIPVisionModel", "CLIPVisionConfig", _224, **_TWO),
    _transformers("SiglipVisionModel", "SiglipVisionConfig", _224, **_TWO),
    _transformers("SwinModel", "SwinConfig", _224, depths=[2] * 4),
    _transformers("Swinv2Model", "Swinv2Config", _224, depths=[2] * 4),
    _transformers("PvtModel", "PvtConfig", _224, depths=[1] * 4),
    _transformers("SegformerModel", "SegformerConfig", _image(3, 512, 512), depths=[1] * 4),
    _transformers("ASTModel", "ASTConfig", _image(1024, 128), **_TWO),
    _transformers("BertModel", "BertConfig", _tokens, **_TWO),
    _transformers("RobertaModel", "RobertaConfig", _tokens, **_TWO),
    _transformers(
        "DistilBertModel",
        "DistilBertConfig",
        _tokens,
        n_layers=2,
        dim=192,
        n_heads=3,
        hidden_dim=768,
    ),
    _transformers("Wav2Vec2Model", "Wav2Vec2Config", _image(16000), **_TWO),
    _transformers(
        "WhisperModel",
        "WhisperConfig",
        _image(80, 3000),
        "encoder",
        encoder_layers=2,
        decoder_layers=1,
    ),
    _transformers("GPT2Model", "GPT2Config", _tokens, n_layer=2, n_embd=192, n_head=3),
    _timm("edgenext_xx_small", refused=True),
    _timm("mobilevitv2_050", refused=True),
    _timm("efficientvit_b0", refused=True),
    _timm("volo_d1_224", refused=True),
    _timm("levit_128s", refused=True),
    _timm("coat_tiny", refused=True),
    _timm("poolformer_s12", refused=True),
    _timm("convnext_atto", refused=True),
)
