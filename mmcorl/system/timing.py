"""Named spans of an agent's work, for `mmcorl train ... profile=true`; nothing is measured without it.

Code marks a span by `with span("decode"):`. Spans nest, and time belongs to the innermost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

_NOTHING = contextlib.nullcontext()
_at_work: Timer | None = None


class Timer:
    """Seconds by (call, span) while it is `at_work`; torch traces show ranges of the same names.

    Args:
        wait: waits for the device, so that work started in a span counts as its time.
    """

    def __init__(self, wait: Callable[[], None]):
        self._wait = wait
        self.seconds: dict[tuple[str, str], float] = {}
        """Time of a call outside of its spans is `other`."""
        self._stack: list[str] = []
        self._mark = 0.0

    @contextlib.contextmanager
    def at_work(self, call: str) -> Iterator[None]:
        """Measure one call, such as `rollout`, and its spans."""
        global _at_work
        self._call, _at_work = call, self
        try:
            with self.measure("other", call):
                yield
        finally:
            _at_work = None

    @contextlib.contextmanager
    def measure(self, part: str, shown: str) -> Iterator[None]:
        """Measure one span of the present call; `shown` is its name in a trace."""
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
        """Add the time since the last turn to the innermost span."""
        self._wait()
        now = time.perf_counter()
        if self._stack:
            key = self._call, self._stack[-1]
            self.seconds[key] = self.seconds.get(key, 0.0) + now - self._mark
        self._mark = now


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that marks a block as a span, such as `decode`."""
    return _NOTHING if _at_work is None else _at_work.measure(name, name)
