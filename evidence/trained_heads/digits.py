"""Clips of spoken digits of thirty seconds, and how well they are recognised."""

import io
import random
import re
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import optional_module

RATE = 16_000
SECONDS = 30
GAP = 0.2
"""Seconds of silence between two digits."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_START, _NO_TIMES, _END = 50257, 50362, 50256
_LONGEST = 60
"""Tokens of a transcript at most."""


class Clip(NamedTuple):
    """Thirty seconds of one speaker."""

    features: Float[Tensor, "mel frames"]
    digits: tuple[int, ...]


def clips(folder: Path, takes: Sequence[int], count: int, most: int = 100) -> list[Clip]:
    """Makes clips of `most` digits, or as many as fit, from some of the eight takes of each digit and speaker."""
    parquet = optional_module("pyarrow.parquet", "parquet").parquet
    signal = optional_module("scipy.signal", "study").signal
    transformers = optional_module("transformers", "transformers")
    extract = transformers.WhisperFeatureExtractor(feature_size=80)
    spoken: dict[str, list[tuple[int, np.ndarray]]] = {}
    heard: dict[tuple[str, int], int] = {}
    for row in parquet.read_table(folder / "spoken-digits.parquet").to_pylist():
        key = (row["speaker"], row["label"])
        take = heard[key] = heard.get(key, -1) + 1
        if take in takes:
            with wave.open(io.BytesIO(row["audio"]["bytes"])) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
            sound = signal.resample_poly(samples / 2**15, RATE, file.getframerate())
            spoken.setdefault(row["speaker"], []).append((row["label"], sound))
    speakers = sorted(spoken)
    return [_clip(spoken[speakers[n % len(speakers)]], n, most, extract) for n in range(count)]


def _clip(recordings: list[tuple[int, np.ndarray]], seed: int, most: int, extract: Any) -> Clip:
    """Strings recordings together while they fit."""
    draw = random.Random(seed)
    silence = np.zeros(int(GAP * RATE))
    sounds: list[np.ndarray] = []
    digits: list[int] = []
    length = 0
    while len(digits) < most:
        digit, sound = draw.choice(recordings)
        if length + len(sound) + len(silence) > SECONDS * RATE:
            break
        sounds += [sound, silence]
        digits.append(digit)
        length += len(sound) + len(silence)
    features = extract(np.concatenate(sounds), sampling_rate=RATE, return_tensors="pt")
    return Clip(features.input_features[0], tuple(digits))


@torch.inference_mode()
def transcribe(network: Any, states: Float[Tensor, "1 frames width"]) -> list[int]:
    """Decodes greedily, without timestamps and without the tokens that the network's settings keep out."""
    settings = network.generation_config
    tokens: list[int] = []
    cache = None
    given = [_START, _NO_TIMES]
    while len(tokens) < _LONGEST:
        out = network.model.decoder(
            input_ids=torch.tensor([given]),
            encoder_hidden_states=states,
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        scores = network.proj_out(out.last_hidden_state[0, -1])
        scores[_START:] = -torch.inf
        scores[settings.suppress_tokens] = -torch.inf
        if not tokens:
            scores[settings.begin_suppress_tokens] = -torch.inf
        token = int(scores.argmax())
        if token == _END:
            break
        tokens.append(token)
        given = [token]
    return tokens


def heard_digits(text: str) -> list[int]:
    """Reads the digits of a transcript, written as words or as numbers."""
    found = []
    for part in re.findall(r"\d|[a-z]+", text.lower()):
        if part.isdigit():
            found.append(int(part))
        elif part in WORDS:
            found.append(WORDS.index(part))
    return found


def mistakes(heard: Sequence[int], said: Sequence[int]) -> int:
    """Counts the least number of digits to change, add or leave out (Levenshtein)."""
    row = list(range(len(said) + 1))
    for place, one in enumerate(heard, start=1):
        last, row[0] = row[0], place
        for number, other in enumerate(said, start=1):
            cost = last + (one != other)
            last = row[number]
            row[number] = min(cost, last + 1, row[number - 1] + 1)
    return row[-1]
