"""A prefix-LM by the command line: a right adapter passes and trains, one that shows tokens the future does neither."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file

import patches
from mmcorl.cli.main import main
from model_adapters.testing.recipes.parts import Words, gemma_bpe
from model_adapters.testing.tiny import CORPUS, absent
from runs import records, small_config, write_config

SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>")
ADAPTERS = Path(__file__).with_name("prefix_lm.py")
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
REWARD = "def busy(completions, answers):\n    return [sum(map(ord, text)) % 3 for text in completions]\n"


def build(path: Path) -> Path:
    """A PaliGemma with random weights."""
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    import torch
    import transformers

    specials = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), SPECIALS, strict=True))
    backend = gemma_bpe(Words(CORPUS, 600, ()), SPECIALS)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **specials)
    images = transformers.SiglipImageProcessor(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(image_processor=images, tokenizer=tokenizer, chat_template=TEMPLATE)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.PaliGemmaConfig(
        text_config={"model_type": "gemma", "num_key_value_heads": 2, "head_dim": 32, "vocab_size": len(tokenizer)}
        | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **sizes},
        vision_config={"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": 64}
        | {"vision_use_head": False, **sizes},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=64,
        hidden_size=64,
    )
    torch.manual_seed(0)
    model = transformers.PaliGemmaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.ndim > 1):
            parameter.normal_(std=0.1)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(absent("lfm2_vl") is not None, reason="transformers 4 lets prompts see completions"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("paligemma"))


def test_what_sees_the_future_fails_where_it_differs(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check-adapter", str(checkpoint), "--json", "--adapter"]
    assert main([*command, f"{ADAPTERS}:PaliGemma"]) == 0, capsys.readouterr().out
    right = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert right["scores through the policy"]["detail"].endswith("prompts once")
    assert main([*command, f"{ADAPTERS}:NeedsImages"]) == 0, capsys.readouterr().out
    images = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert images["prompt_length equals encode"]["detail"].count(",") == 6  # of the nine prompts two have none
    assert main([*command, f"{ADAPTERS}:Leaks"]) == 1
    wrong = {check["name"] for check in json.loads(capsys.readouterr().out) if not check["passed"]}
    differs = {"forward equals transformers'", "cached generation scores as the forward", "scores through the policy"}
    assert wrong == {*differs, "images of any shape", "attention inside an image block"}


def test_one_trains_and_the_other_is_refused(
    checkpoint: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reward.py").write_text(REWARD)  # of random weights no answers agree
    config = small_config({"other": tiny_checkpoints["qwen2_5_vl"], "mine": checkpoint})
    config["reward"] = f"{tmp_path / 'reward.py'}:busy"
    config["agents"][1]["adapter"] = f"{ADAPTERS}:PaliGemma"
    command = ["train", str(write_config(tmp_path, config)), "--quiet", "steps=2", "--run-dir"]
    for run, adapter in {"right": "PaliGemma", "pictures": "NeedsImages"}.items():
        assert main([*command, str(tmp_path / run), f"agents.mine.adapter={ADAPTERS}:{adapter}"]) == 0, run
        steps = [step["agents"]["mine"] for step in records(tmp_path / run, "metrics.jsonl")]
        drifts = [step["importance_drift_abs_mean"] for step in steps]
        assert len(drifts) == 2
        assert max(drifts) < 1e-5
    start, end = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "right/final/mine"))
    assert start.keys() == end.keys()
    assert any(not end[name].equal(start[name]) for name in start)
    capsys.readouterr()
    assert main([*command, str(tmp_path / "wrong"), f"agents.mine.adapter={ADAPTERS}:Leaks"]) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert f"Leaks does not compute what transformers computes for {checkpoint}" in refusal
    assert not (tmp_path / "wrong" / "metrics.jsonl").exists()
    late = [f"agents.mine.adapter={ADAPTERS}:LeaksLate", "sampling.max_new_tokens=30", "training.shared_prefix=off"]
    assert main([*command, str(tmp_path / "late"), *late]) == 1
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "step 1: agent 'mine': engine and trainer differ by " in refusal
    assert "correct the adapter's masks and positions of long rows" in refusal
