"""The gate between engine and trainer: what it measures, what it lets pass, what it names."""

from __future__ import annotations

import pytest
import torch

from mmcorl.parity import Drift, coarser, drift, parity


def test_drift_by_hand():
    # |d| = 0.1, 0.2, 0.3 and 0.6: mean 0.3; of four values the 99th percentile is the fourth.
    found = drift([torch.tensor([0.1, -0.2]), torch.tensor([0.3]), torch.tensor([-0.6])])
    assert (found.tokens, found.mean, found.p99, found.most) == pytest.approx((4, 0.3, 0.6, 0.6))
    assert drift([]) == Drift(0, 0.0, 0.0, 0.0)


def measured(text: float, image: float | None, dtype: str):
    differences = {"text": [torch.full((10,), text)]}
    if image is not None:
        differences["image"] = [torch.full((10,), -image)]
    return parity("a", dtype, differences)


@pytest.mark.parametrize(
    ("text", "image", "dtype"),
    [
        (1e-7, 5e-7, "fp32"),  # five times as much, of nothing
        (9e-4, 9e-4, "fp32"),
        (0.02, 0.029, "bf16"),  # 1.45 times
        (0.001, 0.009, "bf16"),  # below the floor
        (0.049, None, "bf16"),
    ],
)
def test_what_passes(text, image, dtype):
    found = measured(text, image, dtype)
    assert found.fault is None
    assert "engine and trainer agree" in found.sentence()


@pytest.mark.parametrize(
    ("text", "image", "dtype", "words"),
    [
        (2e-3, 2e-3, "fp32", "0.002 nats per token on text alone (bound 0.001 in fp32)"),
        (0.06, None, "bf16", "other weights"),
        (1e-6, 8e-3, "fp32", "sees pictures another way"),
        (0.01, 0.02, "bf16", "0.02 nats per token with images and by 0.01 without"),
        (0.04, 0.055, "bf16", "sees pictures another way"),  # within 1.5 times, but above 0.05
    ],
)
def test_what_is_stopped_and_why(text, image, dtype, words):
    assert words in measured(text, image, dtype).fault


def test_the_coarser_dtype_counts():
    assert coarser(["fp32", "fp32"]) == "fp32"
    assert coarser(["fp32", "bf16"]) == coarser(["fp16", "fp16"]) == "bf16"
