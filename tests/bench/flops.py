"""The arithmetic that one policy step needs, counted from the widths of a model: the cost model of the plots.

Forward, per token and weight of a matrix, 2 operations; per pair of a query and a key it may look at, 4 for each
channel of attention. The backward pass costs twice that, and recomputing activations once more. A prompt counts once
for a group where it is computed once, else for every completion; a picture counts once for a group in both, as its
features are repeated and not computed again. The head counts for completions alone. Not counted: norms, softmax,
rotary embeddings, the loss, the optimizer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mmcorl.trainer.profiler import SIDE, matmul_rate
from mmcorl.trainer.worker import Worker
from model_adapters.base import Encoded


@dataclass(frozen=True)
class Cost:
    """Operations of a model, forward."""

    body: float
    """Per token of the language model, attention over other tokens aside."""
    pair: float
    """Per pair of a query and a key, over all layers."""
    head: float
    """Per token that is scored."""

    def group(self, prompt: int, completions: int, tokens: int, shared: bool, recompute: bool = False) -> float:
        """Operations of a step for one group of equally long completions, the tower aside."""
        copies, own = 1 if shared else completions, tokens - 1  # The last one predicts none.
        passed = copies * prompt + completions * own
        pairs = copies * prompt**2 / 2 + completions * (prompt * own + own**2 / 2)
        forward = self.body * passed + self.pair * pairs
        return forward * (4 if recompute else 3) + self.head * completions * tokens * 3


def cost(worker: Worker) -> Cost:
    """The language model's, from its layers and its head."""
    model: Any = worker.policy.model
    decoder: Any = worker.adapter.decoder(model)
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Cost(
        body=2 * _matrices(decoder.layers),
        pair=4 * config.num_attention_heads * width * len(decoder.layers),
        head=2 * config.vocab_size * config.hidden_size,
    )


def tower(worker: Worker, prompt: Encoded, recompute: bool = False) -> float:
    """Operations of a step for the pictures of one prompt, seen once, the tower trained."""
    if not prompt.vision:
        return 0.0
    model: Any = worker.policy.model
    config: Any = model.config.vision_config
    pixels = prompt.vision["pixel_values"]
    if pixels.dim() == 2:  # Qwen2.5-VL: one row per patch, and most layers look at windows.
        patches, full = len(pixels), len(config.fullatt_block_indexes)
        pairs = sum(int(grid.prod()) ** 2 for grid in prompt.vision["image_grid_thw"])
        looked = full * pairs + (config.depth - full) * patches * (config.window_size // config.patch_size) ** 2
    else:
        side = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        each = (pixels.shape[-1] // side) ** 2
        patches = len(pixels) * each
        looked = config.num_hidden_layers * patches * each
    parts = worker.adapter.vision_modules(model)
    seeing = sum(_matrices(part) for part in parts)
    # Between tower and language model, features are few: one for each token of a picture.
    apart = [*parts, worker.adapter.decoder(model), model.lm_head]
    between = _matrices(model) - sum(_matrices(part) for part in apart)
    token = worker.adapter.image_token_id(model.config)
    features = int(prompt.input_ids.eq(token).sum()) if token is not None else 0
    forward = 2 * seeing * patches + 4 * config.hidden_size * looked + 2 * between * features
    return forward * (4 if recompute else 3)


def of_matrices(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second at which large matrices are multiplied: the best of some tries.

    On a CPU per second of the processor and not of the clock, as other work may run beside it: of one thread.
    """
    if device.type != "cpu":
        return matmul_rate(device, dtype)
    side, best = SIDE["cpu"], float("inf")
    left, right = (torch.randn(side, side, dtype=dtype) for _ in range(2))
    for _ in range(40):
        before = time.process_time()
        torch.mm(left, right)
        best = min(best, time.process_time() - before)
    return 2 * side**3 / best


def _matrices(part: nn.Module) -> int:
    """Weights of everything that multiplies: embeddings, norms and biases do not."""
    layers = [one.weight.numel() for one in part.modules() if isinstance(one, nn.Linear | nn.Conv2d | nn.Conv3d)]
    # Gemma-3's projector is a bare matrix.
    bare = [one.numel() for name, one in part.named_parameters() if name.endswith("mm_input_projection_weight")]
    return sum(layers) + sum(bare)
