"""Studies on a real Ray cluster of two nodes on this machine, one of which is killed while runs are under way."""

import importlib.util
import os
import signal
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
from tests.lab.study_fake import FakeTrain

from convattn.errors import ArgumentError, MissingDependencyError
from convattn.lab import study
from convattn.lab.study_engines import LocalEngine, RayEngine, _connected
from convattn.provenance import RunRecord

RECIPE = "digits-quadratic"
FAILING = 3
STORE = 80 * 2**20
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Lets a dead node be missed within seconds rather than half a minute."""

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


@pytest.fixture
def cluster():
    """Starts two nodes of one processor each, and connects to the first; everything is shut down afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
            patch.setenv(name, "0")
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": STORE}
        options = {**node, "include_dashboard": False, "_system_config": HEALTH}
        before = signal.getsignal(signal.SIGTERM)  # which Ray replaces
        made = Cluster(initialize_head=True, shutdown_at_exit=True, head_node_args=options)
        try:
            made.add_node(**node)
            ray.init(made.address, log_to_driver=False, logging_level="error")
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            signal.signal(signal.SIGTERM, before)


def weights(folder):
    return {
        file.parent.name: file.read_bytes() for file in sorted(folder.glob("*/model.safetensors"))
    }


@needs_ray
@pytest.mark.slow
def test_training_on_a_node_that_dies_ends_with_the_same_bits(cluster, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    tiny = {"scale": "tiny", "seeds": (0, 1), "overrides": {"training.epochs": "12"}}

    def kill():
        while len({file.parts[-3] for file in there.glob("*/checkpoints/step-*[1-9]")}) < 2:
            time.sleep(0.02)
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    found = study(["sa-quadratic"], output=there, engine=RayEngine(threads=1), **tiny)
    killer.join()
    assert not found.failures
    study(["sa-quadratic"], output=here, engine=LocalEngine(threads=1), **tiny)
    assert weights(there) == weights(here)
    resumed = [RunRecord.load(there / run.folder / "record.json").resumed for run in found.runs]
    assert sorted(resumed) == [0, 1]


@needs_ray
@pytest.mark.slow
def test_stopped_study_leaves_no_process_and_no_cluster(tmp_path):
    import ray

    def stop():
        while not list(tmp_path.glob("*/checkpoints/last")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop)
    thread.start()
    fake, told = FakeTrain(epochs=100, seconds=0.1, failing=(f"{RECIPE}-{FAILING}",)), []
    engine = RayEngine(workers=1, threads=1, command=fake, tell=told.append)
    with pytest.raises(SystemExit, match=f"^{128 + signal.SIGTERM}$"):
        study([RECIPE], output=tmp_path, seeds=(FAILING, 0), engine=engine)
    thread.join()
    failed, stopped = f"{RECIPE}-{FAILING}", f"{RECIPE}-0"
    expected = [
        f"{failed}: submitted",
        f"{failed}: FAILED: cannot do epoch 0",
        f"{stopped}: submitted",
    ]
    assert sorted(told) == sorted(expected)
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before
    metrics = tmp_path / f"{RECIPE}-0" / "metrics.jsonl"
    count = len(metrics.read_text().splitlines())
    time.sleep(0.3)
    assert 0 < len(metrics.read_text().splitlines()) == count < 100


def test_a_cluster_of_the_callers_is_left_running():
    ray = ModuleType("ray")  # which has nothing to connect or to shut down by
    ray.is_initialized = lambda: True
    with _connected(ray, None):
        pass


def test_more_threads_than_any_node_has_are_refused():
    sizes = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 6.0}, {}]
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": size} for size in sizes])
    with pytest.raises(
        ArgumentError,
        match=r"^threads must be at most 6, the processors of the largest node, but is 7$",
    ):
        RayEngine(threads=7)._submitter(ray)


def test_missing_ray_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingDependencyError, match=r'needs ray, .* pip install "convattn\[cluster\]"'
    ):
        study([RECIPE], output=tmp_path, engine=RayEngine(command=FakeTrain()))
