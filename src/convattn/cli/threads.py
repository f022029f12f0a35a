"""Threads of a command: they wait without spinning, and small work gets one thread."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def wait_without_spinning() -> None:
    """Lets waiting threads sleep, unless the environment says otherwise. Call it before torch is loaded.

    By default waiting threads spin, and slow down the threads that they wait for if a core is shared.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """Computes on one thread if the work is small, unless the environment says how many.

    On a busy machine many short operations take much longer with more threads, because each waits for the slowest.
    """
    import torch

    from convattn.lab.run_process import threads_given

    if not small or threads_given() is not None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
