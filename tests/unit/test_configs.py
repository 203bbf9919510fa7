"""Every shipped config loads, its comments tell the truth, and the paper's runs have the paper's settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from mmcorl import config as settings
from mmcorl.config import Config
from paths import ROOT

FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml"))
PAPER = [name for name in FILES if name.startswith("configs/paper/")]
TEXT = [name for name in PAPER if "/text_" in name]
IMAGES = [name for name in PAPER if "/vlm_" in name]


def load(name: str, *overrides: str) -> Config:
    return settings.load(ROOT / name, overrides)


@pytest.mark.parametrize("name", FILES)
def test_a_shipped_config_loads_and_opens_with_commands_that_work(name):
    config = load(name)
    assert settings.parse(yaml.safe_load(settings.dump(config))) == config
    assert f"`{name.removeprefix('configs/')}`" in (ROOT / "configs" / "README.md").read_text()
    header = (ROOT / name).read_text().partition("\nname:")[0]
    commands = [shlex.split(line) for line in re.findall(r"^#   (mmcorl train .*?)(?:  +#.*)?$", header, re.MULTILINE)]
    assert commands, "no command to launch it"
    for _, _, path, *rest in commands:
        assert path in (name, "my_run.yaml")
        load(name, *(word for word in rest if "=" in word))
    for override in re.findall(r"'([a-z_.]+=[^']+)'", header):
        # Single agents are for the baselines, which need no peer.
        load(name, override, "supervision.kind=self")


def test_every_file_of_the_paper_is_named_as_its_run_and_no_two_runs_share_a_folder():
    names = [load(name).name for name in FILES]
    assert len(set(names)) == len(names)
    assert [load(name).name for name in PAPER] == [Path(name).stem for name in PAPER]


@pytest.mark.parametrize("name", PAPER)
def test_what_all_runs_of_the_paper_have_in_common(name):
    config = load(name)
    optimizer, objective, sampling = config.optimizer, config.objective, config.sampling
    assert (optimizer.schedule, optimizer.min_lr_ratio, optimizer.warmup_ratio) == ("cosine", 0.1, 0.03)
    assert (optimizer.betas, optimizer.max_grad_norm, optimizer.weight_decay) == ((0.9, 0.95), 1.0, 0.0)
    assert (objective.aggregation, objective.advantage_std, objective.kl_coef) == ("token", "unbiased", 0.0)
    assert (objective.clip_low, objective.clip_high) == (0.2, 0.2)
    assert (objective.importance_correction, objective.importance_cap) == ("token_truncate", 3.0)
    assert objective.minibatches * objective.passes == 1
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (config.supervision.kind, config.supervision.tie, config.supervision.min_share) == ("ring", "first_seen", 0)
    assert (config.seed, config.data_seed, config.training.dtype) == (42, 42, "bf16")
    # What is unusable in a hub data set is counted, not a reason to stop.
    train = config.data.train
    assert (train.on_bad_row, train.duplicates, train.too_long) == ("skip", "skip", "skip")


@pytest.mark.parametrize("name", TEXT)
def test_text_runs_of_the_paper(name):
    config = load(name)
    assert (config.optimizer.lr, config.epochs) == (3e-6, 2)
    assert (config.batch.prompts, config.batch.completions) == (128, 12)
    assert (config.sampling.max_new_tokens, config.data.max_prompt_tokens) == (3072, 3584 - 3072)
    assert (config.prompt.style, config.validation.every) == ("boxed", 10)
    held_out = config.data.train.hold_out
    assert held_out is not None
    assert (held_out.rows, held_out.seed, held_out.part) == (150, 42, "train")
    (validation,) = config.validation.sets
    assert validation.data.source == config.data.train.source
    assert validation.data.hold_out == held_out.model_copy(update={"part": "held_out"})


@pytest.mark.parametrize("name", IMAGES)
def test_vision_language_runs_of_the_paper(name):
    config = load(name)
    assert (config.optimizer.lr, config.epochs) == (1e-6, 1)
    # 64 completions per step and agent; the authors' notes once call them 64 prompts.
    assert (config.batch.prompts, config.batch.completions) == (8, 8)
    assert (config.sampling.max_new_tokens, config.data.max_prompt_tokens) == (1024, 4096 - 1024)
    assert (config.prompt.style, config.vision.max_side, config.vision.tiles) == ("answer_tags", 1024, 1)
    assert not config.training.freeze_vision
    (validation,) = config.validation.sets
    assert (validation.data.source, validation.data.limit) == ("AI4Math/MathVista", 150)


def test_the_runs_of_the_paper_s_tables_are_there():
    models = {Path(name).stem: [agent.model.split("/")[1] for agent in load(name).agents] for name in PAPER}
    small, large = ["Qwen2.5-3B", "Llama-3.2-3B-Instruct"], ["Qwen2.5-7B", "Llama-3.1-8B-Instruct"]
    assert models == {
        "text_3b": small,
        "text_3b_plus": small,
        "text_3b_ring_of_three": [*small, "Qwen3-1.7B-Base"],
        "text_3b_same_family": ["Qwen2.5-3B", "Qwen2.5-3B"],
        "text_7b": large,
        "text_7b_plus": large,
        "vlm_3b_mmr1": ["Qwen2.5-VL-3B-Instruct", "InternVL3_5-2B-HF"],
        "vlm_3b_open_r1": ["Qwen2.5-VL-3B-Instruct", "InternVL3_5-2B-HF"],
        "vlm_7b_open_r1": ["Qwen2.5-VL-7B-Instruct", "InternVL3_5-8B-HF"],
        "vlm_gemma_12b_open_r1": ["gemma-3-12b-it", "InternVL3_5-8B-HF"],
        "vlm_gemma_4b_open_r1": ["Qwen2.5-VL-3B-Instruct", "gemma-3-4b-it"],
    }
    assert [agent.view for agent in load("configs/paper/text_3b_plus.yaml").agents] == ["original", "rephrased"]
