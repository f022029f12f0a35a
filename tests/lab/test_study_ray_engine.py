"""Studies on a stand-in for Ray: what it is asked for, and what becomes of its answers."""

import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.lab.study_fake import FakeTrain

from convattn.errors import DeviceError
from convattn.lab import study
from convattn.lab.run_process import carry_out
from convattn.lab.study_engines import LocalEngine, RayEngine
from convattn.lab.study_plan import plan_runs

RECIPE = "digits-quadratic"
SEEDS = (0, 1, 2)
FAILING = 3


def weights(folder):
    return {
        file.parent.name: file.read_bytes() for file in sorted(folder.glob("*/model.safetensors"))
    }


class FakeRay(ModuleType):
    """Runs tasks here, the last one first, when they are waited for; keeps everything that it was asked for."""

    def __init__(self, *sizes, work=carry_out, refused=None):
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
        self.nodes = lambda: [
            {"Alive": False, "Resources": {"CPU": 97.0, "GPU": 89.0}},
            *({"Alive": True, "Resources": size} for size in sizes),
        ]
        self.work, self.refused, self.connected = work, refused, False
        self.log, self.options, self.tasks, self.most = [], {}, {}, 0

    def is_initialized(self):
        return self.connected

    def init(self, address, **options):
        self.log.append(("init", address, options))
        if self.refused:
            raise self.refused
        self.connected = True

    def shutdown(self):
        self.log.append("shutdown")
        self.connected = False

    def remote(self, function):
        assert function is carry_out

        def set_options(**options):
            self.options = options
            return SimpleNamespace(remote=self._submit)

        return SimpleNamespace(options=set_options)

    def _submit(self, command):
        reference = f"task {len(self.tasks)}"
        self.tasks[reference] = command
        return reference

    def wait(self, references, *, num_returns, timeout):
        if num_returns > 1 or timeout > 1:
            self.log.append(("wait", list(references), num_returns, timeout))
            return references, []
        self.most = max(self.most, len(references))
        return references[-1:], references[:-1]

    def get(self, reference):
        return self.work(self.tasks[reference])

    def cancel(self, reference):
        self.log.append(("cancel", reference))


@pytest.fixture
def fake(monkeypatch):
    """Puts a stand-in in the place of Ray."""
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "RAY_USAGE_STATS_ENABLED",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    ):
        monkeypatch.setenv(name, "")  # which is put back afterwards
        monkeypatch.delenv(name)

    def put(*sizes, **options):
        made = FakeRay(*sizes, **options)
        monkeypatch.setitem(sys.modules, "ray", made)
        return made

    return put


def planned(folder, seeds=SEEDS):
    folder.mkdir(exist_ok=True)
    return plan_runs([RECIPE], folder, seeds=seeds, scale=None, overrides={}, grid={})


def nothing(_):
    return 0


def test_tasks_write_what_local_processes_write(fake, tmp_path):
    ray, told = fake({"CPU": 1.0}), []
    engine = RayEngine(command=FakeTrain(failing=(f"{RECIPE}-{FAILING}",)), tell=told.append)
    found = study([RECIPE], output=tmp_path / "there", seeds=(0, FAILING), engine=engine)
    study(
        [RECIPE],
        output=tmp_path / "here",
        seeds=(0,),
        engine=LocalEngine(threads=1, command=FakeTrain()),
    )
    assert weights(tmp_path / "there") == weights(tmp_path / "here") != {}
    assert [(each.seed, each.reason) for each in found.failures] == [(FAILING, "cannot do epoch 0")]
    assert [line.split()[:2] for line in told] == [
        [f"{RECIPE}-0:", "submitted"],
        [f"{RECIPE}-{FAILING}:", "submitted"],
        [f"{RECIPE}-{FAILING}:", "FAILED:"],
        [f"{RECIPE}-0:", "done"],
    ]
    assert not ray.connected


@pytest.mark.parametrize(
    ("workers", "order"), [(None, [2, 1, 0]), (1, [0, 1, 2]), (2, [1, 2, 0]), (5, [2, 1, 0])]
)
def test_runs_are_given_as_they_end_and_no_more_than_workers_wait(fake, tmp_path, workers, order):
    ray, runs = fake({"CPU": 1.0}, work=nothing), planned(tmp_path)
    engine = RayEngine(workers=workers)
    assert list(engine.run(runs)) == [runs[number] for number in order]
    assert ray.most == min(workers or 3, 3)


@pytest.mark.parametrize(
    ("sizes", "environment", "threads", "expected"),
    [
        ([{"CPU": 13.0}, {"CPU": 7.0}, {}], {}, None, (7, 0)),
        ([{"CPU": 13.0, "GPU": 2.0}, {"CPU": 7.0}], {}, None, (6, 1)),
        ([{"CPU": 1.0, "GPU": 3.0}], {}, None, (1, 1)),
        ([{"CPU": 13.0}, {"CPU": 7.0}], {"OMP_NUM_THREADS": "5"}, None, (5, 0)),
        ([{"CPU": 13.0}, {"CPU": 7.0}], {"OMP_NUM_THREADS": "5"}, 11, (11, 0)),
    ],
    ids=["smallest node", "shared by its GPUs", "at least one", "environment", "asked for"],
)
def test_task_asks_for_its_threads_and_a_gpu_if_there_is_one(
    fake, tmp_path, monkeypatch, sizes, environment, threads, expected
):
    ray = fake(*sizes, work=nothing)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert len(list(RayEngine(threads=threads, retries=17).run(planned(tmp_path)))) == 3
    cpus, gpus = expected
    assert ray.options == {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_retries": 17,
        "scheduling_strategy": "SPREAD",
    }
    assert [command.environment for command in ray.tasks.values()] == [
        {"OMP_NUM_THREADS": str(cpus)}
    ] * 3


def test_task_has_both_commands_of_its_run(fake, tmp_path):
    ray, runs = fake({"CPU": 1.0}, work=nothing), planned(tmp_path, seeds=(5,))
    assert list(RayEngine(command=lambda run, resume: [run.name, str(resume)]).run(runs)) == runs
    command = ray.tasks["task 0"]
    assert (command.start, command.resume) == ([runs[0].name, "False"], [runs[0].name, "True"])
    assert (command.folder, command.log, command.place) == (runs[0].folder, runs[0].log, Path.cwd())


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        (None, ("local", {"include_dashboard": False, "object_store_memory": 100 * 2**20})),
        ("ray://a:7", ("ray://a:7", {})),
    ],
    ids=["started here", "at an address"],
)
def test_cluster_is_connected_to_quietly_and_left_also_after_an_error(
    fake, tmp_path, monkeypatch, address, asked
):
    def fail(_):
        raise OSError("no space")

    ray = fake({"CPU": 1.0}, work=fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match=r"^no space$"):
        list(RayEngine(address=address).run(planned(tmp_path, seeds=(0,))))
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    assert ray.log == [
        ("init", asked[0], {**asked[1], **quiet}),
        ("cancel", "task 0"),
        ("wait", ["task 0"], 1, 30.0),
        "shutdown",
    ]
    assert not ray.connected
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"


@pytest.mark.parametrize("kind", [ConnectionError, ValueError, RuntimeError])
@pytest.mark.parametrize(("address", "named"), [(None, "this machine"), ("auto", "auto")])
def test_cluster_that_cannot_be_reached_is_named(fake, tmp_path, kind, address, named):
    ray = fake(refused=kind("nobody answers"))
    with pytest.raises(
        DeviceError, match=f"^cannot reach a Ray cluster at {named}: nobody answers$"
    ):
        list(RayEngine(address=address).run(planned(tmp_path)))
    assert [item[0] for item in ray.log] == ["init"]  # nothing to leave


def test_reason_why_ray_gave_up_is_the_last_line_of_the_log(fake, tmp_path):
    def give_up(_):
        raise ray.exceptions.RayError("the node\n  died 4 times")

    ray, runs = fake({"CPU": 1.0}, work=give_up), planned(tmp_path, seeds=(0,))
    runs[0].log.write_text("before\n")
    assert list(RayEngine().run(runs)) == runs
    assert runs[0].log.read_text() == "before\nRay gave up: the node died 4 times\n"
    assert ray.log[1:] == ["shutdown"]


def test_iteration_that_ends_early_cancels_what_runs_and_waits_for_it(fake, tmp_path):
    ray, runs = fake({"CPU": 1.0}, work=nothing), planned(tmp_path)
    iteration = RayEngine().run(runs)
    assert next(iteration) == runs[2]
    iteration.close()
    rest = ["task 0", "task 1"]
    assert ray.log[1:] == [
        *(("cancel", reference) for reference in rest),
        ("wait", rest, 2, 30.0),
        "shutdown",
    ]
