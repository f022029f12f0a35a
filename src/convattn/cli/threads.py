"""Threads of a command: small work gets one thread."""

from contextlib import AbstractContextManager


def one_thread(small: bool = True) -> AbstractContextManager[None]:
    """Computes on one thread if the work is small, unless the environment says how many.

    On a busy machine many short operations take much longer with more threads, because each waits for the slowest.
    """
    from convattn.lab.run_process import computing_with, threads_given

    return computing_with(1 if small and threads_given() is None else None)
