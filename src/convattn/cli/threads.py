"""Threads of a command: small work gets one thread."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """Computes on one thread if the work is small, unless the environment says how many.

    On a busy machine many short operations take much longer with more threads, because each waits for the slowest.
    """
    import torch

    from convattn.lab.run_process import threads_given

    threads = torch.get_num_threads()
    if small and threads_given() is None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
