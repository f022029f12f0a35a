import sys
from types import SimpleNamespace

import pytest
import torch

from convattn.lab import loop as energy
from convattn.lab.loop import Counter, EnergyMeter, Ledger, read_counters

CPU = torch.device("cpu")


def show(monkeypatch, *readings):
    """Makes counters show one reading after the other."""
    shown = iter(readings)
    monkeypatch.setattr(energy, "read_counters", lambda _: next(shown))


def two(first, second):
    return {"a": Counter(first, 100.0), "b": Counter(second, 50.0)}


def test_each_counter_may_start_again_between_two_readings(monkeypatch):
    show(monkeypatch, two(90.0, 10.0), two(5.0, 30.0), two(6.0, 2.0))
    meter = EnergyMeter(CPU)
    assert meter.read() == 15.0 + 20.0
    assert meter.read() == 35.0 + 1.0 + 22.0


@pytest.mark.parametrize("gone", [{}, {"a": Counter(91.0, 100.0)}])
def test_energy_that_was_not_read_once_is_unknown_from_then_on(monkeypatch, gone):
    show(monkeypatch, two(90.0, 10.0), two(91.0, 10.0), gone, two(95.0, 10.0))
    meter = EnergyMeter(CPU)
    assert [meter.read() for _ in range(3)] == [1.0, None, None]


def test_counter_that_never_starts_again_but_goes_back_is_not_believed(monkeypatch):
    show(monkeypatch, {"device": Counter(7.0)}, {"device": Counter(3.0)})
    assert EnergyMeter(CPU).read() is None


def test_counters_are_read_once_a_minute(monkeypatch):
    show(monkeypatch, two(0.0, 0.0), two(60.0, 0.0), two(20.0, 0.0))
    clock = iter([0.0, 59.0, 60.0, 60.0, 61.0])
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    meter = EnergyMeter(CPU)
    meter.watch(), meter.watch()
    assert meter.read() == 120.0  # without the reading at 60 it would be 20


def package(folder, name, words, joules):
    (folder / name).mkdir()
    for file, content in {"name": words, "energy_uj": joules * 10**6, "max_energy_range_uj": 262 * 10**6}.items():
        (folder / name / file).write_text(f"{content}\n")


def test_packages_of_a_processor_are_read_without_their_parts_and_the_platform(monkeypatch, tmp_path):
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    assert read_counters(CPU) == {}
    package(tmp_path, "intel-rapl:0", "package-0", 3)
    package(tmp_path, "intel-rapl:0:0", "core", 2)
    package(tmp_path, "intel-rapl:1", "psys", 9)
    package(tmp_path, "intel-rapl:2", "package-1", 4)
    assert read_counters(CPU) == {"intel-rapl:0": Counter(3.0, 262.0), "intel-rapl:2": Counter(4.0, 262.0)}
    (tmp_path / "intel-rapl:2" / "energy_uj").unlink()
    assert read_counters(CPU) == {}


def test_device_without_known_counters_reports_nothing():
    assert read_counters(torch.device("meta")) == {}


def test_accelerator_is_read_by_its_own_counter(monkeypatch):
    class NVMLError(Exception):
        pass

    def fail():
        raise NVMLError

    asked = []
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetTotalEnergyConsumption=lambda _: 2500,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12ab"))
    assert read_counters(torch.device("cuda:0")) == {"device": Counter(2.5)}
    assert asked == ["GPU-12ab"]
    library.nvmlInit = fail
    assert read_counters(torch.device("cuda:0")) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_counters(torch.device("cuda:0")) == {}


def test_energy_of_a_run_is_that_of_all_its_parts_or_unknown(monkeypatch):
    show(monkeypatch, two(0.0, 0.0), two(4.0, 0.0), two(10.0, 0.0), two(13.0, 0.0), {}, two(1.0, 0.0), two(2.0, 0.0))
    first = Ledger(CPU)
    state = first.state_dict()
    second = Ledger(CPU)
    second.load_state_dict(state)
    assert second.energy == 4.0 + 3.0
    assert (second.resumed, second.started) == (1, first.started)
    unread = Ledger(CPU)
    last = Ledger(CPU)
    last.load_state_dict(unread.state_dict())
    assert last.energy is None
