"""What one pass through a stack of transformer layers keeps for its backward pass, counted tensor by tensor.

Everything that autograd saves in the layers that transformers writes in Python: norms, projections, attention with a
kernel that keeps no weights (sdpa), and the MLP. Sizes follow from the widths of a layer and from how many tokens
there are; nothing is fitted. Left out: rotary tables, attention's log-sums, biases of masks, and what a kernel takes
while it works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Stack:
    """Widths of the layers of a decoder or a vision tower, which are all alike."""

    number: int
    hidden: int
    intermediate: int
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together."""
    gated: bool = True
    """The MLP multiplies two projections."""
    norms: int = 2
    """Norms over the hidden state in a layer."""
    written_out: bool = True
    """Those norms are RMS norms in Python, which keep what they normalised beside what they were given."""
    head_norms: bool = False
    """Queries and keys are normalised."""
    scales: int = 0
    """Vectors that a layer multiplies its hidden state with."""
    fused: bool = False
    """Queries, keys and values come out of one projection, which is kept whole for the values in it."""


@dataclass(frozen=True)
class Work:
    """Tokens of one pass."""

    tokens: int
    completions: int = 0
    """Of them, tokens of completions behind a shared prompt."""
    behind: int = 0
    """Keys that all completions see together: the prompt's, once for each completion, and their own."""

    @property
    def shared(self) -> bool:
        """Whether prompts are computed once for their completions."""
        return self.behind > 0


def groups_of(prompt: int, completion: int, count: int, groups: int) -> Work:
    """`groups` prompts with `count` completions each, computed once."""
    completions = groups * count * completion
    return Work(groups * prompt + completions, completions, groups * count * (prompt + completion))


def per_layer(stack: Stack, work: Work, low: int) -> int:
    """Bytes that one layer keeps; `low` is 4 in fp32, 2 under autocast to bf16."""
    d, q, k, mixed = stack.hidden, stack.queries, stack.keys, low < 4
    # The residual stream and norms stay in fp32. What a norm is given, and what it has normalised.
    token = 4 * d * stack.norms * (2 if stack.written_out else 1)
    # What projections are given: under autocast each of them casts its own copy.
    token += (2 * d * ((1 if stack.fused else 3) + 1 + stack.gated)) if mixed else 4 * d * 2
    token += 4 * d * stack.scales
    if stack.head_norms:
        # fp32 copies of the projections, and what is normalised in their own dtype.
        token += (q + k) * (4 + low)
    # Attention: rotated queries and keys, and values; its output, and that in the order of the tokens.
    token += low * (q + 2 * k + 2 * q + (q + k if stack.fused else 0))
    # The MLP: what goes into its activation, what comes out, what it is multiplied with, and the product.
    token += low * stack.intermediate * (4 if stack.gated else 2)
    # Completions' queries with all heads of a key in a row, and their own copies of the prompt's keys and values.
    return work.tokens * token + low * (work.completions * q * (not mixed) + work.behind * 2 * k)


def kept(stack: Stack, work: Work, low: int, checkpointing: bool) -> int:
    """Bytes that a pass keeps for its backward pass; with checkpointing the hidden states between layers, in fp32."""
    return stack.number * (4 * stack.hidden * work.tokens if checkpointing else per_layer(stack, work, low))


def working(stack: Stack, work: Work, low: int, checkpointing: bool) -> int:
    """Bytes on top while a layer is computed a second time: all that it keeps, and gradients inside of its MLP."""
    if not checkpointing:
        return 0  # Whatever a layer needs in its backward pass, later layers have freed by then.
    return per_layer(stack, work, low) + 2 * low * stack.intermediate * work.tokens


def ends(stack: Stack, work: Work, towers: bool = False) -> int:
    """Bytes kept before and behind a stack: embeddings and the last norm; behind a tower a projector of two layers."""
    # The norm's input, what it normalised and its output; of a projector what goes into and out of its activation.
    return 4 * stack.hidden * work.tokens * ((2 + stack.written_out) + (2 if towers else 1))


def head(stack: Stack, tokens: int, vocabulary: int) -> int:
    """Bytes at the head: a chunk's logits and their gradient, or that and the gradient of the head's own weights."""
    return 4 * vocabulary * (tokens + max(tokens, stack.hidden))


def stack_of(layers: Sequence[nn.Module], config: Any) -> Stack:
    """The widths of some layers, from a (sub-)config of transformers and the modules of the first layer."""
    first = layers[0]
    heads = getattr(config, "num_attention_heads", None) or config.num_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    norms: list[Any] = [
        one for one in first.modules() if "norm" in type(one).__name__.lower() and hasattr(one, "weight")
    ]
    whole = [one for one in norms if one.weight.numel() == config.hidden_size]
    linear = [one.out_features for one in first.modules() if isinstance(one, nn.Linear)]
    return Stack(
        number=len(layers),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        queries=heads * head,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * head,
        gated=linear.count(config.intermediate_size) == 2,
        norms=len(whole),
        written_out=not isinstance(whole[0], nn.LayerNorm),
        head_norms=len(norms) > len(whole),
        scales=sum(one.numel() == config.hidden_size for one in first.parameters(recurse=False)),
        fused=heads * head * 3 in linear and config.intermediate_size != heads * head * 3,
    )
