"""The K completions of a prompt behind one copy of it: attention for a flat row without padding.

A row holds prompts, each once, and their completions; everything but attention treats its tokens alike. Attention is
computed in two parts: a prompt with itself, once, and each completion's queries with [keys of the prompt; its own]. A
decoder of transformers takes part by way of its registry of attention functions; the name is set on its attention
modules only while they work on such a row, also when gradient checkpointing calls them a second time, so that every
other pass is untouched.

Source: arXiv:2506.05433 (Prefix Grouper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "mmcorl_shared_prefix"
"""In the registry of transformers."""
KEYWORD = "shared_prefix"
"""By which the layout travels through the decoder to its attention modules."""
RAGGED = 0.75
"""Completions are padded, in attention alone, to the longest of their bundle: none is shorter than this share of it."""
NO_MASK = (1, 1, 1, 1)
"""Shape of a mask that transformers takes for ready-made and hands on; nothing looks at it."""


class CannotShare(Exception):
    """Why a model cannot compute prompts once; the message completes "the prompt is computed once per row, as ..."."""


@dataclass(frozen=True)
class Bundle:
    """Completions that meet the kernel together, the longest first."""

    lengths: tuple[int, ...]
    owners: Tensor | None
    """(n,) which prompt of the branching each follows; None where there is one."""
    padded: Tensor | None
    """(n * longest,) index into the bundle's tokens, row after row; None where all are of one length."""
    valid: Tensor | None
    """(tokens,) places of the bundle's tokens in the padded rows; None likewise."""

    @property
    def tokens(self) -> int:
        """Of all completions."""
        return sum(self.lengths)


@dataclass(frozen=True)
class Branching:
    """Prompts that are alike and the completions behind them."""

    prompts: int
    prefix: int
    """P, tokens of each prompt."""
    blocks: Tensor | None
    """(P,) int64: tokens of one number above 0 attend to each other both ways; None for prompts without such."""
    bundles: tuple[Bundle, ...]


Place = tuple[int, int | None]
"""(group, number of a completion), or (group, None) for its prompt."""


@dataclass(frozen=True)
class Layout:
    """How a flat row of T tokens is made up."""

    branchings: tuple[Branching, ...]
    order: tuple[Place, ...]
    """What lies in the row, one behind the other."""
    _masks: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each part of the row: the prompts of a branching, each of its bundles, the next prompts."""
        return [
            size
            for branching in self.branchings
            for size in (branching.prompts * branching.prefix, *(one.tokens for one in branching.bundles))
        ]

    def prefix_mask(self, branching: Branching, window: int | None, query: Tensor, repeats: int) -> Tensor | None:
        """(repeats * P, P) added to a prompt's products; None where its tokens see all of it that precedes them."""
        if branching.blocks is None and (window is None or branching.prefix <= window):
            return None
        key = ("prefix", id(branching), window, _of_products(query), repeats)
        if key not in self._masks:
            back = _behind(branching.prefix, branching.prefix, query.device)
            seen = back >= 0
            if branching.blocks is not None:
                blocks = branching.blocks.to(query.device)
                seen |= (blocks[:, None] == blocks) & (blocks > 0)
            self._masks[key] = _added(seen if window is None else seen & (back < window), query, repeats)
        return self._masks[key]

    def bundle_mask(self, keys: int, longest: int, window: int | None, query: Tensor, repeats: int) -> Tensor:
        """(repeats * C, keys + C) added to completions' products with the prompt's last keys and their own."""
        key = ("bundle", keys, longest, window, _of_products(query), repeats)
        if key not in self._masks:
            back = _behind(longest, keys + longest, query.device)
            seen = (back >= 0) if window is None else (back >= 0) & (back < window)
            self._masks[key] = _added(seen, query, repeats)
        return self._masks[key]


def _added(seen: Tensor, query: Tensor, repeats: int) -> Tensor:
    """0 for what is seen, -inf for what is not, in the dtype of the products: one for all layers, which keep it."""
    return torch.zeros_like(seen, dtype=_of_products(query)).masked_fill_(~seen, float("-inf")).repeat(repeats, 1)


def _of_products(query: Tensor) -> torch.dtype:
    """In which attention multiplies: under autocast another than a normalised query has, and a cast for each layer."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


def _behind(queries: int, keys: int, device: torch.device) -> Tensor:
    """How far (queries, keys) each key lies behind each query, the last of both being the same token."""
    return torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)


def layout(
    prefixes: Sequence[int], blocks: Sequence[Tensor | None], lengths: Sequence[Sequence[int]], device: torch.device
) -> Layout:
    """Plan a row of some groups: tokens and two-way blocks of each prompt, tokens of each of its completions.

    Prompts of one length and with the same blocks come together, and their completions by length, so that few and
    large pieces of work go to the kernel.
    """
    alike: dict[Any, list[int]] = {}
    for group, (prefix, block) in enumerate(zip(prefixes, blocks, strict=True)):
        alike.setdefault((prefix, None if block is None else tuple(block.tolist())), []).append(group)
    branchings: list[Branching] = []
    order: list[Place] = []
    for groups in alike.values():
        rows = [(group, k) for group in groups for k in range(len(lengths[group]))]
        rows.sort(key=lambda row: -lengths[row[0]][row[1]])
        order += [*((group, None) for group in groups), *rows]
        number = {group: index for index, group in enumerate(groups)}
        bundles = [
            _bundle(
                tuple(lengths[group][k] for group, k in bundle),
                torch.tensor([number[group] for group, _ in bundle], device=device) if len(groups) > 1 else None,
                device,
            )
            for bundle in _bundled(rows, lengths)
        ]
        branchings.append(Branching(len(groups), prefixes[groups[0]], blocks[groups[0]], tuple(bundles)))
    return Layout(tuple(branchings), tuple(order))


def _bundled(rows: Sequence[tuple[int, int]], lengths: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Cut rows that go by length where it falls too far."""
    bundles: list[list[tuple[int, int]]] = []
    longest = 0
    for group, k in rows:
        if not bundles or lengths[group][k] < RAGGED * longest:
            bundles.append([])
            longest = lengths[group][k]
        bundles[-1].append((group, k))
    return bundles


def _bundle(lengths: tuple[int, ...], owners: Tensor | None, device: torch.device) -> Bundle:
    longest = lengths[0]
    if lengths[-1] == longest:
        return Bundle(lengths, owners, None, None)
    length = torch.tensor(lengths)
    within = torch.arange(longest).expand(len(lengths), -1)
    here = within < length[:, None]
    start = length.cumsum(0) - length
    # Padding repeats the first token: finite, seen by no token of the completion, and thrown away.
    padded = torch.where(here, within + start[:, None], start[:, None])
    return Bundle(lengths, owners, padded.flatten().to(device), here.flatten().nonzero().flatten().to(device))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    shared_prefix: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of one flat row in the form that transformers calls: (1, H, T, D) queries to (1, T, H, D).

    Keys and values (1, H_kv, T, D) have H / H_kv times fewer heads and are not repeated for that; query heads of
    one key head are stacked as if they were more queries. `sliding_window` counts tokens of prompt and completion
    as if there were no other completions. Raises CannotShare for what it does not know, such as a soft-cap.
    """
    for unknown in ("softcap", "s_aux", "position_bias"):
        if more.get(unknown) is not None:
            raise CannotShare(f"attention of {type(module).__name__} has {unknown}")
    if query.shape[0] != 1:
        raise ValueError(f"{query.shape[0]} rows where a layout describes one")
    parts = zip(*(tensor[0].split(shared_prefix.sizes, dim=1) for tensor in (query, key, value)), strict=True)
    # Query heads of one key head.
    repeats = query.shape[1] // key.shape[1]
    done: list[Tensor] = []
    for branching in shared_prefix.branchings:
        q, k, v = (_rows(tensor, branching.prompts) for tensor in next(parts))
        mask = shared_prefix.prefix_mask(branching, sliding_window, q, repeats)
        done.append(_grouped(q, k, v, mask, scaling))
        # No completion sees further back than its first token does.
        reach = branching.prefix if sliding_window is None else min(branching.prefix, sliding_window - 1)
        k, v = k[:, :, branching.prefix - reach :], v[:, :, branching.prefix - reach :]
        for bundle in branching.bundles:
            mask = shared_prefix.bundle_mask(reach, bundle.lengths[0], sliding_window, q, repeats)
            done.append(_branches(next(parts), k, v, bundle, mask, scaling))
    return torch.cat(done)[None], None


def _rows(tensor: Tensor, count: int) -> Tensor:
    """(H, n * L, D) to (n, H, L, D)."""
    return tensor.unflatten(1, (count, -1)).transpose(0, 1)


def _branches(
    own: Sequence[Tensor], prefix_key: Tensor, prefix_value: Tensor, bundle: Bundle, mask: Tensor, scaling: float | None
) -> Tensor:
    """Completions (H, S, D) behind prefixes (n, H_kv, P, D), to (S, H, D)."""
    rows = len(bundle.lengths)
    if bundle.padded is not None:
        own = [tensor.index_select(1, bundle.padded) for tensor in own]
    q, k, v = (_rows(tensor, rows) for tensor in own)
    if bundle.owners is None:
        behind = [tensor.expand(rows, -1, -1, -1) for tensor in (prefix_key, prefix_value)]
    else:
        behind = [tensor.index_select(0, bundle.owners) for tensor in (prefix_key, prefix_value)]
    out = _grouped(q, torch.cat([behind[0], k], dim=2), torch.cat([behind[1], v], dim=2), mask, scaling)
    return out if bundle.valid is None else out.index_select(0, bundle.valid)


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """(n, H, L, D) queries against (n, H_kv, S, D), with a mask for stacked ones or else causal, to (n * L, H, D)."""
    repeats = q.shape[1] // k.shape[1]
    if mask is None:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=repeats > 1)
        return out.transpose(1, 2).flatten(0, 1)
    # Kernels that take a mask repeat keys and values otherwise.
    stacked = q.unflatten(1, (-1, repeats)).flatten(2, 3)
    out = scaled_dot_product_attention(stacked, k, v, attn_mask=mask, scale=scaling)
    return out.unflatten(2, (repeats, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)


# -- the way into a decoder of transformers ------------------------------------------------------------------------


def install(decoder: nn.Module) -> None:
    """Let the attention modules of a text model follow a layout that they are given.

    Raises CannotShare where this model has tokens meet in other ways than attention over all or over a window, or
    has none that could be reached.
    """
    config: Any = getattr(decoder, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if other := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise CannotShare(f"this model has layers of {other[0]}")
    chosen = getattr(config, "_attn_implementation", None)
    if chosen not in ("sdpa", "flash_attention_2"):
        raise CannotShare(f"its attention is {chosen}")
    modules = [module for module in decoder.modules() if _attends(module)]
    layers = getattr(config, "num_hidden_layers", None)
    if len(modules) != layers:
        raise CannotShare(f"{len(modules)} attention modules were found in its {layers} layers")
    _register()
    for module in modules:
        module.register_forward_pre_hook(_enter, with_kwargs=True)
        module.register_forward_hook(_leave, with_kwargs=True, always_call=True)


def _attends(module: nn.Module) -> bool:
    """What all attention modules of transformers have since they look up their function in a registry."""
    return hasattr(module, "config") and hasattr(module, "num_key_value_groups") and hasattr(module, "scaling")


@cache
def _register() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


def _enter(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get(KEYWORD) is not None:
        module.own_attention = module.config._attn_implementation
        module.config._attn_implementation = NAME


def _leave(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
    if kwargs.get(KEYWORD) is not None:
        module.config._attn_implementation = module.own_attention
