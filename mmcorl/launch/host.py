"""The home of one worker: the same beside the run's own loop and in a process of its own."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

import patches
from mmcorl import sharding
from mmcorl.config import Config
from mmcorl.errors import UserError
from mmcorl.launch.cpu_offload import Resting
from mmcorl.trainer.profiler import Profiler
from mmcorl.trainer.worker import Worker
from model_adapters.registry import check_versions

CHANGING = ("update", "load")
"""Methods of a worker after which its weights are others."""


def prepare(config: Config) -> None:
    """What holds for a whole process before it touches a model, and what only the machine can refuse."""
    check_versions()
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    # transformers imports DeepSpeed where it is installed, which then reports its guess on stdout.
    gpu = config.device != "cpu" and torch.cuda.is_available()
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if gpu else "cpu")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.training.attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise UserError(
            "training.attention is 'flash_attention_2' but the package flash-attn does not work here: install it for "
            "this GPU, or use training.attention=sdpa"
        )
    sharding.require(config)


class Host:
    """Calls one worker; where agents share a GPU, it leaves it to the others between calls."""

    def __init__(self, worker: Worker, time_sliced: bool):
        self.worker = worker
        self._resting = Resting(worker) if time_sliced else None
        self._moving = 0.0
        self._profiler: Profiler | None = None
        self._move(away=True, changed=True)

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the worker. `update` adds the worker's timings, `facts` the name of its GPU.

        `profile` is a method of the host: where to write what `Config.profile` asks for.
        """
        if method == "profile":
            assert self.worker.config.profile is not None
            self._profiler = Profiler(self.worker, self.worker.config.profile, *arguments)
            return None
        if method == "facts":
            on_gpu = self.worker.device.type == "cuda"
            return self.worker.facts(), torch.cuda.get_device_name(self.worker.device) if on_gpu else None
        self._move(away=False)
        # After an error the run ends; moving what is half done would only raise another one over it.
        with self._profiler.during(method, arguments) if self._profiler else contextlib.nullcontext():
            result = getattr(self.worker, method)(*arguments)
        if self._profiler and self._profiler.done:
            self._profiler = None
        self._move(away=True, changed=method in CHANGING)
        if method == "update":
            moving, self._moving = self._moving, 0.0
            return result, self.worker.timings() | ({"moving_seconds": moving} if self._resting else {})
        return result

    def _move(self, away: bool, changed: bool = False) -> None:
        if self._resting is None:
            return
        start = time.perf_counter()
        if away:
            self._resting.rest(changed)
        else:
            self._resting.ready()
        self._moving += time.perf_counter() - start
