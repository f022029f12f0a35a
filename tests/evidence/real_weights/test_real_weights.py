"""Networks with trained weights: stand-ins of the same kind, with random weights and without the packages."""

import pytest
import torch
from torch import nn

from evidence.real_weights import __main__ as command
from evidence.real_weights.measure import BACK, PLANNED, SHIPPED, SOFTMAX, Truth, measure
from evidence.real_weights.page import page
from evidence.real_weights.record import RealWeightsRecord
from evidence.real_weights.speech import SpeechDetector, chunks_of_sound
from evidence.real_weights.subjects import SUBJECTS
from evidence.real_weights.task import Found, MissingPackageError, Package, Subject, Task

HERE = Package("torch", "torch", "BSD-3-Clause")
NOWHERE = Package("no-such-package", "no_such_package", "none")


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


class Pitch(nn.Module):
    """As CREPE: a long kernel on one axis, another axis of one pixel, batch normalisation after the ReLU."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 5, (64, 1), stride=(4, 1)), nn.Conv2d(5, 3, (8, 1))
        self.norm, self.classifier = nn.BatchNorm2d(5), nn.Linear(3 * 54, 11)

    def forward(self, frames):
        x = self.norm(self.conv1(frames[:, None, :, None]).relu())
        return self.classifier(self.conv2(x).flatten(1)).sigmoid()


def find(networks, given):
    boxes, scores = networks["proposals"](given[:, :3])
    pitch = networks["pitch"](given[:, 3].flatten(1)[:, :304])
    numbers = {"boxes": boxes, "scores": scores, "pitch": pitch}
    return Found(numbers, {"bins": pitch.argmax(1).tolist()}, f"bins {pitch.argmax(1).tolist()}")


def task(**changes):
    torch.manual_seed(0)
    networks = {"proposals": Proposals().eval(), "pitch": Pitch().eval()}
    return Task(networks, torch.randn(3, 4, 17, 19), find, **changes)


def subject(build=task, packages=(HERE,), name="here"):
    return Subject(name, "Stand-ins", "Two networks.", packages, build)


def outcome(result, way):
    return next(one for one in result.outcomes if one.way == way)


def test_every_way_is_within_the_budget_and_wrong_copies_are_not():
    ways = []
    result = measure(subject(), ways.append)
    assert result.passed
    assert [one.way for one in result.outcomes] == [PLANNED, SOFTMAX, BACK]
    assert ways[1:4] == [PLANNED, SOFTMAX, BACK]
    for one in result.outcomes:
        assert [check.worst for check in one.checks] == ["boxes", "pitch", "scores"]
        assert all(0 < check.error <= check.allowed for check in one.checks)
        assert [(found.name, found.total, found.changed) for found in one.decisions] == [
            ("bins", 3, 0)
        ]
    paths = [outcome(result, way).conversions[1].paths for way in (PLANNED, SOFTMAX, BACK)]
    assert paths == [{"shift": 2}, {"separable": 2}, {"convolution": 2}]
    assert [one.returned for one in outcome(result, BACK).conversions] == [True, True]
    assert [network.kernel for network in result.networks] == [(3, 3), (64, 1)]
    assert [(one.network, one.rejected) for one in result.controls] == [
        ("proposals", True),
        ("pitch", True),
    ]
    assert all(one.in_the_task > 1 for one in result.controls)


def test_a_softmax_that_is_too_large_is_left_out():
    result = measure(subject(lambda: task(largest_softmax=2**18)), lambda _: None)
    left = [one.left_alone for one in outcome(result, SOFTMAX).conversions]
    assert result.passed
    assert left == [(), ("conv1",)]
    assert not any(one.left_alone for one in outcome(result, PLANNED).conversions)


def leaky(network):
    def run(given):
        x = network(given)
        return (1 - 1e-4) * x + 1e-4 * x.mean()

    return run


def shipped_otherwise():
    own = task()
    wrong = {**own.networks, "pitch": leaky(own.networks["pitch"])}
    return Task(own.networks, own.given, own.find, own=wrong)


def test_another_function_than_the_one_shipped_is_rejected():
    result = measure(subject(shipped_otherwise), lambda _: None)
    assert not result.passed
    assert [check.passed for check in outcome(result, SHIPPED).checks] == [True, False, True]
    assert outcome(result, PLANNED).passed


def test_what_differs_or_is_missing_is_counted():
    own = task()
    with torch.no_grad():
        truth = Truth(own)
    bins = truth.plain.decisions["bins"]
    cases = [(bins, 0), ([bins[0], -1, bins[2]], 1), (bins[:2], 1), ([*bins, 0, 0], 2)]
    for found, changed in cases:
        decided = truth.decisions(Found({}, {"bins": found}))
        assert [(one.total, one.changed) for one in decided] == [(3, changed)]
    numbers = {**truth.plain.numbers, "scores": truth.plain.numbers["scores"][:1]}
    assert [check.passed for check in truth.checks(Found(numbers))] == [True, True, False]


def test_speech_detector_is_converted_with_its_memory():
    torch.manual_seed(0)
    network, chunks = SpeechDetector().eval(), chunks_of_sound()[:5]
    made = Task({"speech": network}, chunks, lambda nets, x: Found({"chance": nets["speech"](x)}))
    result = measure(subject(lambda: made), lambda _: None)
    assert all(one.passed for one in result.outcomes)
    assert outcome(result, SOFTMAX).conversions[0].paths == {"separable": 6}
    with torch.no_grad():
        alone = torch.cat([network(chunk[None]) for chunk in chunks])
        assert not torch.equal(network(chunks)[1:], alone[1:])


def broken():
    raise ImportError("it asks for another torch")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command on some tasks, and returns its exit code, its record and its page."""
    pages = {}
    monkeypatch.setattr(command, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(command, "write_page", pages.__setitem__)

    def call(*tasks):
        code = command.main(["--work", str(tmp_path / "work"), "--tasks", *tasks])
        record = RealWeightsRecord.load(tmp_path / "record.json")
        return code, record, pages["real-weights-tables"]

    return call


def test_missing_packages_are_told_with_the_way_to_install_them(monkeypatch, run, capsys):
    monkeypatch.setitem(SUBJECTS, "here", subject())
    monkeypatch.setitem(SUBJECTS, "not here", subject(packages=(HERE, NOWHERE), name="not here"))
    code, record, text = run("not here", "here")
    assert code == 0
    reason = "no-such-package is not installed; run: pip install --no-deps no-such-package"
    assert [task.missing for task in record.tasks] == [reason, ""]
    assert text == page(record)
    assert f"**Not done:** {reason}." in text
    assert "Not done, for want of packages: stand-ins." in text
    assert "not here: not done: no-such-package is not installed" in capsys.readouterr().err
    monkeypatch.setitem(SUBJECTS, "here", subject(broken))
    assert run("not here", "here")[1].tasks == record.tasks


def test_packages_that_cannot_be_imported_are_told(monkeypatch, tmp_path):
    monkeypatch.setitem(SUBJECTS, "here", subject(broken))
    (result,) = command.run(["here"], tmp_path).tasks
    assert not list(tmp_path.iterdir())
    assert result.missing == "a package cannot be imported: it asks for another torch"


def test_a_failed_check_gives_exit_code_1_and_is_on_the_page(monkeypatch, run):
    monkeypatch.setitem(SUBJECTS, "here", subject(shipped_otherwise))
    code, _, text = run("here")
    assert code == 1
    assert "**FAILED: stand-ins; see below.**" in text


def test_one_module_is_imported_without_its_package(monkeypatch, tmp_path):
    folder = tmp_path / "half_installed"
    folder.mkdir()
    (folder / "__init__.py").write_text("import no_such_package\n")
    (folder / "model.py").write_text("import half_installed\nsize = half_installed.SIZE\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = Package("half-installed", "half_installed", "none")
    assert package.folder() == folder
    assert package.only("model", SIZE=7).size == 7
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        __import__("half_installed")
    with pytest.raises(MissingPackageError, match="run: pip install --no-deps no-such-package"):
        NOWHERE.folder()
