"""Notes of a melody and a chord: Basic Pitch, which ships as ONNX."""

from collections.abc import Mapping

import torch
from torch import Tensor

from evidence.real_weights.onnx_networks import ONNX2TORCH, read_network
from evidence.real_weights.task import Found, Network, Package, Subject, Task
from evidence.runtimes import onnx_runtime

BASIC_PITCH = Package("basic-pitch", "basic_pitch", "Apache-2.0")

_RATE, _SAMPLES = 22050, 43844
_LOWEST, _PIANO = 21, ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")
_MELODY = ((60,), (64,), (67,), (60, 64, 67))
_ONSET, _FRAME = 0.5, 0.3
"""The thresholds of `basic_pitch.inference.predict`."""

_FEWEST = 10
"""Frames for which a note that the page names is heard."""


def melody() -> Tensor:
    """Makes three notes and their chord in two seconds, each of eight partials that die away: (1, 43844, 1)."""
    length = _SAMPLES // len(_MELODY)
    time = torch.arange(length, dtype=torch.float64) / _RATE
    parts = []
    for chord in _MELODY:
        tones = [440 * 2 ** ((key - 69) / 12) * k for key in chord for k in range(1, 9)]
        gains = [1 / k for _ in chord for k in range(1, 9)]
        tone = sum(
            gain * (2 * torch.pi * pitch * time).sin()
            for pitch, gain in zip(tones, gains, strict=True)
        )
        parts.append(torch.as_tensor(tone) * (-4 * time).exp() * (time / 0.005).clamp(max=1))
    sound = torch.cat(parts)
    return (0.5 * sound / sound.abs().max())[None, :, None].float()


def _find(networks: Mapping[str, Network], given: Tensor) -> Found:
    onset, note, contour = networks["Basic Pitch"](given)
    heard = note > _FRAME
    keys = [key for key in range(heard.shape[-1]) if heard[0, :, key].sum() >= _FEWEST]
    names = [f"{_PIANO[(key + _LOWEST) % 12]}{(key + _LOWEST) // 12 - 1}" for key in keys]
    decisions = {
        f"cells of frame and key that sound, above {_FRAME}": heard.flatten().tolist(),
        f"cells where a note begins, above {_ONSET}": (onset > _ONSET).flatten().tolist(),
    }
    numbers = {"notes": note, "onsets": onset, "contours": contour}
    return Found(
        numbers,
        decisions,
        f"keys that sound for at least {_FEWEST} frames: {', '.join(names) or 'none'}",
    )


def _build() -> Task:
    file = BASIC_PITCH.folder() / "saved_models" / "icassp_2022" / "nmp.onnx"
    return Task(
        {"Basic Pitch": read_network(file)}, melody(), _find, {"Basic Pitch": onnx_runtime(file)}
    )


_ABOUT = """\
Basic Pitch transcribes two seconds of sound at once: filters of a constant-Q transform, 256 taps long and of steps
up to 256 samples, then convolutions over time and pitch. The package ships it as ONNX; it is read by onnx2torch and
held against onnxruntime, which the package uses. The notes C4, E4 and G4, and then their chord, are synthesised."""

NOTES = Subject(
    "notes",
    "Notes of a melody and a chord",
    _ABOUT,
    (BASIC_PITCH, ONNX2TORCH),
    _build,
)
