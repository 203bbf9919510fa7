"""Headers about waiting, in the forms that endpoints use."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from mmcorl.llm_client.waiting import backoff, retry_after, until_reset


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "150", "retry-after": "1"}, 0.15),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers) == seconds


def test_retry_after_as_a_date_counts_from_now():
    wait = retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})
    assert wait is not None
    assert 98 < wait <= 100


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1.0),
        ("20ms", 0.02),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("59.7", 59.7),
        ("2m59.56s", 179.56),
        ("5m", 300.0),
        ("0", None),
        ("tomorrow", None),
        ("", None),
        ("-1", None),
    ],
)
def test_a_spent_budget_waits_for_its_reset(value, seconds):
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": value}
    assert until_reset(spent) == (pytest.approx(seconds) if seconds else None)
    assert until_reset({**spent, "x-ratelimit-remaining-requests": "3"}) is None
    # Azure has been seen to send -1 for "unknown".
    assert until_reset({**spent, "x-ratelimit-remaining-requests": "-1"}) is None


def test_of_two_spent_budgets_the_longer_reset_counts():
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "3s",
    }
    assert until_reset(headers) == 3.0


def test_backoff_doubles_up_to_a_limit_and_is_shortened_by_up_to_half():
    # 0.5, 1, 2, 4, 8, 8, ... times a factor in [0.5, 1].
    for tries, whole in enumerate([0.5, 1, 2, 4, 8, 8, 8], start=1):
        waits = [backoff(tries, 0.5, 8.0) for _ in range(200)]
        assert whole / 2 <= min(waits) < max(waits) <= whole
    assert backoff(100_000, 0.5, 8.0) <= 8.0
