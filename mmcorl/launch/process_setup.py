"""Set up a process that trains: patches, threads, quiet libraries, and checks that only its machine can make."""

from __future__ import annotations

import os

import torch
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

import patches
from mmcorl import sharding
from mmcorl.config import Config
from mmcorl.errors import UserError
from model_adapters.registry import check_versions


def prepare_process(config: Config) -> None:
    """Set up this process for a run, before it touches a model. Raises UserError for a missing package."""
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
