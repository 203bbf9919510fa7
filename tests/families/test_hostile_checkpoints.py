"""Checkpoints of strangers: code that they bring along is never run nor offered, and damage is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from model_adapters.base import DEFAULT_VISION, AdapterError
from model_adapters.loading import read_pretrained
from model_adapters.registry import adapter_for

MARKER = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Mine: ...\n"
SETTINGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "config.json")


@pytest.fixture
def checkpoint(tiny_checkpoints, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoints["qwen2_5_vl"], tmp_path / "model"))


def load(folder: Path) -> None:
    adapter = adapter_for(folder)
    adapter.load_processor(folder, DEFAULT_VISION)
    adapter.load_model(folder)


@pytest.mark.parametrize("name", SETTINGS)
def test_code_of_a_checkpoint_is_not_run(checkpoint, name, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    classes = ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoConfig", "AutoModelForImageTextToText")
    file = checkpoint / name
    stored = json.loads(file.read_text()) if file.is_file() else {}
    stored["auto_map"] = {one: "mine.Mine" if one != "AutoTokenizer" else ["mine.Mine", None] for one in classes}
    for key in ("processor_class", "tokenizer_class", "image_processor_type"):
        stored.pop(key, None)
    file.write_text(json.dumps(stored))
    (checkpoint / "mine.py").write_text(MARKER)
    if name == "preprocessor_config.json" and transformers.__version__ < "5":
        # transformers 4.57 knows an image processor by this file alone.
        with pytest.raises(AdapterError, match="never run here"):
            load(checkpoint)
    else:
        load(checkpoint)  # by the classes that transformers has
    assert not [*checkpoint.rglob("ran")]


def test_a_checkpoint_that_needs_its_code_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}')
    (tmp_path / "mine.py").write_text(MARKER)
    with pytest.raises(AdapterError, match=r"auto_map names code of its own, which is never run here\): use"):
        read_pretrained(AutoConfig, tmp_path)
    assert not [*tmp_path.rglob("ran")]


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def damage(folder: Path, what: str) -> None:
    weights = folder / "model.safetensors"
    if what == "pickle":
        weights.unlink()
        torch.save({"a": Touch(folder / "ran")}, folder / "pytorch_model.bin")
    elif what == "header":
        data = bytearray(weights.read_bytes())
        data[9] ^= 0x40
        weights.write_bytes(data)
    elif what == "weights":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif what == "no weights":
        weights.unlink()
    else:
        file = folder / what
        file.write_text(file.read_text()[:-40])


@pytest.mark.parametrize(
    "what", ["pickle", "header", "weights", "no weights", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_damaged_checkpoint_is_one_sentence(checkpoint, what):
    damage(checkpoint, what)
    with pytest.raises(AdapterError, match="cannot be loaded as") as refused:
        load(checkpoint)
    assert "\n" not in str(refused.value)
    assert "Re-running" not in str(refused.value)
    assert not [*checkpoint.rglob("ran")]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_tokenizer_without_vocabulary_is_refused(tiny_checkpoints, family, tmp_path):
    folder = Path(shutil.copytree(tiny_checkpoints[family], tmp_path / "model"))
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(AdapterError, match=r"tokenizer\.json|cannot be loaded as"):
        adapter_for(folder).load_processor(folder, DEFAULT_VISION)


def test_a_tokenizer_in_files_of_its_own_is_read(checkpoint):
    def ids(folder: Path) -> list[int]:
        return read_pretrained(AutoTokenizer, folder)("How many red shapes?")["input_ids"]

    expected, file = ids(checkpoint), checkpoint / "tokenizer.json"
    model = json.loads(file.read_text())["model"]
    (checkpoint / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (checkpoint / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    file.unlink()
    assert ids(checkpoint) == expected


def test_a_processor_that_cannot_process_images_is_refused(checkpoint):
    file = next(file for file in sorted(checkpoint.glob("*processor_config.json")) if "image_mean" in file.read_text())
    stored = json.loads(file.read_text())
    stored.get("image_processor", stored)["image_mean"] = [None]
    file.write_text(json.dumps(stored))
    with pytest.raises(AdapterError, match="cannot be loaded as"):
        adapter_for(checkpoint).load_processor(checkpoint, DEFAULT_VISION)


def test_a_config_without_bottom_is_one_sentence(checkpoint):
    (checkpoint / "config.json").write_text('{"a":' * 3000 + "1" + "}" * 3000)
    with pytest.raises(AdapterError, match="is not valid JSON"):
        adapter_for(checkpoint)


@pytest.mark.parametrize(
    "code", ["raise SystemExit", "class A(:", "1 / 0", "import no_such_module", "def f(): f()\nf()"]
)
def test_an_adapter_module_that_fails_is_one_sentence(checkpoint, code, tmp_path, monkeypatch):
    (tmp_path / "broken_adapter.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AdapterError, match="`broken_adapter:A` cannot be imported"):
        adapter_for(checkpoint, "broken_adapter:A")
