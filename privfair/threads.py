"""How many threads an operation may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors are faster without threads, which would wait for each other in every operation.

    It holds for the process: for torch in this thread and those begun within, and for BLAS, which the compiled training
    calls, in all of them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        torch.set_num_threads(before)
