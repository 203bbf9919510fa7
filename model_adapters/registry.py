"""Which adapter a checkpoint gets: chosen by `model_type` in its config.json, never by its path.

Built-in families are rows of a table and are imported when one is used, so listing them imports no torch.
A family from outside is named by import path (`pkg.module:Class`) or announces itself by an entry point:

    [project.entry-points."mmcorl.adapters"]
    perception_lm = "my_package.adapter:PerceptionLMAdapter"   # model_type = import path
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

if TYPE_CHECKING:
    from model_adapters.base import AdapterError, ModelAdapter

ENTRY_POINTS = "mmcorl.adapters"
"""Entry-point group of outside families; the name of an entry is the `model_type` it serves."""
TRANSFORMERS = (">=4.57,<4.58", ">=5.16,<5.20")
"""Supported versions of transformers: the paper's, and those that current serving engines take."""


@dataclass(frozen=True)
class FamilyRow:
    """One line of `mmcorl families`. What the adapter class also states is equal to it, by a test."""

    family: str
    model_types: tuple[str, ...]
    """Values of `model_type` in config.json."""
    adapter: str
    """Where the class is, `pkg.module:Class`."""
    packages: tuple[str, ...] = ()
    """Distributions it needs beside torch and transformers."""
    patches: tuple[str, ...] = ()
    importance_correction: bool = False
    """Whether `auto` switches importance correction on for a separate engine."""
    stop_tokens: str = ""
    """What ends a completion, beside the checkpoint's own generation_config.json."""
    notes: str = ""


_FAMILIES = (
    FamilyRow(
        family="Qwen2.5-VL",
        model_types=("qwen2_5_vl",),
        adapter="model_adapters.qwen2_5_vl:Qwen25VLAdapter",
        packages=("torchvision", "qwen-vl-utils"),
        patches=("torchvision_cpu", "torchaudio_cpu", "vllm_vision_attention"),
        stop_tokens="<|im_end|> <|endoftext|>",
        notes="Image tokens grow with the picture: bound them with min_pixels and max_pixels.",
    ),
    FamilyRow(
        family="InternVL3.5",
        model_types=("internvl",),
        adapter="model_adapters.internvl3_5:InternVL35Adapter",
        packages=("torchvision",),
        patches=("torchvision_cpu", "torchaudio_cpu"),
        stop_tokens="<|im_end|> <|endoftext|>",
        notes="One tile per image unless `tiles` says more; use the -HF checkpoints.",
    ),
    FamilyRow(
        family="Gemma-3",
        model_types=("gemma3",),
        adapter="model_adapters.gemma3:Gemma3Adapter",
        packages=("torchvision",),
        patches=("torchvision_cpu", "torchaudio_cpu", "gemma3_zero3", "gemma3_ragged"),
        importance_correction=True,
        stop_tokens="<end_of_turn>",
        notes="Image tokens attend both ways; engines differ in this, so importance correction is on.",
    ),
)
_TEXT = FamilyRow(
    family="text",
    model_types=(),  # what is left over: any causal language model
    adapter="model_adapters.text:TextAdapter",
    packages=("torchvision",),
    patches=("torchvision_cpu", "torchaudio_cpu", "gemma3_zero3"),
    stop_tokens="<|im_end|> <|eot_id|> <end_of_turn> <|end|> <|endoftext|>",
    notes="Any causal language model with a chat template.",
)

_HINTS = {
    "internvl_chat": "this is InternVL's own layout, take the checkpoint whose name ends in -HF",
    "qwen2_vl": "Qwen2.5-VL (qwen2_5_vl) is its successor",
}


def families() -> list[FamilyRow]:
    """The built-in families, then those of installed packages; imports neither torch nor any adapter."""
    outside = [
        FamilyRow(
            family=entry.name,
            model_types=(entry.name,),
            adapter=entry.value,
            notes=f"From the installed package {entry.dist.name if entry.dist else '?'}.",
        )
        for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    ]
    return [*_FAMILIES, _TEXT, *outside]


def check_versions() -> None:
    """Refuse a transformers this code was never run with; its processors change between minor versions.

    Raises AdapterError naming the installed version and the supported ones.
    """
    version = metadata.version("transformers")
    if not any(SpecifierSet(allowed).contains(version, prereleases=True) for allowed in TRANSFORMERS):
        raise _refusal(
            f"transformers {version} is installed, but the adapters support {' or '.join(TRANSFORMERS)}; "
            "install one of those."
        )


def adapter_for(path_or_id: str | Path, spec: str | None = None) -> ModelAdapter:
    """The adapter of a checkpoint folder or hub id.

    `spec` (`pkg.module:Class`) names an outside class and wins over everything else. Without it the order is:
    built-in family, entry point, and the text family for any causal language model. Raises AdapterError for a
    folder, a config.json, a model type or a class that does not fit.
    """
    check_versions()
    config = _config(path_or_id)
    model_type = config["model_type"]
    if spec is None:
        return _load(_spec_for(model_type, config), model_type="")
    return _load(spec, model_type)


# -- config.json -----------------------------------------------------------------------------------------


def _config(path_or_id: str | Path) -> dict[str, Any]:
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            if (path / "adapter_config.json").is_file():
                raise _refusal(
                    f"`{path_or_id}` holds LoRA weights without their model; give the base model or a merged folder."
                )
            raise _refusal(
                f"`{path_or_id}` has no config.json, so it is no Hugging Face checkpoint; give the folder "
                "that `save_pretrained` wrote."
            )
    elif path.exists():
        raise _refusal(f"`{path_or_id}` is a file; give the folder that holds it.")
    elif re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", str(path_or_id)):
        file = _from_hub(str(path_or_id))
    else:
        raise _refusal(f"There is no folder `{path_or_id}`; give an existing one or a hub id such as org/name.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of which JSON and Unicode errors are two kinds
        raise _refusal(f"`{file}` is not valid JSON ({error}); fetch the checkpoint again.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise _refusal(f"`{file}` names no model_type, by which the family is chosen; add it.")
    return config


def _from_hub(name: str) -> Path:
    from transformers.utils import cached_file

    try:
        found = cached_file(name, "config.json")
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise _refusal(
            f"There is no folder `{name}`, and the hub gave no config.json for it ({reason}); correct the "
            "name or download the model first."
        ) from error
    return Path(str(found))


# -- which class -----------------------------------------------------------------------------------------


def _spec_for(model_type: str, config: dict[str, Any]) -> str:
    builtin = next((row for row in (*_FAMILIES, _TEXT) if model_type in row.model_types), None)
    entries = list(metadata.entry_points(group=ENTRY_POINTS, name=model_type))
    claims = ([builtin.adapter] if builtin else []) + [entry.value for entry in entries]
    if len(claims) > 1:
        raise _refusal(
            f"model_type `{model_type}` is served by {' and '.join(claims)}; choose one by `adapter: "
            f"{claims[-1]}` or uninstall a package."
        )
    if claims:
        return claims[0]
    if _is_multimodal(model_type, config):
        raise _refusal(f"model_type `{model_type}` is multimodal and no adapter serves it; {_way_out(model_type)}")
    if _is_causal(model_type, config):
        return _TEXT.adapter
    raise _refusal(f"model_type `{model_type}` is unknown here; {_way_out(model_type)}")


def _way_out(model_type: str) -> str:
    hint = _HINTS.get(model_type)
    known = ", ".join(kind for row in families() for kind in row.model_types)
    start = f"{hint}, or " if hint else ""
    return (
        f"{start}use one of {known} or any causal language model, or write a ModelAdapter and name it by "
        f"`adapter: pkg.module:Class` or the entry point `{ENTRY_POINTS}`."
    )


def _is_multimodal(model_type: str, config: dict[str, Any]) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    parts = ("vision_config", "visual", "audio_config", "vision_tower", "mm_vision_tower")
    return model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or any(config.get(part) for part in parts)


def _is_causal(model_type: str, config: dict[str, Any]) -> bool:
    """Whether AutoModelForCausalLM makes sense: it maps BERT, too, so `architectures` has the last word."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if model_type not in CAUSAL:
        return False
    architectures = config.get("architectures") or []
    return not architectures or any(
        name == CAUSAL[model_type] or name.endswith("ForCausalLM") for name in architectures
    )


def _load(spec: str, model_type: str) -> ModelAdapter:
    """Instance of the class at `spec`; `model_type`, unless empty, has to be among those it names."""
    from model_adapters.base import ModelAdapter

    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec):
        raise _refusal(f"`{spec}` does not name an adapter class; write it as pkg.module:Class.")
    module_name, class_name = spec.split(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise _refusal(
            f"`{spec}` cannot be imported ({error}); install its package or put its folder on PYTHONPATH."
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise _refusal(f"`{module_name}` has no class `{class_name}`; correct the name.")
    if not (inspect.isclass(found) and issubclass(found, ModelAdapter)):
        raise _refusal(f"`{spec}` is not a ModelAdapter; derive it from model_adapters.base.ModelAdapter.")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise _refusal(f"`{spec}` is incomplete; implement {missing}.")
    if model_type and found.model_types and model_type not in found.model_types:
        raise _refusal(
            f"`{spec}` serves {', '.join(found.model_types)}, but the checkpoint's model_type is "
            f"`{model_type}`; choose another adapter or add it to the class's model_types."
        )
    return found()


def _refusal(sentence: str) -> AdapterError:
    """An AdapterError; imported here because its module imports torch, which listing families must not."""
    from model_adapters.base import AdapterError

    return AdapterError(sentence)
