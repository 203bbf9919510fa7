"""Engine and trainer parity: does the engine sample from the policy that is trained? Checked before the first step.

The engine draws one completion per prompt and the trainer scores it with equal weights; d = log pi_train - log
pi_engine per token shows any difference in masks, tiles, positions, weights, dtype or temperature. Prompts are asked
with their images and without: an engine that processes images differently drifts on the former alone. Bounds: mean |d|
below 0.05 nats in bf16, where an identical model has 0.01 to 0.02. In fp32, where it agrees to 1e-6, the bound is
0.001, and images may have at most 1.5 times as much as text. In bf16 rounding in a vision tower may do that, too:
where chance does not explain the ratio, by a bootstrap over the prompts, it is a warning.

An engine that samples from the trained weights themselves is asked the prompts as they are. Its cached steps see
nothing of what comes later; a training pass may, where an adapter's mask is wrong. The whole completions of every later
step are compared as well, unless top_p or top_k leave tokens out: then the two distributions differ on purpose.

Of some families a drift is expected in bf16 (the paper has 0.13 nats for Gemma-3). With importance correction such a
drift is no fault up to 0.3 nats: each token is weighted by exp(d), up to the cap, for what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmcorl.agent import Agent
from mmcorl.algo.settings import ObjectiveSettings
from mmcorl.engines.settings import ENGINES, EngineSettings
from mmcorl.trainer.settings import TrainingSettings
from mmcorl.types import Prompt
from model_adapters.templates import PLACE

BOUND = {"fp32": 1e-3, "bf16": 0.05}
"""Largest mean |d| in nats, by the coarser dtype of the two."""
BOUND_SHARED = {"fp32": 1e-3, "bf16": 0.1}
"""The same of an engine that shares the trained weights: in bf16 experts that are chosen apart make up to 0.04, and a
mask that shows tokens the future makes 0.2."""
FLOOR = {"fp32": 1e-3, "bf16": 0.01}
"""Images are not compared with text below this."""
RATIO = 1.5
"""Largest mean |d| with images, in those of text alone: beyond it a fault in fp32, a warning in bf16."""
RESAMPLED = 1000
"""Bootstrap samples for the interval of that ratio."""
COVERED = 0.3
"""Largest mean |d| of a family of which drift is expected, under importance correction."""
PROMPTS = 16
"""Training prompts compared, with their images and without."""
TOKENS = 64
"""Longest completion drawn."""
TOKENS_SHARED = 16
"""The same of an engine that shares the trained weights: what an adapter gets wrong shows at every token."""
GROWN = 5.0
"""Times the mean |d| before the first step that a step's may be, or up to the bound if that is more."""


@dataclass(frozen=True)
class Drift:
    """|d| over the tokens of some prompts, in nats; all 0 for no tokens."""

    tokens: int
    mean: float
    p99: float
    most: float


@dataclass(frozen=True)
class Parity:
    """Distance between engine and trainer of an agent."""

    agent: str
    dtype: str
    """The coarser dtype of the two, fp32 or bf16."""
    text: Drift
    image: Drift | None
    """None for prompts without images."""
    ratio: tuple[float, float] | None = None
    """95 % interval of the mean |d| with images, in those of text alone."""
    expected: bool = False
    """Whether the family is known to drift."""
    correction: str = "off"
    """The run's importance correction of this agent."""
    shared: bool = False
    """Whether the engine samples from the trained weights themselves; `text` is then of all prompts."""

    @property
    def fault(self) -> str | None:
        """Return what is wrong and where to look, in a sentence; None if nothing is, or if the correction covers it."""
        if self._difference is None or not self.expected or self.dtype == "fp32" or not math.isfinite(self._worst):
            return self._difference
        if self._worst <= COVERED:
            way = "objective.importance_correction=auto, which is off, would cover it"
            return (
                f"{self._difference}; drift is expected of this family, and {way}" if self.correction == "off" else None
            )
        return f"{self._difference}; drift is expected of this family, but only up to {COVERED:g} nats per token"

    @property
    def warning(self) -> str | None:
        """Return what is odd but may be rounding, in a sentence; None if nothing is."""
        small = self.image is None or self.image.mean <= FLOOR[self.dtype]
        if self._difference or small or self.ratio is None or self.ratio[0] <= RATIO:
            return None
        low, high = self.ratio
        return (
            f"with images engine and trainer of agent {self.agent!r} differ {low:.2g} to {high:.2g} times as much as "
            "on text alone: rounding in the vision tower can do that, and so can an engine that resizes images in "
            "another way"
        )

    @property
    def _worst(self) -> float:
        means = [self.text.mean, *([self.image.mean] if self.image else [])]
        return max(means) if math.isfinite(sum(means)) else math.inf

    @property
    def _bound(self) -> float:
        return (BOUND_SHARED if self.shared else BOUND)[self.dtype]

    @property
    def _difference(self) -> str | None:
        """Return how the two differ by more than rounding; None where they do not."""
        text, image, bound = self.text.mean, self.image.mean if self.image else 0.0, self._bound
        if not math.isfinite(text + image):
            return (
                f"agent {self.agent!r}: the trainer gives what the engine sampled log-probabilities that are not "
                "finite: check the checkpoint, or use training.dtype=fp32 or training.attention=eager"
            )
        if text > bound and self.shared:
            return (
                f"agent {self.agent!r}: what was sampled token by token differs by {text:.3g} nats per token (bound "
                f"{bound:g} in {self.dtype}) from what the same weights give it in a training pass: there a token sees "
                "what follows it, or a sampled one does not see all before it; `mmcorl check-adapter` tells which"
            )
        if text > bound:
            return (
                f"agent {self.agent!r}: engine and trainer differ by {text:.3g} nats per token on text alone (bound "
                f"{bound:g} in {self.dtype}): the engine has other weights, another dtype, temperature or logit cap; "
                "engine.kind=transformers samples from the trained weights themselves"
            )
        if image > bound or (self.dtype == "fp32" and image > max(RATIO * text, FLOOR[self.dtype])):
            return (
                f"agent {self.agent!r}: engine and trainer differ by {image:.3g} nats per token with images and by "
                f"{text:.3g} without: the engine processes images differently (attention mask over image tokens, "
                "tiles, resizing or positions); upgrade it, or use engine.kind=transformers"
            )
        return None

    def sentence(self) -> str:
        """Return what was measured, in one line."""
        kind = "prompts" if self.shared else "text"
        parts = [(kind, self.text), *([("images", self.image)] if self.image else [])]
        drifts = "; ".join(f"{name} {d.mean:.2g} (99 % {d.p99:.2g}, max {d.most:.2g})" for name, d in parts)
        if self._difference:
            agreement = (
                "engine and trainer differ by more than rounding, as is expected of this family, and importance "
                f"correction {self.correction} weights each token for it (up to {COVERED:g} nats per token)"
            )
        else:
            agreement = "engine and trainer agree"
        odd = f"; {self.warning}" if self.warning else ""
        return f"{self.agent}: {agreement}, mean |d log p| in nats: {drifts}{odd}"

    def grown(self, drift: float) -> str | None:
        """Explain a mean |d| of a step that is far above what was measured before the first step; None if it is not."""
        limit = max(GROWN * self._worst, self._bound)
        if drift <= limit:
            return None
        cause = (
            "of the same weights, a training pass gives these completions other values than cached steps did: correct "
            "the adapter's masks and positions of long rows"
            if self.shared
            else "the engine has lost something that syncs do not give back, or the policy has collapsed; look at the "
            "samples in the report, go back to an earlier checkpoint, or use engine.sleep=false"
        )
        return (
            f"agent {self.agent!r}: engine and trainer differ by {drift:.3g} nats per token, before the first step by "
            f"{self._worst:.3g} (limit {limit:.3g}): {cause}"
        )

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "fault": self.fault}


def drift(differences: Sequence[Tensor]) -> Drift:
    """Statistics of log pi_train - log pi_engine, one (C,) tensor per completion."""
    sizes = torch.cat([torch.zeros(0), *differences]).abs().double()
    if not len(sizes):
        return Drift(0, 0.0, 0.0, 0.0)
    p99 = sizes.kthvalue(-(-99 * len(sizes) // 100)).values
    return Drift(len(sizes), float(sizes.mean()), float(p99), float(sizes.max()))


def parity(agent: str, dtype: str, differences: Mapping[str, Sequence[Tensor]], **family: Any) -> Parity:
    """Sum up the differences on prompts of kind `text` and, where there are any, `image`; `family`: see `Parity`."""
    text, image = differences["text"], differences.get("image")
    if not image or not text:
        return Parity(agent, dtype, drift(text), drift(image) if image else None, **family)
    return Parity(agent, dtype, drift(text), drift(image), _ratio(text, image), **family)


def _ratio(text: Sequence[Tensor], image: Sequence[Tensor]) -> tuple[float, float] | None:
    """95 % interval of mean |d| with images over that of text alone, by resampling completions of either."""
    generator = torch.Generator().manual_seed(0)

    def means(differences: Sequence[Tensor]) -> Tensor:
        sums = torch.stack([difference.abs().double().sum() for difference in differences])
        counts = torch.tensor([len(difference) for difference in differences], dtype=torch.float64)
        drawn = torch.randint(len(differences), (RESAMPLED, len(differences)), generator=generator)
        return sums[drawn].sum(1) / counts[drawn].sum(1)

    ratios = means(image) / means(text)
    if not bool(ratios.isfinite().all()):
        return None
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def measure(
    agent: Agent,
    prompts: Sequence[Prompt],
    *,
    engine: EngineSettings,
    training: TrainingSettings,
    objective: ObjectiveSettings,
    expected: bool,
    needs_images: bool = False,
) -> Parity:
    """Compare one agent's engine with its trainer on some prompts of the training data.

    `expected`: whether its family is known to drift (`ModelAdapter.needs_importance_correction`). One that
    `needs_images` has no text to compare apart.
    """
    shared = not ENGINES.find(engine.kind).own_weights
    if shared:
        differences = {"text": agent.log_ratios(prompts, TOKENS_SHARED)}
    else:
        texts = [] if needs_images else [_without_images(prompt) for prompt in prompts]
        differences = {"text": agent.log_ratios(texts, TOKENS) if texts else []}
    if not shared and any(prompt.images for prompt in prompts):
        differences["image"] = agent.log_ratios([prompt for prompt in prompts if prompt.images], TOKENS)
    # The dtype whose noise counts: bf16 (or fp16) unless both compute in fp32.
    exact = training.dtype == "fp32" and engine.dtype in (None, "fp32")
    correction = objective.importance_correction
    if correction == "auto":
        correction = "token_truncate" if expected else "off"
    dtype = "fp32" if exact else "bf16"
    return parity(
        agent.name, dtype, differences, expected=expected and not shared, correction=correction, shared=shared
    )


def _without_images(prompt: Prompt) -> Prompt:
    """The prompt without its images and their places; another uid, because it is another prompt."""
    views = {name: text.replace(PLACE, "") for name, text in prompt.views.items()}
    turns = tuple((question.replace(PLACE, ""), answer) for question, answer in prompt.turns)
    text, uid = prompt.text.replace(PLACE, ""), f"{prompt.uid}/text"
    return replace(prompt, uid=uid, images=(), text=text, views=views, turns=turns)
