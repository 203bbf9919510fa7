"""The promises about speed, in one process on one core."""

import pytest

from tests.bench.grading import throughput


@pytest.mark.slow
def test_rules_are_twenty_times_as_fast_as_math_verify_and_a_regrade_takes_seconds() -> None:
    rates = throughput(4000)
    assert rates["ratio"] >= 20
    assert rates["regrade_seconds"] < 5
