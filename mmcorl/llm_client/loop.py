"""Runs what asks an endpoint, from ordinary code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in a thread of its own where this one has an event loop; of several errors, raise the first."""
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, work).result()
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
