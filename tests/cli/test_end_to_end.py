"""The paper's way from end to end at the scale "tiny": train, be killed, resume, make a figure."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from pyarrow import parquet
from tests.cli.command import run

from convattn.provenance import RunRecord

SHORT = "--set training.epochs=3"
TRAIN = f"train sa-quadratic --scale tiny {SHORT} --checkpoint-every 10 -o runs/sa-quadratic-0"


def kill_under_way(words):
    """Starts a command and kills it once a few steps are safe in a checkpoint."""
    training = subprocess.Popen(
        [sys.executable, "-m", "convattn", *words.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not any(Path("runs/sa-quadratic-0/checkpoints").glob("step-0000002*")):
            assert training.poll() is None
            time.sleep(0.01)
    finally:
        training.send_signal(signal.SIGKILL)
        training.wait()


def centres(rows, step):
    return [(row["centre_row"], row["centre_col"]) for row in rows if row["step"] == step]


def test_train_kill_resume_and_reproduce(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kill_under_way(TRAIN)
    assert not Path("runs/sa-quadratic-0/record.json").exists()
    assert run(f"{TRAIN} --resume") == 0
    record = RunRecord.load("runs/sa-quadratic-0/record.json")
    assert record.resumed == 1
    assert record.results["test_accuracy"] > 0.3  # of ten classes

    assert run("reproduce fig3 --runs runs --scale tiny -o figure") == 0
    (picture,) = Path("figure").glob("*.png")
    with Image.open(picture) as image:
        assert min(image.size) > 300
    rows = parquet.read_table("figure/fig3.parquet").to_pylist()
    last = max(row["step"] for row in rows)
    start, end = (centres(rows, step) for step in (0, last))
    assert max(map(math.dist, start, end)) > 0.5, "no head moves by a pixel's half"
