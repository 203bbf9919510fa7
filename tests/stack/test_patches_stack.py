"""Patches on the current stack: loaded in every process that vLLM starts; ZeRO-3 loads Gemma-3 without help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import patches
from zero3_load import load_on_two_ranks

pytestmark = pytest.mark.stack

# A user's own script: it imports vLLM and nothing of ours. `spawn`, so that no process inherits what another did.
SCRIPT = """
import json, os, sys

def table(worker):
    import patches
    return os.getpid(), [[row.patch.name, row.state] for row in patches.status()]

if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=128, max_num_seqs=2, enforce_eager=True)
    [(pid, rows)] = llm.collective_rpc(table)
    (answer,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=3, ignore_eos=True))
    print(json.dumps({"own": os.getpid(), "worker": pid, "rows": rows, "tokens": len(answer.outputs[0].token_ids)}))
"""


def test_vllms_own_processes_load_the_plugin(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """The worker answers for itself, and the engine's process has logged the line."""
    script = tmp_path / "user.py"
    script.write_text(SCRIPT)
    settings = "CPU_KVCACHE_SPACE=1 CPU_OMP_THREADS_BIND=nobind ENABLE_V1_MULTIPROCESSING=1 LOGGING_LEVEL=INFO"
    # Insecure serialization lets collective_rpc take a function.
    settings += " WORKER_MULTIPROC_METHOD=spawn ALLOW_INSECURE_SERIALIZATION=1"
    environment = {**os.environ, **dict(f"VLLM_{item}".split("=") for item in settings.split())}
    argv = [sys.executable, str(script), str(tiny_checkpoints["qwen2_5_vl"])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert answer["worker"] != answer["own"]
    assert answer["tokens"] == 3
    states = dict(answer["rows"])
    assert set(states) == {patch.name for patch in patches.all_patches()}
    assert set(states.values()) <= {"applied", "not needed"}, states
    assert states["vllm_vision_attention"] == "not needed"
    assert any("EngineCore" in line and "mmcorl patches: torchvision_cpu" in line for line in output.splitlines())


def test_zero3_loads_gemma3_with_and_without_the_patch(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """transformers 5 does not have the bug: the patch stays out and every weight is the checkpoint's."""
    gemma = tiny_checkpoints["gemma3"]
    first, second = load_on_two_ranks(tmp_path / "ranks", gemma, "gemma3_zero3", gemma)
    assert first == second
    assert [answer.keys() for answer in first] == [{"compared"}] * 2, first
