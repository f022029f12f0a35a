"""A server in a thread, for tests."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import uvicorn

from convattn.viewer.server import listening, make_app


@contextlib.contextmanager
def served(scene):
    """Serves in a thread, on a free port; yields a client of it."""
    with listening("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        settings = {"lifespan": "off", "ws": "none", "http": "h11", "log_level": "error"}
        server = uvicorn.Server(uvicorn.Config(make_app(scene), **settings))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
            ) as client:
                while not server.started:
                    time.sleep(0.01)
                yield client
        finally:
            server.should_exit = True
            thread.join()


def complete(coroutine):
    """Runs a coroutine in a thread of its own: tests with a browser leave a running loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()
