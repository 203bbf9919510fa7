"""The parts of an agent's work by their names, for `mmcorl train ... profile=true`; nothing is measured without it.

Code says `with span("decode"):` around a part. Parts lie within each other: a second belongs to the innermost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

_NOTHING = contextlib.nullcontext()
_at_work: Timer | None = None


class Timer:
    """Seconds by (call, part), as long as it is `at_work`; ranges of the same names stand in a torch trace.

    Args:
        wait: waits until the device has done what it was given; what a part starts there counts as its time.
    """

    def __init__(self, wait: Callable[[], None]):
        self._wait = wait
        self.seconds: dict[tuple[str, str], float] = {}
        """What a call does outside of its parts has the part `other`."""
        self._stack: list[str] = []
        self._mark = 0.0

    @contextlib.contextmanager
    def at_work(self, call: str) -> Iterator[None]:
        """Measure one call, such as `rollout`, and the parts in it."""
        global _at_work
        self._call, _at_work = call, self
        try:
            with self.measure("other", call):
                yield
        finally:
            _at_work = None

    @contextlib.contextmanager
    def measure(self, part: str, shown: str) -> Iterator[None]:
        """One part of the present call; `shown` is its name in a trace."""
        import torch

        self._turn()
        self._stack.append(part)
        try:
            with torch.profiler.record_function(shown):
                yield
                self._wait()
        finally:
            self._turn()
            self._stack.pop()

    def _turn(self) -> None:
        """The time since the last turn belongs to the part that is innermost now."""
        self._wait()
        now = time.perf_counter()
        if self._stack:
            key = self._call, self._stack[-1]
            self.seconds[key] = self.seconds.get(key, 0.0) + now - self._mark
        self._mark = now


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """The block is a part of the work, such as `decode`."""
    return _NOTHING if _at_work is None else _at_work.measure(name, name)
