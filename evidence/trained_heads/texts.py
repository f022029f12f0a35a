"""Texts that every machine has: paragraphs of the docstrings of Python's standard library."""

import ast
import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

LENGTH = 32
"""Tokens of a text."""


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
