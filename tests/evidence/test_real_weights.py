"""Networks with trained weights: a stand-in with random weights, and the sound that is made for CREPE."""

import torch
from torch import nn

from evidence.real_weights import __main__ as real_weights
from evidence.real_weights.__main__ import BACK, PLANNED, SOFTMAX, frames_of_sound, measure


class Proposals(nn.Module):
    """As P-Net: valid convolutions, PReLU, a pool that rounds up, two outputs."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 5, 3), nn.PReLU(5), nn.MaxPool2d(2, 2, ceil_mode=True), nn.Conv2d(5, 7, 3)
        )
        self.score, self.box = nn.Conv2d(7, 2, 1), nn.Conv2d(7, 4, 1)

    def forward(self, x):
        x = self.body(x)
        return self.box(x), self.score(x).softmax(1)


def stand_in():
    torch.manual_seed(0)
    return {"proposals": (Proposals(), torch.randn(3, 3, 17, 19))}


def test_every_way_is_within_the_budget_and_a_wrong_copy_is_not():
    result = measure(stand_in())
    paths = {}
    for outcome in result["outcomes"]:
        (row,) = outcome["conversions"]
        assert row["passed"], outcome["way"]
        assert 0 < row["error"] <= row["rounding"], outcome["way"]
        assert row["returned"] is (True if outcome["way"] == BACK else None)
        paths[outcome["way"]] = row["paths"]
    assert paths == {PLANNED: {"shift": 4}, SOFTMAX: {"separable": 4}, BACK: {"convolution": 4}}
    assert [control["rejected"] for control in result["controls"]] == [True]


def test_other_tasks_of_the_record_stay(monkeypatch):
    monkeypatch.setattr(real_weights, "TASKS", {"here": stand_in})
    record = {"versions": {"onnx": "1"}, "tasks": [{"name": "text"}, {"name": "here", "old": 1}]}
    changed = real_weights.measured_anew(record)
    assert changed["tasks"][0] == {"name": "text"}
    assert [task["name"] for task in changed["tasks"]] == ["text", "here"]
    assert "old" not in changed["tasks"][1]
    assert changed["versions"]["onnx"] == "1"


def test_frames_hold_a_tone_and_a_rising_sweep():
    frames = frames_of_sound()
    strongest = torch.fft.rfft(frames).abs().argmax(1) * 16_000 / 1024
    assert frames.shape == (20, 1024)
    assert (strongest[:10] - 440).abs().max() < 16
    assert strongest[10] < 200
    assert strongest[-1] > 700
