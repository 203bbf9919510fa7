"""The gate between engine and trainer: what it measures, what it lets pass, what it names."""

from __future__ import annotations

import pytest
import torch

from mmcorl.data import DataSettings, load_prompts
from mmcorl.trainer.parity import Drift, drift, measure, parity
from model_adapters.text import TextAdapter
from worker_parts import worker


def test_drift_by_hand():
    # |d| = 0.1, 0.2, 0.3 and 0.6: mean 0.3; of four values the 99th percentile is the fourth.
    found = drift([torch.tensor([0.1, -0.2]), torch.tensor([0.3]), torch.tensor([-0.6])])
    assert (found.tokens, found.mean, found.p99, found.most) == pytest.approx((4, 0.3, 0.6, 0.6))
    assert drift([]) == Drift(0, 0.0, 0.0, 0.0)


def measured(text: float, image: float | None, dtype: str, **family):
    differences = {"text": [torch.full((10,), text)]}
    if image is not None:
        differences["image"] = [torch.full((10,), -image)]
    return parity("a", dtype, differences, **family)


GEMMA = {"expected": True, "correction": "token_truncate"}


@pytest.mark.parametrize(
    ("text", "image", "dtype", "family", "words"),
    [
        (1e-7, 5e-7, "fp32", {}, None),  # five times as much, of nothing
        (0.02, 0.029, "bf16", {}, None),  # 1.45 times
        (0.001, 0.009, "bf16", {}, None),  # below the floor
        (0.049, None, "bf16", {}, None),
        (2e-3, 2e-3, "fp32", {}, "0.002 nats per token on text alone (bound 0.001 in fp32)"),
        (0.06, None, "bf16", {}, "other weights"),
        (1e-6, 8e-3, "fp32", {}, "processes images differently"),
        (0.01, 0.06, "bf16", {}, "0.06 nats per token with images and by 0.01 without"),
        # The paper's 0.13 nats, on all prompts or on images alone, where the correction covers them.
        (0.13, 0.13, "bf16", GEMMA, None),
        (0.02, 0.13, "bf16", GEMMA, None),
        (0.31, None, "bf16", GEMMA, "only up to 0.3 nats"),
        (0.02, 0.9, "bf16", GEMMA, "processes images differently"),
        (0.13, 0.13, "bf16", GEMMA | {"correction": "off"}, "importance_correction=auto, which is off"),
        # Weighting tokens covers no other model's or program's mistake.
        (0.13, 0.13, "bf16", {"expected": False, "correction": "token_truncate"}, "other weights"),
        (1e-6, 8e-3, "fp32", GEMMA, "processes images differently"),
    ],
)
def test_what_passes_and_what_is_stopped_and_why(text, image, dtype, family, words):
    found = measured(text, image, dtype, **family)
    if words is None:
        assert found.fault is found.record()["fault"] is None
        said = "expected of this family, and importance correction token_truncate weights" if family else "agree"
        assert said in found.sentence()
    else:
        assert words in found.fault


def test_images_that_drift_more_than_text_are_a_warning_in_bf16_where_chance_does_not_explain_it():
    steady = measured(0.009, 0.045, "bf16")
    assert steady.fault is None
    # Every completion alike: five times, without any scatter.
    assert steady.ratio == pytest.approx((5.0, 5.0))
    assert "differ 5 to 5 times as much as on text alone" in steady.sentence()
    assert measured(0.009, 0.0126, "bf16").warning is None  # 1.4 times
    assert measured(0.001, 0.009, "bf16").warning is None  # of hardly anything
    # Twice the mean by one completion of four: resampled without it, text has as much.
    text = [torch.full((10,), 0.01)] * 4
    one_odd = parity("a", "bf16", {"text": text, "image": [*text[:3], torch.full((10,), 0.05)]})
    assert one_odd.image.mean == pytest.approx(0.02)
    assert one_odd.ratio == pytest.approx((1.0, 4.0))  # 3 or 4 of the 4 drawn are the odd one in 1 of 20 samples
    assert one_odd.warning is None
    assert measured(0.0, 0.02, "bf16").ratio is None
    assert measured(0.001, 0.009, "fp32").warning is None  # which is a fault there


@pytest.mark.parametrize("family", [{}, GEMMA])
@pytest.mark.parametrize("differences", [{"text": [torch.tensor([0.0, float("nan")])]}, {"text": [torch.zeros(2)]}])
def test_a_trainer_that_gives_no_numbers_is_no_agreement(differences, family):
    # NaN is above no bound.
    found = parity("a", "bf16", {**differences, "image": [torch.tensor([float("nan")])]}, **family)
    assert "not finite" in found.fault


def test_a_drift_that_grows_fivefold_is_told_with_both():
    healthy = measured(0.012, 0.016, "bf16")
    assert (healthy.grown(0.079), measured(0.001, None, "bf16").grown(0.049)) == (None, None)
    assert "by 0.081 nats per token, before the first step by 0.016 (limit 0.08)" in healthy.grown(0.081)
    assert "(limit 0.001)" in measured(1e-7, None, "fp32").grown(0.0011)
    # An engine that shares the weights loses none of them.
    assert "masks and positions of long rows" in measured(1e-7, None, "fp32", shared=True).grown(0.0011)
    assert measured(0.01, None, "bf16", shared=True).grown(0.09) is None


def test_a_family_that_needs_images_is_compared_with_them_alone():
    found = parity("a", "fp32", {"text": [], "image": [torch.full((10,), 2e-3)]})
    assert (found.text.tokens, found.image.mean, found.ratio) == (0, pytest.approx(2e-3), None)
    assert "0.002 nats per token with images" in found.fault


def test_a_training_pass_that_sees_the_future_is_a_fault_of_the_adapter(tiny_checkpoints):
    """Also where the run draws from a truncated distribution."""

    class Leaks(TextAdapter):
        def attention_mask(self, model, input_ids, valid):
            return valid[:, None, None].expand(-1, 1, input_ids.shape[1], -1)

    truncated = {"top_p": 0.5, "top_k": 5, "max_new_tokens": 6}
    agent = worker(tiny_checkpoints["llama"], sampling=truncated, objective={"importance_correction": "off"})
    prompts = list(load_prompts(DataSettings(source="synthetic:text", size=4)))
    config = agent.config
    sections = {"engine": config.engine, "training": config.training, "objective": config.objective}
    right = measure(agent, prompts, **sections, expected=True)
    assert (right.fault, right.shared, right.expected, right.text.tokens > 4) == (None, True, False, True)
    assert right.text.most < 1e-5
    agent.policy.adapter = Leaks()
    wrong = measure(agent, prompts, **sections, expected=True)
    assert wrong.text.mean > 0.01
    assert "a token sees what follows it" in wrong.fault
    # Experts that are chosen apart in bf16, and the future.
    for nats, fault in ((0.06, False), (0.19, True)):
        assert bool(measured(nats, None, "bf16", shared=True).fault) == fault


def test_an_engine_that_shares_the_weights_does_not_drift(tiny_checkpoints):
    agent = worker(tiny_checkpoints["gemma3"])
    prompts = list(load_prompts(DataSettings(source="synthetic:visual", size=4)))
    differences = agent.log_ratios(prompts, tokens=3)
    assert all(1 <= len(one) <= 3 for one in differences)
    assert max(float(one.abs().max()) for one in differences) < 1e-5
    # Other weights on one side only are seen.
    drawn = agent.sampler.engine.generate

    def before(*arguments):
        samples = drawn(*arguments)
        with torch.no_grad():
            next(iter(agent.adapter.decoder(agent.policy.model).parameters())).add_(0.1)
        return samples

    agent.sampler.engine.generate = before
    stale = parity("a", "fp32", {"text": agent.log_ratios(prompts, tokens=3)})
    assert "other weights" in stale.fault
