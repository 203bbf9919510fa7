"""Group relative policy optimisation as pure functions: tensors in, tensors out, no model, no state.

Axes: B groups, K completions of a group, R rows (completions) of a micro-batch, T tokens. Per-token functions
are elementwise, so they take a flat (T,) of ragged completions as well as a padded (R, T).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmcorl.errors import RunError
from mmcorl.registry import parameters

StdKind = Literal["unbiased", "population", "none"]
Aggregation = Literal["sequence", "token", "dr_grpo"]
Correction = Literal["off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
KLKind = Literal["k1", "k2", "k3"]
RatioKind = Literal["token", "sequence"]
ClipKind = Literal["ppo", "cispo"]
Surrogate = Callable[..., Tensor]


class NotFiniteError(ArithmeticError):
    """A log-probability or reward that is NaN or infinite: something upstream is broken; never filled in."""


def group_advantages(rewards: Tensor, std: StdKind = "unbiased", eps: float = 1e-4) -> Tensor:
    """Advantage of each completion within its group: (B, K) rewards to (B, K), the paper's equation (3).

    (r - mean) / (std + eps) over the K completions. `std`: `unbiased` divides by K - 1 (TRL), `population`
    by K (the theory), `none` only centres (Dr. GRPO). A group whose rewards are all equal gives exactly 0.
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape {tuple(rewards.shape)}, expected (B, K)")
    _finite(rewards, "reward")
    if std not in get_args(StdKind):
        raise ValueError(f"std {std!r} is unknown: use one of {', '.join(get_args(StdKind))}")
    advantages = rewards - rewards.mean(dim=1, keepdim=True)
    if std != "none" and rewards.shape[1] > 1:
        deviation = rewards.std(dim=1, correction=1 if std == "unbiased" else 0, keepdim=True)
        advantages = advantages / (deviation + eps)
    # The mean of K equal numbers may miss them by a rounding error, which the division by eps blows up.
    return advantages.masked_fill((rewards == rewards[:, :1]).all(dim=1, keepdim=True), 0.0)


def leave_one_out_advantages(rewards: Tensor) -> Tensor:
    """Each completion's reward minus the mean of the others': (B, K) rewards to (B, K), RLOO.

    Equal to K / (K - 1) (r - mean). A group whose rewards are all equal gives exactly 0, and so does a group of one.
    """
    others = max(rewards.shape[1] - 1, 1)
    return group_advantages(rewards, "none") * (rewards.shape[1] / others)


def returns(reward: float | Tensor, penalties: Tensor) -> Tensor:
    """Undiscounted return of each token of one completion: (T,) penalties to (T,).

    What is still to come from a token on: the completion's reward, which its last token is given, minus the penalties
    (such as beta times an estimated KL) of that token and all after it. REINFORCE++ with gamma = 1.
    """
    return reward - penalties.flip(0).cumsum(0).flip(0)


@dataclass(frozen=True)
class Spread:
    """How some numbers are spread, as ranks tell it each other: count, mean, squared deviations, extremes."""

    count: int
    mean: float
    squares: float
    """Sum of squared deviations from the mean."""
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Spread:
        """Of a tensor of any shape, summed in fp64. Raises NotFiniteError."""
        _finite(values, "return")
        if values.numel() == 0:
            return cls(0, 0.0, 0.0, math.inf, -math.inf)
        exact = values.detach().double()
        mean = exact.mean()
        low, high = exact.aminmax()
        return cls(exact.numel(), float(mean), float((exact - mean).square().sum()), float(low), float(high))

    @classmethod
    def joined(cls, parts: Sequence[Spread]) -> Spread:
        """Of everything that the parts describe; how it was divided among them changes only rounding."""
        count = sum(part.count for part in parts)
        mean = math.fsum(part.count * part.mean for part in parts) / max(count, 1)
        squares = math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
        return cls(count, mean, squares, min(part.low for part in parts), max(part.high for part in parts))


def whitened(values: Tensor, spread: Spread, std: StdKind = "population", eps: float = 1e-4) -> Tensor:
    """Numbers, of any shape, in units of a spread that they are part of: (x - mean) / sqrt(variance + eps^2).

    REINFORCE++ does so to the advantages of all tokens of a batch. `std`: the variance divides by n (`population`,
    OpenRLHF) or by n - 1 (`unbiased`, verl, whose 1e-8 is our default eps squared); `none` only centres. Where all
    numbers are equal, exactly 0.
    """
    if std not in get_args(StdKind):
        raise ValueError(f"std {std!r} is unknown: use one of {', '.join(get_args(StdKind))}")
    if spread.low >= spread.high:
        return torch.zeros_like(values)
    centred = (values.double() - spread.mean).to(values.dtype)
    if std == "none":
        return centred
    variance = spread.squares / (spread.count - (std == "unbiased"))
    return centred / math.sqrt(variance + eps**2)


def token_weights(
    lengths: Tensor,
    aggregation: Aggregation,
    *,
    total_rows: int,
    total_tokens: int,
    max_length: int,
) -> Tensor:
    """Weight of each row's tokens, (R,) lengths to (R,) float32: the loss is the sum of weight * token loss.

    The totals are those of the whole optimizer batch, over all micro-batches and ranks, with groups that are
    skipped because their advantages are 0 still counted; so micro-batch losses add up to the same number
    however the batch is cut. (Where a framework averages gradients over W ranks, multiply the loss by W.)

    `sequence`: mean over completions of the mean over their tokens (the paper; TRL `grpo`).
    `token`: mean over all tokens (what TRL's `bnpo` is for one micro-batch; `dapo`).
    `dr_grpo`: sum over tokens / (completions * `max_length`), with `max_length` the completion budget.
    """
    counts = lengths.to(torch.float32)
    if aggregation == "sequence":
        return 1.0 / (total_rows * counts.clamp(min=1.0))
    if aggregation == "token":
        return torch.full_like(counts, 1.0 / max(total_tokens, 1))
    if aggregation == "dr_grpo":
        return torch.full_like(counts, 1.0 / (total_rows * max_length))
    raise ValueError(f"aggregation {aggregation!r} is unknown: use one of {', '.join(get_args(Aggregation))}")


def importance_weights(
    train_logp: Tensor,
    engine_logp: Tensor,
    mode: Correction = "token_truncate",
    cap: float = 3.0,
    lengths: Tensor | None = None,
) -> Tensor:
    """One weight per token that corrects for an engine whose numbers differ from the trainer's.

    `train_logp`, `engine_logp`: log-probabilities of the sampled tokens under the trainer at the weights that
    sampled and under the engine's actual sampling distribution; one shape, valid tokens only. With d = train -
    engine and, for the sequence modes, D the sum of d over a completion, the weights are, without gradient:

    `token_truncate`: min(exp(d), cap), truncated importance sampling, the paper's choice.
    `token_mask`: exp(d), or 0 where that is above the cap.
    `sequence_truncate`: min(exp(D), cap) at every token of the completion.
    `sequence_mask`: exp(D) at every token, or 0 for a completion where that is above the cap.
    `off`: 1.

    A masked token still counts in the denominators of `token_weights`. D grows with the length, so that the sequence
    modes cut long completions off for a drift that is harmless per token. TRL has the four under the same names (with
    a lower bound, which is not offered here). `lengths`: (R,) tokens of each completion, for the sequence modes, whose
    log-probabilities are then flat: (T,), completion after completion. Raises NotFiniteError with the position of the
    first log-probability that is NaN or infinite. `importance_stats` describes the drift of a whole step.
    """
    if train_logp.shape != engine_logp.shape:
        raise ValueError(f"{tuple(train_logp.shape)} training and {tuple(engine_logp.shape)} engine log-probabilities")
    _finite(engine_logp, "engine log-probability")
    _finite(train_logp, "training log-probability")
    log_ratio = (train_logp - engine_logp).detach()
    if mode == "off":
        return torch.ones_like(log_ratio)
    if mode not in get_args(Correction):
        raise ValueError(f"importance correction {mode!r} is unknown: use one of {', '.join(get_args(Correction))}")
    if mode.startswith("sequence"):
        rows = _rows_of(log_ratio, lengths, mode)
        log_ratio = log_ratio.new_zeros(int(rows[-1]) + 1 if len(rows) else 0).index_add_(0, rows, log_ratio)[rows]
    weight = log_ratio.exp()
    return weight.clamp(max=cap) if mode.endswith("truncate") else weight.masked_fill(weight > cap, 0.0)


def importance_stats(log_ratio: Tensor, cap: float = 3.0) -> dict[str, float]:
    """Describe the drift d = log pi_train - log pi_engine over all tokens given, of any shape.

    `drift_mean` (signed), `drift_abs_mean`, `drift_abs_p99`, `drift_abs_max` in nats, before truncation;
    `drift_k3` the low-variance estimate of KL(engine || train); `ess` the effective sample size of the
    truncated weights as a share of the tokens, (sum w)^2 / (n sum w^2); `truncated_share` the share of tokens
    above `cap`. Empty for no tokens.
    """
    d = log_ratio.detach().flatten().double()
    n = d.numel()
    if n == 0:
        return {}
    weight = d.exp().clamp(max=cap)
    size = d.abs()
    stats = {
        "drift_mean": d.mean(),
        "drift_abs_mean": size.mean(),
        # The smallest value that at least 99 % of the tokens do not exceed; quantile() refuses large inputs.
        "drift_abs_p99": size.kthvalue(-(-99 * n // 100)).values,
        "drift_abs_max": size.max(),
        "drift_k3": (d.expm1() - d).mean(),
        "ess": weight.sum().square() / (n * weight.square().sum()),
        "truncated_share": (d.exp() > cap).double().mean(),
    }
    return dict(zip(stats, torch.stack(list(stats.values())).tolist(), strict=True))  # one copy from the device


# d = log pi - log pi_ref at tokens sampled from pi. All three have the expectation KL(pi || pi_ref) or its
# second-order form; see http://joschu.net/blog/kl-approx.html.
_KL: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: torch.expm1(-d) + d,
}


def kl_estimate(logp: Tensor, ref_logp: Tensor, kind: KLKind = "k3") -> Tensor:
    """Estimate KL(policy || reference) per token from log-probabilities of the sampled tokens, with gradient.

    With d = logp - ref_logp: `k1` = d (unbiased value; as a loss its gradient is zero in expectation, so it
    anchors nothing), `k2` = d^2 / 2 (its gradient is that of the KL), `k3` = exp(-d) - 1 + d (TRL).
    """
    if kind not in _KL:
        raise ValueError(f"KL estimator {kind!r} is unknown: use one of {', '.join(_KL)}")
    return _KL[kind](logp - ref_logp)


@dataclass(frozen=True)
class PerToken:
    """What `policy_loss` gives for each token; everything has the shape of `logp`."""

    loss: Tensor
    """Differentiable. The objective is the sum of this times `token_weights`."""
    ratio: Tensor
    """pi / pi_old, detached; exactly 1 in the first pass over a batch. Of whole completions with `sequence`."""
    clipped: Tensor
    """bool: the clip took this token's gradient away, or with `cispo` bounded its weight."""
    kl: Tensor | None
    """Estimated KL to the reference, detached; None without a reference."""


def policy_loss(
    logp: Tensor,
    old_logp: Tensor | None,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
    clip: ClipKind | Surrogate = "ppo",
    level: RatioKind = "token",
    lengths: Tensor | None = None,
    weights: Tensor | None = None,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    kl: KLKind = "k3",
) -> PerToken:
    """Clipped surrogate per token: -w min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + beta KL.

    `level`: `sequence` makes rho the ratio of a whole completion to the power of 1 / its length, the same at all of its
    tokens (GSPO); `logp` is then flat and `lengths`, (R,), divides it into completions. `clip`: `cispo` keeps every
    token's gradient and bounds its weight instead: -w min(rho, 1 + clip_high) A logp, without gradient through rho and
    without a lower bound; a function (see `mmcorl.algo.objectives`) returns the loss itself. `clip_dual`: where A < 0,
    rho is bounded by this number too (dual-clip PPO; TRL's `delta`).

    `logp`: log-probabilities of the sampled tokens, (T,) or (R, T), with gradient. `old_logp`: those of the
    policy that the ratio rho is taken to; None means the current ones (the first or only optimizer step on a
    batch): rho is exactly 1 and still carries the gradient, so no second forward pass is needed.
    `advantages`: anything that broadcasts to `logp`. `weights`: from `importance_weights`; they multiply the
    surrogate but not the KL term, as in TRL; the ratio does not multiply it either (in TRL:
    `use_bias_correction_kl=False`). `ref_logp`: reference log-probabilities; with `beta` 0 the KL is reported
    only.
    """
    if beta != 0.0 and ref_logp is None:
        raise ValueError(f"beta is {beta} but no reference log-probabilities are given")
    old = logp.detach() if old_logp is None else old_logp
    log_ratio = logp - old
    ratio = torch.exp(log_ratio if level == "token" else _completion_mean(log_ratio, lengths))
    advantages = advantages.expand_as(logp)
    if clip == "cispo":
        loss = -ratio.detach().clamp(max=1 + clip_high) * advantages * logp
    elif callable(clip):
        given = {"logp": logp, "old_logp": old, "ratio": ratio, "advantages": advantages}
        loss = call_surrogate(clip, given | {"clip_low": clip_low, "clip_high": clip_high})
    else:
        # Only where A < 0 can the ratio itself, rather than its clipped form, be the one that counts above the bounds.
        bounded = ratio if clip_dual is None else torch.where(advantages < 0, ratio.clamp(max=clip_dual), ratio)
        loss = -torch.min(bounded * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if weights is not None:
        loss = loss * weights
    divergence = None
    if ref_logp is not None:
        divergence = kl_estimate(logp, ref_logp, kl)
        if beta != 0.0:
            loss = loss + beta * divergence
        divergence = divergence.detach()
    ratio = ratio.detach()
    if clip == "cispo":
        clipped = (ratio > 1 + clip_high) & (advantages != 0)
    elif callable(clip):
        clipped = torch.zeros_like(ratio, dtype=torch.bool)
    else:
        clipped = ((ratio < 1 - clip_low) & (advantages < 0)) | ((ratio > 1 + clip_high) & (advantages > 0))
        if clip_dual is not None:
            clipped |= (ratio > clip_dual) & (advantages < 0)
    return PerToken(loss=loss, ratio=ratio, clipped=clipped, kl=divergence)


def call_surrogate(function: Surrogate, given: Mapping[str, Any]) -> Tensor:
    """Return the per-token loss of a user's surrogate; RunError unless it has the shape of `logp` and a gradient."""
    names, others = parameters(function)
    loss = function(**{name: value for name, value in given.items() if others or name in names})
    if not isinstance(loss, Tensor) or loss.shape != given["logp"].shape or not loss.requires_grad:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise RunError(
            f"objective {function.__name__!r} returned {shape} for {len(given['logp'])} tokens: return one loss per "
            "token, computed from `ratio` or `logp` so that it has a gradient"
        )
    return loss


def _completion_mean(values: Tensor, lengths: Tensor | None) -> Tensor:
    """At each token the mean over its completion, with gradient; flat (T,) to (T,)."""
    rows = _rows_of(values, lengths, "a ratio of whole completions")
    counts = torch.bincount(rows).clamp(min=1).to(values)
    return (torch.zeros_like(counts).index_add(0, rows, values) / counts)[rows]


def _rows_of(values: Tensor, lengths: Tensor | None, what: str) -> Tensor:
    """The completion, by number, of each of some flat tokens."""
    if lengths is None or values.ndim != 1 or int(lengths.sum()) != len(values):
        raise ValueError(f"{what} needs flat log-probabilities and the lengths that divide them into completions")
    return torch.arange(len(lengths)).repeat_interleave(lengths.cpu()).to(values.device)


def _finite(values: Tensor, what: str) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        position = where[0] if len(where) == 1 else where
        raise NotFiniteError(
            f"{what} is {values[where].item()} at position {position} of shape {tuple(values.shape)} "
            f"({int(bad.sum())} of {values.numel()} are not finite)"
        )
