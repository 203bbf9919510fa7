"""TRL's GRPOTrainer at the other end of a pipe: it trains on the batches that it is given, one step at a time.

The real `GRPOTrainer.train()` runs: its processor calls, its scoring pass, its loss, backward, clipping and optimizer.
Given are only what a rollout would have given: the ids of the completions, what an engine would have said of them, and
rewards. What is set otherwise than by default, and why, stands in `settings`.
"""

from __future__ import annotations

import gc
import io
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import patches
from tests.bench.update_step import PeakMemory


def settings(checkpointing: bool, rows: int, completions: int, tokens: int, steps: int) -> dict[str, Any]:
    """What GRPOConfig is given: one micro-batch, as ours is, and the loss, the correction and the clip of the race.

    `bnpo` is the mean over the tokens of the batch. The default, `dapo`, is the same number where one process makes
    one micro-batch. Everything that is not named here is TRL's default.
    """
    return {
        "per_device_train_batch_size": rows,
        "num_generations": completions,
        "gradient_accumulation_steps": 1,
        "max_completion_length": tokens,
        "max_steps": steps,
        "gradient_checkpointing": checkpointing,
        "loss_type": "bnpo",
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 3.0,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "shuffle_dataset": False,
        "disable_dropout": True,
        "temperature": 1.0,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def serve(pipe: Connection, folder: str, job: dict[str, Any]) -> None:
    """Train on what arrives until the steps are done; `job` is described in `against_trl.job`.

    Receives before each step (prompt ids, completion ids, engine's log-probabilities, rewards) and sends behind it
    seconds, processor seconds, seconds of the pass for old log-probabilities, norm of the gradient, bytes of memory.
    The time in the processor of prompts and pictures is taken off.
    """
    torch.set_num_threads(job["threads"])
    warnings.simplefilter("ignore")  # TRL's remarks on other packages' versions.
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

    cuda = job["device"] == "cuda"
    if not cuda:
        # With Triton, TRL's head scores completions alone; without, prompts too. What it does on a GPU is fair.
        utils._use_triton = lambda device: True

    class Given(GRPOTrainer):  # type: ignore[misc, unused-ignore]
        """GRPOTrainer with completions and rewards that are given."""

        batch: tuple[list[list[int]], list[list[int]], list[list[float]], list[float]]
        old_seconds = 0.0
        reading_seconds = 0.0
        norm = 0.0

        def _tokenize_prompts(self, prompts: list[Any]) -> Any:
            ids, images, fields = super()._tokenize_prompts(prompts)
            if not job["images"]:
                return self.batch[0], images, fields  # Text prompts are random ids.
            if [list(one) for one in ids] != self.batch[0]:
                raise RuntimeError("TRL reads the prompts as other tokens than we do")
            return ids, images, fields

        def _generate_single_turn(self, *_: Any, **__: Any) -> Any:
            return self.batch[1], self.batch[2]

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            types = kwargs.get("token_type_ids")
            if types is not None and types.shape[1] > args[1].shape[1]:
                # TRL has Gemma-3's processor put a second <bos> in front, so that its image blocks lie a token late.
                kwargs["token_type_ids"] = types[:, types.shape[1] - args[1].shape[1] :]
            began = now()
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if not torch.is_grad_enabled():
                self.old_seconds += now() - began
            return found

    class Turns(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Waits for a batch before each step and tells what it took behind it."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            trainer.batch = pipe.recv()
            trainer.old_seconds = trainer.reading_seconds = 0.0
            gc.collect()
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            self.memory = PeakMemory()
            self.memory.__enter__()
            self.began, self.busy = now(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            told = {
                "step": now() - self.began - trainer.reading_seconds,
                "processor": time.process_time() - self.busy - trainer.reading_seconds,
                "old": trainer.old_seconds,
                "norm": trainer.norm,
            }
            self.memory.__exit__()
            pipe.send({**told, "peak": torch.cuda.max_memory_allocated() if cuda else self.memory.peak})

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    prompts = [
        {
            "prompt": [{"role": "user", "content": text}],
            **({"images": [Image.open(io.BytesIO(one)) for one in pictures]} if pictures else {}),
        }
        for text, pictures in job["prompts"]
    ]
    asked = Dataset.from_list(prompts)
    trainer = Given(
        model=folder,
        reward_funcs=lambda **_: trainer.batch[3],
        args=GRPOConfig(
            output_dir=str(Path(folder) / "trl"),
            use_cpu=not cuda,
            bf16=job["dtype"] == "bf16",
            model_init_kwargs={"dtype": "float32"},
            **settings(job["checkpointing"], len(prompts) * job["completions"], job["completions"], *job["sizes"]),
        ),
        train_dataset=asked,
        callbacks=[Turns()],
    )
    read = type(trainer.processing_class).__call__

    def reading(*args: Any, **kwargs: Any) -> Any:
        began = now()
        found = read(*args, **kwargs)
        trainer.reading_seconds += now() - began
        return found

    # What prompts and pictures cost to read is no part of an update; ours were read before.
    type(trainer.processing_class).__call__ = reading
    # As if vLLM had sampled: that costs the pass for old log-probabilities, and its tokens are weighted.
    trainer.use_vllm = True
    clip = trainer.accelerator.clip_grad_norm_

    def clipped(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        trainer.norm = float(norm)
        return norm

    trainer.accelerator.clip_grad_norm_ = clipped
    pipe.send({"parameters": sum(one.numel() for one in trainer.model.parameters())})
    trainer.train()
