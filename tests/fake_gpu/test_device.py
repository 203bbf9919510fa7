"""The fake GPU counts what a GPU would do: by hand, for a few operators."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from fake_gpu_runs import child
from paths import ROOT

KIB = 1024


@pytest.fixture(scope="module")
def by_hand() -> Any:
    return child("by_hand")


def test_kernels_bytes_and_waits_of_a_product(by_hand: Any) -> None:
    found = by_hand["product"]
    assert found["names"] == {"mm": 1, "_to_copy": 1, "exp": 1}
    assert found["flop"] == 2 * 1024 * 2048 * 512
    # bf16 in: 4 MiB and 2 MiB; out: 1 MiB. The cast reads 1 MiB and writes 2, exp reads 2 and writes 2.
    assert found["moved"] == (4 + 2 + 1 + 1 + 2 + 2 + 2) * KIB**2
    # Both matrices, their product, its cast and exp, of which the cast goes as exp returns.
    assert found["peak"] == (4 + 2 + 1 + 2 + 2) * KIB**2
    assert found["now"] < (4 + 2) * KIB**2 + 8 * KIB
    # Not known: a half. Known: indices, their sums, where they are 1, the largest.
    assert (found["value"], found["listed"]) == (0.5, [[3, 4, 6, 7], [1, 3], 3])
    # A value, two lists, `nonzero`, the largest.
    assert sum(found["waits"].values()) == 5
    assert all("tests/fake_gpu/child.py" in line for line in found["waits"])
    assert "same device" in found["mixed"] or "two different devices" in found["mixed"]


def test_what_logsumexp_makes_inside_counts_at_the_peak(by_hand: Any) -> None:
    # A tensor of 4 MiB, its exponentials, and a row of results.
    assert by_hand["inside"] == {"peak": (4 + 4) * KIB**2, "now": 4 * KIB**2 + 1024 * 4, "rows": 1024}


def test_attention_kernels_and_their_arithmetic(by_hand: Any) -> None:
    found = by_hand["attention"]
    # Queries by keys, scores by values: 2 x 2 x 16 heads x 512 x 512 x 128, half of it where causal.
    whole = 4 * 16 * 512 * 512 * 128
    assert found["causal"] == [{"flash": 1}, whole / 2]
    assert found["all"] == [{"flash": 1}, whole]
    # 128 queries at the end of 512 keys: of the last 128, half.
    assert found["lower right"] == [{"flash": 1}, 4 * 16 * 128 * (512 - 128 / 2) * 128]
    assert found["mask"] == [{"efficient with a mask": 1}, whole]
    assert found["cudnn"] == [{"cudnn": 1}, whole / 2]


def test_arithmetic_of_a_variable_length_call(by_hand: Any) -> None:
    found = by_hand["varlen"]
    # Causal pairs: 10 x 10 / 2 twice; 3 queries meet 10 keys before them, and 3 x 3 / 2 of their own.
    pairs = 50 + 50 + 30 + 4.5
    assert found["forward"] == pairs * 8 * 64 * 4
    assert found["backward"] == pairs * 8 * 64 * 10
    # A window of 4 keys: at most 4 for each query.
    assert found["window"] == (40 + 40 + 12) * 8 * 64 * 4
    assert found["calls"] == {"varlen": 1, "varlen, backward": 1}


def test_what_cuda_fuses_is_one_kernel(by_hand: Any) -> None:
    found = by_hand["fused"]
    kinds = ("silu", "silu_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
    assert {kind: found.get(kind) for kind in kinds} == dict.fromkeys(kinds, 1)
    # Two products for the gradients of the two factors, and the one that is differentiated.
    assert found["mul"] == 3


def test_without_a_compiler_there_is_a_sentence(tmp_path: Any) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "MMCORL_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "gpu_check", "dry", "configs/text.yaml"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check: the fake GPU is compiled on first use and there is no g++ here")
