"""A model and its adapter as one module: prompts and completions in, log-probabilities out.

Each distinct prompt's images pass the vision tower once, and only the states that predict completion tokens reach the
head, in chunks. Between the two, a prompt is computed once for all its completions (`shared_prefix.py`), or on the
plain path, where every row is prompt + completion, once for each: the same numbers either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmcorl.algo.logprobs import chunk_of, completion_logprobs, confidences
from mmcorl.policy import shared_prefix
from mmcorl.system.timing import span
from model_adapters import varlen
from model_adapters.base import AdapterError, Encoded, ModelAdapter, padded_rows
from model_adapters.head import cast_once

if TYPE_CHECKING:
    from mmcorl.trainer.settings import TrainingSettings


@dataclass(frozen=True)
class Rows:
    """Some completions of some prompts: the contents of one micro-batch."""

    prompts: Sequence[Encoded]
    """Distinct prompts."""
    prompt_of: Sequence[int]
    """Index into `prompts` for each row."""
    completions: Sequence[Tensor]
    """(C_r,) int64 ids of each row, the stop token included."""
    dummy_image: Encoded | None = None
    """A prompt whose images pass the vision tower without effect: for ranks that must call it but have no images."""
    shared: bool = False
    """Whether each prompt is computed once for all its rows; see `Policy.share_prefixes`."""
    pieces: int = 0
    """Fewest calls of the head; surplus calls are made without rows."""
    confidence: bool = False
    """Whether `Policy.forward` measures entropy and self-certainty instead of log-probabilities."""
    entropy: bool = False
    """Whether `Policy.forward` returns the entropy of each token's distribution beside its log-probability."""


class Policy(nn.Module):
    """The language policy pi(completion | prompt) of an agent."""

    banned: Tensor
    """(n,) ids that are never sampled."""

    def __init__(self, model: nn.Module, adapter: ModelAdapter, processor: Any):
        super().__init__()
        hub: Any = model  # a transformers model; nn.Module lacks its methods
        self.model = hub
        self.adapter = adapter
        self.processor = processor
        size, named = hub.get_output_embeddings().out_features, adapter.banned_ids(processor, model.config)
        self.beyond_head = [token for token in named if not 0 <= token < size]
        """Banned ids, such as that of Mllama's images, that cannot be sampled anyway."""
        banned = [token for token in named if 0 <= token < size]
        self.register_buffer("banned", torch.tensor(banned, dtype=torch.long), persistent=False)
        self.stop_ids = adapter.stop_ids(processor, model)
        self._heads: set[shared_prefix.Heads] = set()

    @property
    def device(self) -> torch.device:
        """Return the device of inputs; parameters may be offloaded elsewhere."""
        return self.banned.device

    @property
    def chunk(self) -> int:
        """Tokens that meet the head at a time."""
        return chunk_of(self.model.config.get_text_config().vocab_size, self.device.type)

    @contextlib.contextmanager
    def computing(self, settings: TrainingSettings, training: bool = False) -> Iterator[None]:
        """Autocast for bf16; train mode only for gradient checkpointing (dropout is 0 anyway)."""
        self.train(training and settings.gradient_checkpointing)
        try:
            with (
                torch.autocast(self.device.type, torch.bfloat16, enabled=settings.dtype == "bf16"),
                cast_once(self.model),
            ):
                yield
        finally:
            self.eval()

    def features(self, prompts: Sequence[Encoded]) -> list[Tensor | None]:
        """Image features of each prompt, (T_p, w), from one pass of the vision tower; None without images."""
        vision = self.adapter.collate_vision([prompt.vision for prompt in prompts])
        token = self.adapter.image_token_id(self.model.config)
        counts = [0 if token is None else int(prompt.input_ids.eq(token).sum()) for prompt in prompts]
        if not vision:
            if any(counts):
                raise AdapterError(f"{sum(counts)} image placeholders in prompts without images")
            return [None] * len(prompts)
        vision = {key: value.to(self.device) for key, value in vision.items()}
        with span("vision"):
            flat = self.adapter.image_features(self.model, vision)
        parts = flat.split(counts)
        return [part if count else None for part, count in zip(parts, counts, strict=True)]

    def share_prefixes(self) -> None:
        """Prepare for `Rows.shared`; raises CannotShare, with the reason, where this model cannot do it."""
        if not self._heads:
            self._heads = shared_prefix.install(self.adapter.decoder(self.model))

    def why_not_one_call(self) -> str | None:
        """Why attention to shared prompts cannot be one call here, autocast considered; None where it can."""
        dtype = varlen.computed_in(self.device, self.model.dtype)
        return next(filter(None, (varlen.obstacle(self.device, dtype, *heads) for heads in self._heads)), None)

    def _hidden_shared(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """States (1, T, d) of all tokens, without padding, and (row, position) in them of each token's predictor."""
        self.share_prefixes()
        rows_of: dict[int, list[int]] = {}
        for row, owner in enumerate(rows.prompt_of):
            # A completion's last token predicts nothing, so it is left out; a single token is left out whole.
            rows_of.setdefault(owner, []).extend([row] if len(rows.completions[row]) > 1 else [])
        owners = list(rows_of)
        prompts = [rows.prompts[owner] for owner in owners]
        plan = shared_prefix.layout(
            [len(prompt.input_ids) for prompt in prompts],
            [self.adapter.bidirectional_spans(self.model, prompt.input_ids) for prompt in prompts],
            [[len(rows.completions[row]) - 1 for row in rows_of[owner]] for owner in owners],
            self.device,
            one_call=self.why_not_one_call() is None,
            spans_need_a_window=self.adapter.spans_need_a_window,
        )
        per_prompt = self.features([*rows.prompts, *([rows.dummy_image] if rows.dummy_image else [])])
        picked: list[Tensor] = []
        ids: list[Tensor] = []
        positions: list[Tensor] = []
        last: dict[int, int] = {}
        starts = [0] * len(rows.completions)
        start = 0
        for group, k in plan.order:
            prompt = prompts[group]
            if k is None:
                ids.append(prompt.input_ids)
                positions.append(prompt.positions)
                last[owners[group]] = start + len(prompt.input_ids) - 1
                if (part := per_prompt[owners[group]]) is not None:
                    picked.append(part)
            else:
                row = rows_of[owners[group]][k]
                ids.append(rows.completions[row][:-1])
                # Positions of every completion follow its prompt's, wherever it lies in the row.
                onward = prompt.next_position + torch.arange(len(ids[-1]))
                positions.append(onward.expand(len(prompt.positions), -1))
                starts[row] = start
            start += len(ids[-1])
        inputs = self._inputs(torch.cat(ids)[None].to(self.device), picked, rows, per_prompt)
        states = self._decode(
            inputs,
            torch.cat(positions, dim=1)[:, None],
            inputs["inputs_embeds"].new_zeros(shared_prefix.NO_MASK),
            **{shared_prefix.KEYWORD: plan},
        )
        # The state that predicts the first completion token is that of the prompt's last.
        where = torch.cat(
            [
                part
                for owner, begin, completion in zip(rows.prompt_of, starts, rows.completions, strict=True)
                for part in (torch.tensor([last[owner]]), torch.arange(begin, begin + len(completion) - 1))
            ]
        )
        return states, torch.zeros_like(where), where

    def _hidden_plain(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The same with states (R, L, d) of right-padded rows."""
        prompts = [rows.prompts[p] for p in rows.prompt_of]
        prompt_length = torch.tensor([len(prompt.input_ids) for prompt in prompts])
        length = torch.tensor([len(completion) for completion in rows.completions])
        # A completion's last token predicts nothing, so it is left out.
        ids, valid, positions = padded_rows(prompts, [completion[:-1] for completion in rows.completions])
        row_index = torch.arange(len(length)).repeat_interleave(length)
        # The state that predicts the first completion token is that of the prompt's last.
        first = (prompt_length - 1 - (length.cumsum(0) - length)).repeat_interleave(length)
        state_index = first + torch.arange(len(first))
        per_prompt = self.features([*rows.prompts, *([rows.dummy_image] if rows.dummy_image else [])])
        picked = [part for p in rows.prompt_of if (part := per_prompt[p]) is not None]
        ids, valid = ids.to(self.device), valid.to(self.device)
        inputs = self._inputs(ids, picked, rows, per_prompt)
        mask = self.adapter.attention_mask(self.model, ids, valid)
        return self._decode(inputs, positions, mask), row_index, state_index

    def _inputs(
        self, ids: Tensor, picked: Sequence[Tensor], rows: Rows, features: Sequence[Tensor | None]
    ) -> dict[str, Any]:
        """The decoder's inputs of (R, L) ids, with image features in their places; the dummy image adds zero."""
        inputs = self.adapter.decoder_inputs(self.model, ids, torch.cat(list(picked)) if picked else None)
        if rows.dummy_image is not None and (unused := features[-1]) is not None:
            inputs["inputs_embeds"] = inputs["inputs_embeds"] + unused.sum() * 0.0
        return inputs

    def _decode(self, inputs: dict[str, Any], positions: Tensor, mask: Any, **more: Any) -> Tensor:
        """States (R, L, d); `positions` are (A, R, L)."""
        output = self.adapter.decoder(self.model)(
            **inputs,
            position_ids=(positions[0] if len(positions) == 1 else positions).to(self.device),
            attention_mask=mask,
            use_cache=False,
            **more,
        )
        return output.last_hidden_state

    def forward(self, rows: Rows, temperature: float = 1.0) -> Tensor:
        """Log-probabilities (sum of C_r,) in fp32 of all completion tokens, row after row.

        The distribution is the one sampled from: logits / temperature over the vocabulary without the
        banned media tokens. With `rows.confidence` instead (sum of C_r, 2): entropy and self-certainty of that
        distribution at each token, without gradient; with `rows.entropy` (sum of C_r, 2): log-probability and entropy
        of each token, both with gradient.
        """
        states, row_index, state_index = self._hidden_shared(rows) if rows.shared else self._hidden_plain(rows)
        predictors = states[row_index.to(self.device), state_index.to(self.device)]
        banned = self.banned if len(self.banned) else None

        def head(hidden: Tensor) -> Tensor:
            return self.adapter.logits(self.model, hidden)

        how: dict[str, Any] = {"temperature": temperature, "banned": banned}
        how |= {"chunk": self.chunk, "pieces": rows.pieces}
        if rows.confidence:
            return confidences(predictors, head, **how)
        ids = torch.cat(list(rows.completions)).to(self.device)
        return completion_logprobs(predictors, ids, head, **how, entropy=rows.entropy)
