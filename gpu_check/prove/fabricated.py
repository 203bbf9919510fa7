"""Workers that train on made-up rollouts: pictures of noise, random completions, nothing sampled and no data.

What benches and `gpu_check prove` measure is the real update of the real worker; only what it is fed is made up.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmcorl.config import Config, parse
from mmcorl.data.row_parsing import prompt_uid
from mmcorl.engines.base import Sample
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.trainer.microbatches import Rollout
from mmcorl.trainer.worker import Worker
from mmcorl.types import Prompt
from model_adapters.base import Encoded

SENTENCE = "How many dots are there in this picture, and which shape is the largest? "


def config_of(
    name: str, folder: Path, device: str, *, prompts: int, completions: int, tokens: int, **sections: Any
) -> Config:
    """The config of one agent on the checkpoint in `folder`; `sections` are added."""
    return parse(
        {
            "steps": 100,
            "agents": [{"name": name, "model": str(folder)}],
            "supervision": {"kind": "self"},
            "data": {"train": {"source": "synthetic:visual", "size": 8}, "max_prompt_tokens": 8192},
            "batch": {"prompts": prompts, "completions": completions},
            "sampling": {"max_new_tokens": tokens},
            "device": device,
            **sections,
        }
    )


def load_worker(config: Config) -> Worker:
    """The worker of the config's only agent."""
    agent = config.agents[0]
    return Worker(config, PromptEncoder(config, agent, agent.model), 100, torch.device(config.device))


def question(text: str, number: int, side: int, images: int) -> Prompt:
    """Prompt `number` with pictures of noise, of `side` pixels squared."""
    noise = np.random.default_rng(number)
    pictures = []
    for _ in range(images):
        file = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file, "PNG")
        pictures.append(file.getvalue())
    return Prompt(prompt_uid(text, None, tuple(pictures)), str(number), text, tuple(pictures))


def questions(
    worker: Worker, count: int, side: int, *, images: int = 1, copies: int = 1, tokens: int | None = None
) -> dict[str, Encoded]:
    """Encoded prompts by uid: `images` pictures where the family sees, and `SENTENCE` so many times.

    With `tokens` each has exactly so many: random ones behind a picture and its sentence, or nothing else.
    """
    made: dict[str, Encoded] = {}
    for number in range(count):
        prompt = question(f"{number}. {SENTENCE * copies}", number, side, images if worker.adapter.multimodal else 0)
        encoded = worker.encoder.encode(prompt)
        made[prompt.uid] = encoded if tokens is None else _of_length(encoded, tokens, sampled_ids(worker), number)
    return made


def _of_length(prompt: Encoded, tokens: int, allowed: torch.Tensor, seed: int) -> Encoded:
    """A prompt with pictures and random tokens behind it, or of random tokens alone."""
    ids, positions, start = prompt.input_ids, prompt.positions, prompt.next_position
    if not prompt.vision:
        ids, positions, start = ids[:0], positions[:, :0], 0
    more = tokens - len(ids)
    if more < 0:
        raise ValueError(f"a prompt of {tokens} tokens was asked for, but picture and sentence have {-more} more")
    drawn = allowed[torch.randint(len(allowed), (more,), generator=torch.Generator().manual_seed(seed))]
    onward = (start + torch.arange(more)).expand(len(positions), -1)
    return replace(
        prompt,
        input_ids=torch.cat([ids, drawn]),
        positions=torch.cat([positions, onward], dim=1),
        next_position=start + more,
    )


def sampled_ids(worker: Worker) -> torch.Tensor:
    """Every id that can be sampled."""
    ids = torch.arange(worker.policy.model.config.get_text_config().vocab_size)
    return ids[~torch.isin(ids, worker.policy.banned.cpu())]


def fabricate(
    worker: Worker, prompts: Mapping[str, Encoded], lengths: Sequence[Sequence[int]], seed: int
) -> dict[str, tuple[float, ...]]:
    """Put random completions into the worker, of `lengths` by prompt; returns rewards of which half are 1."""
    generator, allowed = torch.Generator().manual_seed(seed), sampled_ids(worker)
    worker.rollouts.pending = {
        uid: Rollout(encoded, [_sample(allowed, length, generator) for length in row])
        for (uid, encoded), row in zip(prompts.items(), lengths, strict=True)
    }
    return {uid: tuple(float(k % 2) for k in range(len(row))) for uid, row in zip(prompts, lengths, strict=True)}


def _sample(allowed: torch.Tensor, length: int, generator: torch.Generator) -> Sample:
    ids = allowed[torch.randint(len(allowed), (length,), generator=generator)]
    return Sample(ids, torch.full((length,), -np.log(len(allowed))), "length")
