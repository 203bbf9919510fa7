"""When to try again: what an endpoint's headers ask for, and backoff where they are silent."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d*)?)s)?(?:(\d+(?:\.\d*)?)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_RANDOM = random.Random()  # Of its own: sampling seeds elsewhere must not depend on a network.


def backoff(tries: int, first: float, most: float) -> float:
    """Seconds to wait after `tries` failures (from 1): doubling, at most `most`, shortened at random by up to half."""
    # 2**63 times any backoff is past any limit, and 2**1100 is no float.
    return min(most, first * 2.0 ** min(tries - 1, 63)) * _RANDOM.uniform(0.5, 1.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` (seconds or a date, RFC 9110) ask for; None without them."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if value is None or seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None  # Nothing we can obey; the caller backs off.


def until_reset(headers: Mapping[str, str]) -> float | None:
    """Seconds until a spent budget is renewed: `x-ratelimit-remaining-*` of 0 with its `-reset-*`; None otherwise.

    OpenAI and those who follow it write durations as `20ms`, `1s`, `6m0s`, or as plain seconds.
    """
    waits = []
    for budget in ("requests", "tokens"):
        if _number(headers.get(f"x-ratelimit-remaining-{budget}")) == 0:
            waits.append(_duration(headers.get(f"x-ratelimit-reset-{budget}")))
    return max((wait for wait in waits if wait), default=None)


class Gate:
    """Holds all requests back until a time: a rate limit is the key's, not one question's."""

    def __init__(self) -> None:
        self._until = 0.0

    def hold(self, seconds: float) -> None:
        """Let nobody through for that long from now."""
        self._until = max(self._until, time.monotonic() + seconds)

    async def passed(self) -> None:
        """Return when the gate is open; those who waited leave one after another rather than all at once."""
        while (left := self._until - time.monotonic()) > 0:
            await asyncio.sleep(left * _RANDOM.uniform(1.0, 1.1))


def _number(value: str | None) -> float | None:
    """A finite number that is not negative."""
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _duration(value: str | None) -> float | None:
    seconds = _number(value)
    if value is None or seconds is not None:
        return seconds
    found = _DURATION.fullmatch(value.strip())
    if not found or not value.strip():
        return None
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part)
