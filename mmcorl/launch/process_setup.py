"""Set up a process that trains: patches, threads, quiet libraries, and checks that only its machine can make."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

import patches
from mmcorl import sharding
from mmcorl.errors import UserError
from mmcorl.policy import four_bits
from mmcorl.system import cuda
from mmcorl.trainer.settings import TrainingSettings
from model_adapters.registry import check_versions


def prepare_process(training: TrainingSettings, *, device: str, threads: int | None) -> None:
    """Set up this process for a run, before it touches a model or a GPU. Raises UserError for a missing package."""
    check_versions()
    prepare_libraries(gpu=device != "cpu")
    if threads:
        torch.set_num_threads(threads)
    if training.attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise UserError(
            "training.attention is 'flash_attention_2' but the package flash-attn does not work here: install it for "
            "this GPU, or use training.attention=sdpa"
        )
    if not (training.lora and training.lora.quantize):
        # peft imports bitsandbytes, which warns of kernels for four bits that it lacks on a CPU.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    sharding.require(training)
    four_bits.require(training.lora)


def prepare_libraries(gpu: bool) -> None:
    """Set torch and transformers up, for every process that computes with a model; `gpu`: perhaps on one."""
    _set_up_cuda()
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    # transformers imports DeepSpeed where it is installed, which then reports its guess on stdout.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if gpu and torch.cuda.is_available() else "cpu")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


@contextmanager
def threads_back_to(count: int) -> Iterator[None]:
    """Give torch as many threads at the end as before the run: the process may be a notebook's, and live on."""
    try:
        yield
    finally:
        torch.set_num_threads(count)


def require_device(device: torch.device) -> None:
    """Raise UserError where torch does not see this GPU."""
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = cuda.fault() or "torch sees no GPU"
        raise UserError(f"device is {str(device)!r} but {reason}; or use device=cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"device is {str(device)!r} but torch sees {torch.cuda.device_count()} GPU(s), from cuda:0 on")


def _set_up_cuda() -> None:
    """Choose how torch attends and allocates on a GPU; the driver of a run passes the variables on to its workers.

    cuDNN's attention, which torch prefers on Hopper, plans every new shape for tenths of a second, and micro-batches
    hardly ever have the same shape. Segments that grow keep micro-batches of all sizes from fragmenting the memory.
    """
    os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    torch.backends.cuda.enable_cudnn_sdp(False)
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
