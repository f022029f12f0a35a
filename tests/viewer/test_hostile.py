"""A server under many clients and hostile ones: it answers, holds its memory, and serves on."""

import multiprocessing
import os
import random
import threading
import time

import httpx
import psutil
import pytest
import torch
from tests.viewer.hosts import served

from convattn import AttentionNet
from convattn.viewer import Exhibit
from convattn.viewer import live as live_file
from convattn.viewer.live import Live

MEBIBYTE = 2**20


def client_work(address, seed, stop, seen):
    """Asks for rows and other things, there or not, until told to stop; counts the answers."""
    draw = random.Random(seed)
    requests = [
        (200, lambda client: client.get(f"/rows?network=0&image={draw.randrange(4)}&row={draw.randrange(16)}&col=3")),
        (200, lambda client: client.get("/rows?network=0&image=mean&row=1&col=1")),
        (200, lambda client: client.get("/scene")),
        (404, lambda client: client.get("/rows?network=0&image=999&row=0&col=0")),
        (404, lambda client: client.get("/../../etc/passwd")),
        (421, lambda client: client.get("/scene", headers={"host": "evil.example"})),
        (405, lambda client: client.post("/scene", content=b"x" * 1000)),
    ]
    with httpx.Client(base_url=address, trust_env=False, timeout=120) as client:
        while not stop.is_set():
            expected, request = draw.choice(requests)
            status = request(client).status_code
            seen.append((status == expected, status))


def make_live():
    torch.manual_seed(0)
    network = AttentionNet(width=16, depth=2, heads=4, ffn=16, content=True).eval()
    images = torch.randn(4, 3, 16, 16)
    return Live(Exhibit(network, images, mean=(0.0,) * 3, std=(1.0,) * 3))


def resident(process=None):
    return psutil.Process(process or os.getpid()).memory_info().rss


def serve_alone(pipe):
    """Serves until told to stop; says the address, and at the end what the maps in memory take."""
    live_file.MAP_BYTES = 200_000
    live = make_live()
    with served(live) as client:
        pipe.send(str(client.base_url))
        pipe.recv()
    pipe.send(live.map_bytes <= live_file.MAP_BYTES)


def many_clients(address, process, count, seconds):
    """Lets clients loose on a server in a process of its own.

    Returns the answers, and by how many bytes the most that the process took in the second half of the time is above
    the most in the first half, in which its threads come to be.
    """
    stop, seen, most = threading.Event(), [], [0, 0]
    threads = [threading.Thread(target=client_work, args=(address, n, stop, seen)) for n in range(count)]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    while (passed := (time.monotonic() - start) / seconds) < 1:
        half = int(2 * passed)
        most[half] = max(most[half], resident(process))
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert httpx.get(f"{address}/scene", trust_env=False, timeout=60).status_code == 200
    return seen, most[1] - most[0]


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(8, 2), pytest.param(50, 60, marks=pytest.mark.slow)],
)
def test_many_clients_get_the_right_answers_in_bounded_memory(count, seconds):
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    server = spawn.Process(target=serve_alone, args=(other,))
    server.start()
    try:
        address = pipe.recv()
        seen, grown = many_clients(address, server.pid, count, seconds)
        pipe.send("stop")
        assert pipe.recv(), "more maps are in memory than the bound allows"
        server.join(60)
        assert server.exitcode == 0
    finally:
        server.kill()
    assert len(seen) >= count
    assert all(right for right, _ in seen), {status for right, status in seen if not right}
    assert grown < 40 * MEBIBYTE
