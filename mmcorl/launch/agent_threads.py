"""Agents at work at the same time: a queue of calls and a thread for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Lanes:
    """A `parallel` under which calls of different agents overlap and those of one agent keep their order.

    The threads only hand calls over to other processes and wait for them. `close` before the process ends; the
    calls that still run must have been made to end by then.
    """

    def __init__(self, names: Sequence[str]):
        self._lanes = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in names]

    def __call__(self, calls: Iterable[Callable[[], Any]]) -> list[Future[Any]]:
        """Start one call per agent, in the order of the names."""
        return [lane.submit(call) for lane, call in zip(self._lanes, calls, strict=True)]

    def close(self) -> None:
        """Drop what is queued and wait for what runs."""
        for lane in self._lanes:
            lane.shutdown(wait=True, cancel_futures=True)
