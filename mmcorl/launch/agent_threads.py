"""Agents at work at the same time: a queue of calls and a thread for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class AgentThreads:
    """A `parallel` under which calls of different agents overlap and those of one agent keep their order.

    The threads only hand calls over to other processes and wait for them. End the calls that still run before `close`.
    """

    def __init__(self, names: Sequence[str]):
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in names]

    def __call__(self, calls: Iterable[Callable[[], Any]]) -> list[Future[Any]]:
        """Start one call per agent, in the order of the names."""
        return [thread.submit(call) for thread, call in zip(self._threads, calls, strict=True)]

    def close(self) -> None:
        """Drop queued calls and wait for running ones."""
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
