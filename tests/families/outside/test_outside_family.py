"""A family from outside the tree, loaded as its user would: by import path, by entry point once installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patches
from adapter_passes import assert_passed
from mmcorl.api import train
from model_adapters.base import AdapterError
from model_adapters.registry import adapter_for, families
from model_adapters.testing.contract import CHECKS, check_adapter
from model_adapters.testing.recipes.parts import Words, byte_bpe, fast_class
from runs import changed, small_config

HERE = Path(__file__).parent
MODULE = "mmcorl_deepseek_vl"
SPEC = f"{MODULE}:DeepseekVLAdapter"

SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<image_placeholder>")
TEMPLATE = (
    "{{ bos_token }}You are a helpful language and vision assistant.\n\n"
    "{% for message in messages %}{{ message['role'] | capitalize }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image_placeholder>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ eos_token if message['role'] == 'assistant' else '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
SIDE, PATCH = 56, 28  # 2 x 2 = 4 tokens per image


def build(path: Path) -> Path:
    """A DeepSeek-VL with random weights."""
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    import torch
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_bpe(Words(["How many dots are there?"], 400, ()), SPECIALS),
        bos_token=SPECIALS[0],
        eos_token=SPECIALS[1],
        pad_token=SPECIALS[1],
        padding_side="left",
        extra_special_tokens={"image_token": "<image_placeholder>"},
    )
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.DeepseekVLConfig(
        text_config={"vocab_size": len(tokenizer), "initializer_range": 0.1, **sizes, **ids},
        vision_config={"image_size": SIDE, "patch_size": PATCH, "vision_use_head": False, **sizes},
        image_token_id=tokenizer.convert_tokens_to_ids("<image_placeholder>"),
    )
    torch.manual_seed(0)
    model = transformers.DeepseekVLForConditionalGeneration(config)
    model.generation_config.eos_token_id = 1
    processor = transformers.DeepseekVLProcessor(
        image_processor=fast_class("DeepseekVLImageProcessor")(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        num_image_tokens=(SIDE // PATCH) ** 2,
        chat_template=TEMPLATE,
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("deepseek_vl"))


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE))
    yield
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed into a folder of its own. Built from a copy: building leaves files behind."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.usefixtures("on_path")
def test_by_import_path_it_keeps_the_contract(checkpoint: Path) -> None:
    checks = check_adapter(checkpoint, SPEC)
    assert [check.name for check in checks] == list(CHECKS)
    assert_passed(checks)
    assert [check.name for check in checks if check.skipped_reason] == ["the family's own image settings"]


def test_by_entry_point_it_is_found_and_listed(checkpoint: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdapterError, match="`deepseek_vl` is multimodal and no adapter serves it"):
        adapter_for(checkpoint)
    monkeypatch.syspath_prepend(str(site))
    try:
        adapter = adapter_for(checkpoint)
        assert type(adapter).__module__ == MODULE
        assert Path(sys.modules[MODULE].__file__ or "").parent == site
        row = families()[-1]
        assert (row.model_types, row.adapter) == (("deepseek_vl",), SPEC)
        assert "mmcorl-deepseek-vl" in row.notes
        assert all(check.passed for check in check_adapter(checkpoint))
    finally:
        sys.modules.pop(MODULE, None)


@pytest.mark.usefixtures("on_path")
def test_it_trains(checkpoint: Path, tmp_path: Path) -> None:
    config = changed(small_config({"a": checkpoint, "b": checkpoint}), steps=1, agents__0__adapter=SPEC)
    train(changed(config, agents__1__adapter=SPEC), tmp_path / "run")
    assert (tmp_path / "run/final/a/model.safetensors").exists()
