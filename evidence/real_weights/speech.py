"""Where there is speech: Silero VAD, whose TorchScript program is written anew around its own weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from evidence.real_weights.task import Found, Network, Package, Subject, Task

SILERO = Package("silero-vad", "silero_vad", "MIT")

_RATE, _STEP, _CONTEXT, _THRESHOLD = 16000, 512, 64, 0.5
_FORMANTS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (570, 840, 2410),
)
"""Of the vowels a, i, u, e, o in Hz (Peterson and Barney 1952, men)."""

_PITCH, _WIDTH, _HIGHEST, _VOICED, _PAUSE = 120.0, 80.0, 4000.0, 0.3, 0.2


class SpeechDetector(nn.Module):
    """Silero VAD at 16 kHz, as `silero_vad/tinygrad_model.py` writes it: convolutions, then a cell with memory."""

    def __init__(self) -> None:
        """Builds the layers."""
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, chunks: Tensor) -> Tensor:
        """Tells the probability of speech.

        Args:
            chunks: (chunks, 576) samples of one sound, each chunk with the last 64 of the one before.

        Returns:
            A probability for each chunk.
        """
        x = self.stft_conv(nn.functional.pad(chunks, (0, _CONTEXT), "reflect")[:, None])
        x = x.unflatten(1, (2, -1)).square().sum(1).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        state, heard = None, []
        for chunk in x.squeeze(-1):
            state = self.lstm_cell(chunk[None], state)
            heard.append(state[0])
        return self.final_conv(torch.cat(heard)[..., None].relu()).sigmoid().flatten()


def chunks_of_sound() -> Tensor:
    """Makes five vowels with pauses between them and a second of noise after them, in chunks."""
    time = torch.arange(int(_VOICED * _RATE), dtype=torch.float64) / _RATE
    phase = 2 * torch.pi * (_PITCH * (1.1 - 0.2 * time / _VOICED)).cumsum(0) / _RATE
    numbers = torch.arange(1, int(_HIGHEST / _PITCH), dtype=torch.float64)
    rising = (torch.pi * time / _VOICED).sin()
    noise = torch.randn(_RATE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = []
    for formants in _FORMANTS:
        resonances = [
            1 / (1 + ((numbers * _PITCH - formant) / _WIDTH) ** 2) for formant in formants
        ]
        gains = torch.stack(resonances).sum(0) / numbers.sqrt()
        voice = (gains[:, None] * (numbers[:, None] * phase).sin()).sum(0) * rising
        parts += [
            0.5 * voice / voice.abs().max(),
            torch.zeros(int(_PAUSE * _RATE), dtype=torch.float64),
        ]
    sound = nn.functional.pad(torch.cat([*parts, 0.02 * noise]), (_CONTEXT, 0))
    return sound.unfold(0, _CONTEXT + _STEP, _STEP).float()


def _find(networks: Mapping[str, Network], given: Tensor) -> Found:
    chances = networks["Silero VAD"](given)
    speech = (chances > _THRESHOLD).tolist()
    words = f"speech in {sum(speech)} of {len(speech)} chunks of {_STEP} samples, probability up to {chances.max():.3f}"
    return Found({"probability of speech": chances}, {f"speech, above {_THRESHOLD}": speech}, words)


def _build() -> Task:
    program = torch.jit.load(SILERO.folder() / "data" / "silero_vad.jit", map_location="cpu")
    network, weights = SpeechDetector(), program._model.state_dict()
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))

    def own(chunks: Tensor) -> Tensor:
        program.reset_states()
        return torch.cat([program(chunk[None, _CONTEXT:], _RATE).flatten() for chunk in chunks])

    return Task({"Silero VAD": network.eval()}, chunks_of_sound(), _find, {"Silero VAD": own})


_ABOUT = """\
Silero VAD tells of every 32 ms of sound how probable speech is: a Fourier transform as a convolution of 256 taps,
four convolutions, a recurrent cell. The package runs it as TorchScript, which is not converted; so the network is
written as a module, with the package's weights, and held against the TorchScript program. Five vowels are
synthesised from their formants, with pauses, and then noise."""

SPEECH = Subject(
    "speech",
    "Where there is speech",
    _ABOUT,
    (SILERO,),
    _build,
)
