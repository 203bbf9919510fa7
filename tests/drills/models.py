"""Model folders that carry code or are damaged: no code of theirs runs, also where a user would say yes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.drills.damage import Damage, cut, flip, gone, holds
from tests.drills.lab import Lab, Verdict, drills, problem, refused
from tests.runs import write_config

CODE = "open({marker!r}, 'w').write('ran')\n"


class Evil:
    """Leaves a mark as it is unpickled."""

    def __init__(self, model: Path) -> None:
        self._marker = model.with_name("marker")

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._marker}",)


def spoiled(
    spoil: Callable[[Path], object], name: str = "qwen2", may_train: bool = False, command: str = "train"
) -> Callable[[Lab], Verdict]:
    """Use a copy of a checkpoint after `spoil(folder)`, with a `y` for every question."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        model, marker = folder / "model", folder / "marker"
        shutil.copytree(lab.model(name), model)
        spoil(model)
        kind = "text" if name == "qwen2" else "visual"
        made = lab.settings(kind, steps=1, validation=None, agents__0__model=str(model))
        argv = ["train", write_config(folder, made), "--run-dir", folder / "run"]
        if command == "eval":
            benchmark = Path(__file__).resolve().parents[1] / "fixtures" / "benchmarks" / "gsm8k.jsonl"
            argv = ["eval", model, f"gsm8k={benchmark}", "--out", folder / "out", "--max-new-tokens", "8"]
        elif command == "check-adapter":
            argv = ["check-adapter", model]
        ended = lab.run(*argv, typed="y\n" * 50, seconds=40)
        if marker.exists():
            return Verdict("lost", "code of the model's folder was run")
        if "custom code" in ended.output and "[y/N]" in ended.output:
            return Verdict("lost", "it offers to run code of the model's folder")
        if wrong := problem(ended):
            return wrong
        if ended.code == 0:
            return Verdict("survived" if may_train else "silent", "" if may_train else "used as it is")
        return refused(ended)

    return body


def edited(name: str, **changes: Any) -> Damage:
    """Other values in a JSON file."""

    def spoil(model: Path) -> None:
        file = model / name
        content = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**content, **changes}))

    return spoil


def remote(name: str, **changes: Any) -> Damage:
    """An `auto_map` in a JSON file, and the module that it names."""

    def spoil(model: Path) -> None:
        classes = "".join(f"class {part}: pass\n" for part in ("Config", "Model", "Processor", "Tokenizer", "Images"))
        (model / "evil.py").write_text(CODE.format(marker=str(model.with_name("marker"))) + classes)
        auto = {
            "AutoConfig": "evil.Config",
            "AutoModelForCausalLM": "evil.Model",
            "AutoModelForImageTextToText": "evil.Model",
            "AutoProcessor": "evil.Processor",
            "AutoImageProcessor": "evil.Images",
            "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
        }
        edited(name, auto_map=auto, **changes)(model)

    return spoil


def pickled(model: Path) -> None:
    """Weights as a pickle that runs a command."""
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"model.embed_tokens.weight": Evil(model)}, protocol=2))


def pickled_beside(model: Path) -> None:
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin"):
        (model / name).write_bytes(pickle.dumps(Evil(model), protocol=2))


def template(text: str) -> Damage:
    return holds("chat_template.jinja", text)


def weights_of_nan(model: Path) -> None:
    """Every weight of the largest tensor NaN; the header stays."""
    data = bytearray((model / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = b"\0\0\xc0\x7f" * ((len(data) - start) // 4)
    (model / "model.safetensors").write_bytes(bytes(data))


def header_of(length: int) -> Damage:
    return lambda model: (model / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")


LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
VISUAL = "qwen2.5-vl"
MODELS: dict[str, Callable[[Lab], Verdict]] = {
    "auto_map in config.json": spoiled(remote("config.json"), may_train=True),
    "auto_map in config.json of an unknown type": spoiled(remote("config.json", model_type="evil")),
    "pickled weights": spoiled(pickled),
    "auto_map and class in tokenizer_config.json": spoiled(
        remote("tokenizer_config.json", tokenizer_class="Evil"), may_train=True
    ),
    "auto_map and class in processor_config.json": spoiled(
        remote("processor_config.json", processor_class="Processor"), VISUAL, may_train=True
    ),
    "auto_map in preprocessor_config.json": spoiled(
        remote("preprocessor_config.json", image_processor_type="Images"), VISUAL, may_train=True
    ),
    "auto_map in video_preprocessor_config.json": spoiled(
        remote("video_preprocessor_config.json", video_processor_type="Images"), VISUAL, may_train=True
    ),
    "check-adapter, auto_map in processor_config.json": spoiled(
        remote("processor_config.json", processor_class="Processor"), VISUAL, may_train=True, command="check-adapter"
    ),
    "eval, auto_map in processor_config.json": spoiled(
        remote("processor_config.json", processor_class="Processor"), VISUAL, may_train=True, command="eval"
    ),
    "eval, auto_map in tokenizer_config.json": spoiled(remote("tokenizer_config.json"), may_train=True, command="eval"),
    "eval, pickled weights": spoiled(pickled, command="eval"),
    "pickles beside the weights": spoiled(pickled_beside, may_train=True),
    "tokenizer.json empty": spoiled(cut("tokenizer.json", 0)),
    "tokenizer.json is a list": spoiled(holds("tokenizer.json", b"[]")),
    "tokenizer.json gone": spoiled(gone("tokenizer.json")),
    "tokenizer_config.json is a list": spoiled(holds("tokenizer_config.json", b"[]")),
    "eval, tokenizer.json cut": spoiled(cut("tokenizer.json"), command="eval"),
    "config.json cut": spoiled(cut("config.json")),
    "config.json is a list": spoiled(holds("config.json", b"[]")),
    "config.json gone": spoiled(gone("config.json")),
    "config.json with sizes of text": spoiled(edited("config.json", hidden_size="large")),
    "config.json with huge sizes": spoiled(edited("config.json", hidden_size=1 << 20, intermediate_size=1 << 22)),
    "config.json with a million layers": spoiled(edited("config.json", num_hidden_layers=1_000_000)),
    "config.json with another size": spoiled(edited("config.json", intermediate_size=7)),
    "config.json with no heads": spoiled(edited("config.json", num_attention_heads=0)),
    "config.json with a huge vocabulary": spoiled(edited("config.json", vocab_size=1 << 40)),
    "weights empty": spoiled(cut("model.safetensors", 0)),
    "weights of NaN": spoiled(weights_of_nan),
    "a bit of the header's length": spoiled(flip("model.safetensors", 2)),
    "a header of 2^60 bytes": spoiled(header_of(1 << 60)),
    "weights of text": spoiled(holds("model.safetensors", b"no weights")),
    "eval, weights cut": spoiled(cut("model.safetensors"), command="eval"),
    "a template without an end": spoiled(template(LOOP)),
    "a template without an end, eval": spoiled(template(LOOP), command="eval"),
    "a template of 2 GB": spoiled(template("{{ 'x' * 2000000000 }}")),
    "a template of 2 GB by doubling": spoiled(
        template(
            "{% set n = namespace(t='x' * 999) %}{% for i in range(21) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}"
        )
    ),
    "a template that is no Jinja": spoiled(template("{% for %}")),
    "a template that raises": spoiled(template("{{ raise_exception('no') }}")),
    "a template that reaches for classes": spoiled(template("{{ ''.__class__.__mro__[1].__subclasses__() }}")),
    "a template that includes a file": spoiled(template("{% include '/etc/passwd' %}")),
    "a template that says nothing": spoiled(template("")),
    "generation_config.json is a list": spoiled(holds("generation_config.json", b"[]")),
    "a preprocessor of text": spoiled(holds("preprocessor_config.json", b"no JSON"), VISUAL, may_train=True),
    "a folder of nothing": spoiled(lambda model: [file.unlink() for file in model.iterdir()]),
    "config.json is a FIFO": spoiled(
        lambda model: [(model / "config.json").unlink(), os.mkfifo(model / "config.json")]
    ),
}
DRILLS = drills("models", MODELS.items())
