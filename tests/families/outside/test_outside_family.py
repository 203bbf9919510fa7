"""A family from outside the tree, loaded as its user would: by import path, by entry point once installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import patches
from mmcorl.training import train
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.contract import CHECKS, check_adapter
from model_adapters.registry import adapter_for, families
from runs import changed, small_config

HERE = Path(__file__).parent
MODULE = "mmcorl_perception_lm"
SPEC = f"{MODULE}:PerceptionLMAdapter"

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SIDE, PATCH, POOL = 56, 14, 2  # 56 / 14 / 2 = 2, so an image is 2 x 2 = 4 tokens


def build(path: Path) -> Path:
    """A PerceptionLM with random weights and a timm vision transformer of two blocks."""
    patches.apply("torchvision_cpu")
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [*SPECIALS, "<|image|>", "<|video|>"]
    backend.train_from_iterator(
        ["How many dots are there?"],
        trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|end_of_text|>",
        padding_side="left",
        extra_special_tokens={"image_token": "<|image|>", "video_token": "<|video|>"},
    )
    token = tokenizer.convert_tokens_to_ids
    config = transformers.PerceptionLMConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "initializer_range": 0.1,
            "bos_token_id": token("<|begin_of_text|>"),
            "eos_token_id": token("<|eot_id|>"),
            "pad_token_id": token("<|end_of_text|>"),
        },
        vision_config={
            "architecture": "vit_pe_core_large_patch14_336",
            "initializer_range": 0.1,
            "model_args": {
                "embed_dim": 64,
                "depth": 2,
                "num_heads": 4,
                "img_size": [SIDE, SIDE],
                "ref_feat_shape": [SIDE // PATCH, SIDE // PATCH],
                "global_pool": "",
                "use_post_transformer_norm": False,
                "init_values": 0.1,
            },
        },
        projector_pooling_ratio=POOL,
        image_token_id=token("<|image|>"),
        video_token_id=token("<|video|>"),
    )
    torch.manual_seed(0)
    model = transformers.PerceptionLMForConditionalGeneration(config)
    model.generation_config.eos_token_id = [token("<|eot_id|>"), token("<|end_of_text|>")]
    newer = transformers.__version__ >= "5"
    image_processor = getattr(transformers, "PerceptionLMImageProcessor" + ("" if newer else "Fast"))
    processor = transformers.PerceptionLMProcessor(
        image_processor=image_processor(tile_size=SIDE, max_num_tiles=4),  # "thumb+tile", as on the hub
        video_processor=transformers.PerceptionLMVideoProcessor(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        pooling_ratio=POOL,
        chat_template=TEMPLATE,
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("perception_lm"))


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
    assert [f"{check.name}: {check.detail}" for check in checks if not check.passed] == []
    assert [check.name for check in checks if check.skipped_reason] == []


def test_by_entry_point_it_is_found_and_listed(checkpoint: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdapterError, match="`perception_lm` is multimodal and no adapter serves it"):
        adapter_for(checkpoint)
    monkeypatch.syspath_prepend(str(site))
    try:
        adapter = adapter_for(checkpoint)
        assert type(adapter).__module__ == MODULE
        assert Path(sys.modules[MODULE].__file__ or "").parent == site
        row = families()[-1]
        assert (row.model_types, row.adapter) == (("perception_lm",), SPEC)
        assert "mmcorl-perception-lm" in row.notes
        assert all(check.passed for check in check_adapter(checkpoint))
    finally:
        sys.modules.pop(MODULE, None)


@pytest.mark.usefixtures("on_path")
def test_an_image_is_one_view_whatever_its_shape(checkpoint: Path) -> None:
    adapter = adapter_for(checkpoint, SPEC)
    vision = VisionSettings()
    processor = adapter.load_processor(checkpoint, vision)
    encoded = adapter.encode(processor, "?", [Image.new("RGB", (300, 60))], vision=vision)
    assert encoded.vision["pixel_values"].shape == (1, 1, 3, SIDE, SIDE)
    token = processor.tokenizer.convert_tokens_to_ids("<|image|>")
    assert int((encoded.input_ids == token).sum()) == 4
    with pytest.raises(AdapterError, match="takes one view"):
        adapter.encode(processor, "?", [Image.new("RGB", (300, 60))], vision=VisionSettings(tiles=4))


@pytest.mark.usefixtures("on_path")
def test_it_trains_and_what_its_tower_takes_is_not_guessed(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(small_config({"a": checkpoint, "b": checkpoint}), steps=1, agents__0__adapter=SPEC)
    train(changed(config, agents__1__adapter=SPEC), tmp_path / "run", quiet=False)
    assert (tmp_path / "run/final/a/model.safetensors").exists()
    assert "without the activations of the vision tower" in capsys.readouterr().err
