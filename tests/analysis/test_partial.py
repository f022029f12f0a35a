"""Interruptions, and the file with which an analysis goes on."""

import hashlib
import io
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.analysis.analyze_cases import gated, hooks, noise

from convattn.errors import CheckpointError
from convattn.heads.analysis import analyze
from convattn.heads.measure import Run, Settings

ORDER = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
"""The images of a run over 24, as they are measured."""


class Interrupting:
    """Images, as a sequence, of which one is not to be had the first time."""

    def __init__(self, images, at):
        self.images, self.left = images, at

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.images[number]


@pytest.mark.parametrize("at", [3, 12, 31, 47])
def test_an_interrupted_analysis_goes_on(at, tmp_path):
    network, images = gated(0.3), noise(24, 6, 5, 6)
    whole = analyze(network, images, progress=False)
    file = tmp_path / "partial"
    Sequence.register(Interrupting)
    with pytest.raises(KeyboardInterrupt):
        analyze(network, Interrupting(images, at + 3), progress=False, partial=file)
    assert file.exists()
    assert hooks(network) == 0
    assert repr(analyze(network, list(images), progress=False, partial=file)) == repr(whole)
    assert not file.exists()


def test_an_analysis_that_writes_no_file_can_be_interrupted():
    network = gated(0.3)
    Sequence.register(Interrupting)
    with pytest.raises(KeyboardInterrupt):
        analyze(network, Interrupting(noise(24, 6, 5, 6), 9), progress=False)
    assert hooks(network) == 0


@pytest.fixture(scope="module")
def interrupted():
    """Returns what an analysis of `gated(0.3)` on noise has written: interrupted before the last control."""

    def stop(*_):
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[analyze.__module__], "untrained", stop)
        with pytest.raises(KeyboardInterrupt):
            analyze(gated(0.3), noise(24, 6, 5, 6), progress=False, partial=f"{folder}/partial")
        return Path(folder, "partial").read_bytes()


def with_heads(network, count):
    network.heads_of_another_kind = count
    return network


def changed(images, number):
    images[number] += 1
    return images


OTHERS = {
    "weights": ("model", lambda: gated(0.4), lambda: noise(24, 6, 5, 6), {}),
    "attribute": ("model", lambda: with_heads(gated(0.3), 4), lambda: noise(24, 6, 5, 6), {}),
    "number of images": ("images", lambda: gated(0.3), lambda: noise(23, 6, 5, 6), {}),
    "options": ("settings", lambda: gated(0.3), lambda: noise(24, 6, 5, 6), {"kernel_size": 5}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_partial_report_of_something_else_is_refused(name, interrupted, tmp_path):
    what, network, images, options = OTHERS[name]
    file = tmp_path / "partial"
    file.write_bytes(interrupted)
    with pytest.raises(CheckpointError, match=rf"is a partial report of another analysis \({what}\); delete it$"):
        analyze(network(), images(), progress=False, partial=file, **options)


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_partial_report_with_another_measured_image_is_refused(place, interrupted, tmp_path):
    file, number = tmp_path / "partial", ORDER[place]
    file.write_bytes(interrupted)
    with pytest.raises(CheckpointError, match=r"of another analysis \(images\)"):
        analyze(gated(0.3), changed(noise(24, 6, 5, 6), number), progress=False, partial=file)


def state_of(content):
    return torch.load(io.BytesIO(content[32:]), weights_only=True)


def written(state):
    file = io.BytesIO()
    torch.save(state, file)
    return hashlib.sha256(file.getvalue()).digest() + file.getvalue()


DAMAGES = {
    "half": lambda content, _: content[: len(content) // 2],
    "text": lambda *_: b"half",
    "empty": lambda *_: b"",
    "no states": lambda _, state: written({**state, "states": 3}),
    "unknown run": lambda _, state: written({**state, "states": {"other": state["states"]["measured"]}}),
    "too many": lambda _, state: written({**state, "states": {"measured": {**measured(state), "done": 10**6}}}),
    "too few": lambda _, state: written({**state, "states": {"measured": {**measured(state), "done": 2}}}),
    "no count": lambda _, state: written({**state, "states": {"measured": {"layers": {}}}}),
    "no layer": lambda _, state: written({**state, "states": {"measured": {**measured(state), "layers": {}}}}),
}


def measured(state):
    return state["states"]["measured"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_partial_report_is_refused(name, interrupted, tmp_path):
    file = tmp_path / "partial"
    file.write_bytes(DAMAGES[name](interrupted, state_of(interrupted)))
    with pytest.raises(CheckpointError, match=r"partial is not a partial report: \w+; delete it$"):
        analyze(gated(0.3), noise(24, 6, 5, 6), progress=False, partial=file)


def test_a_changed_byte_of_a_partial_report_is_found(interrupted, tmp_path):
    file, network, images = tmp_path / "partial", gated(0.3), noise(24, 6, 5, 6)
    for place in torch.linspace(0, len(interrupted) - 1, 53).long().tolist():
        file.write_bytes(interrupted[:place] + bytes([interrupted[place] ^ 1]) + interrupted[place + 1 :])
        with pytest.raises(CheckpointError, match="is not a partial report"):
            analyze(network, images, progress=False, partial=file)


class Stopping(Run):
    """Is interrupted at one of its assignments."""

    left = 0

    def __setattr__(self, name, value):
        if self.left == 1:
            raise KeyboardInterrupt
        if self.left:
            super().__setattr__("left", self.left - 1)
        super().__setattr__(name, value)


def test_wherever_an_interruption_comes_a_batch_is_whole_or_not_there():
    network, images, found = gated(0.3), noise(4, 6, 5, 6), []
    for at in range(1, 9):
        run = Stopping(4, Settings(None, 3, 2, 0))
        run.left = at
        with suppress(KeyboardInterrupt):
            run.go_on(network, images.__getitem__)
        assert [layer.images for layer in run.layers.values()] == [run.done] * (run.done > 0), at
        found.append(run.done)
    assert sorted(set(found)) == [0, 3, 4]
