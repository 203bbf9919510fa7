"""What an agent's time buys: samples per second, and the share of the GPUs' arithmetic that the work needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PEAK_TFLOPS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "H800": 989,
    "A100": 312,
    "A800": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A6000": 155,
    "A40": 150,
    "A10": 125,
    "4090": 165,
    "3090": 71,
    "MI300X": 1307,
}
"""Dense bf16 matrix arithmetic of a GPU in TFLOP/s, by what its name contains; the first match counts. From the
makers' data sheets, without sparsity."""


def peak_flops(device_name: str | None) -> float | None:
    """FLOP/s in bf16 of a GPU by its name; None for a CPU or a GPU that is not in the table."""
    for name, tflops in PEAK_TFLOPS.items():
        if device_name is not None and name in device_name:
            return tflops * 1e12
    return None


def rates(timings: Mapping[str, float], prompts: int, peak: float | None) -> dict[str, float | None]:
    """One step of one agent, for its line in timings.jsonl.

    `tokens_per_second` counts completion tokens over rollout and update together; divided by `rollout_share` it is
    the speed of sampling. `mfu` is the share of the GPUs' peak that the arithmetic of the update makes: 6 operations
    per parameter and token, prompts and completions of the groups that gave a gradient, recomputed activations and
    attention over the context not counted.

    Args:
        timings: what `Worker.timings` says of the step; `moving_seconds` where agents share a GPU.
        prompts: of the step.
        peak: FLOP/s of all its GPUs together; None without a known GPU.
    """
    update = timings["update_seconds"] + timings["sync_seconds"]
    total = timings["rollout_seconds"] + update
    return {
        **{key: round(value, 4) for key, value in timings.items() if key.endswith("_seconds")},
        **{key: round(value, 3) for key, value in timings.items() if key.endswith("_gb")},
        "prompts": prompts,
        **{key: value for key, value in timings.items() if key.startswith("sampled_")},
        "prompts_per_second": prompts / total,
        "completions_per_second": timings["completions"] / total,
        "tokens_per_second": timings["completion_tokens"] / total,
        "rollout_share": timings["rollout_seconds"] / total,
        "mfu": None if peak is None else timings["update_flops"] / timings["update_seconds"] / peak,
    }


def peak_memory(timings: Sequence[Mapping[str, Any]], agent: str) -> dict[str, Any]:
    """The most GB that the fullest rank of an agent took in any step (`measured_gb`), and `of` what (GPU or process).

    From the lines of timings.jsonl; empty where no step was measured.
    """
    lines = [line["agents"][agent] for line in timings if agent in line.get("agents", {})]
    for of, key in (("GPU", "peak_gpu_gb"), ("process", "peak_process_gb")):
        if known := [line[key] for line in lines if line.get(key) is not None]:
            return {"of": of, "measured_gb": max(known)}
    return {}


def memory_sentence(memory: Mapping[str, Any]) -> str:
    """What an agent took and what was predicted, for people; `memory` is what summary.json says of it."""
    whose = " by all agents together" if memory.get("together") else ""
    unit = 1e9 / 2**30
    told = f", {memory['predicted_gb'] * unit:.2f} predicted" if "predicted_gb" in memory else ""
    if memory["of"] == "GPU":
        return f"peak {memory['measured_gb'] * unit:.2f} GiB per GPU{whose}{told}"
    return f"process grown by {memory['measured_gb'] * unit:.2f} GiB at its peak{whose}{told} for tensors"


WORK = ("rollout_seconds", "update_seconds", "sync_seconds")


def overall(timings: Sequence[Mapping[str, Any]], agent: str) -> dict[str, float | None]:
    """The rates of a whole run from the lines of timings.jsonl: those of its steps, weighted by their seconds.

    `busy_share` is the part of the run's time in which the agent itself worked: the rest it waited for peers,
    evaluations and checkpoints. Empty where no step was measured.
    """
    lines = [line["agents"][agent] for line in timings if agent in line.get("agents", {})]
    weights = [sum(line[key] for key in WORK) for line in lines]
    total = sum(weights)
    if not total:
        return {}
    found: dict[str, float | None] = {}
    for key in ("prompts_per_second", "completions_per_second", "tokens_per_second", "rollout_share", "mfu"):
        values = [line[key] for line in lines]
        known = all(value is not None for value in values)
        found[key] = sum(v * w for v, w in zip(values, weights, strict=True)) / total if known else None
    elapsed = sum(line["seconds"]["total"] for line in timings)
    return {**found, "busy_share": min(1.0, total / elapsed) if elapsed else None}
