"""Choose the adapter of a checkpoint by `model_type` in its config.json, never by its path.

Built-in families are the adapter classes in this folder: a new one is one file. An outside family is named by its file
(`file.py:Class`) or import path (`package.module:Class`), or registers an entry point, of any name; the class's own
`model_types` count:

    [project.entry-points."mmcorl.adapters"]
    perception_lm = "my_package.adapter:PerceptionLMAdapter"
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module, invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from model_adapters.errors import AdapterError
from model_adapters.user_files import read_regular

if TYPE_CHECKING:
    from model_adapters.base import ModelAdapter

MAX_BYTES = 2**24
"""Size limit of a config.json."""
ENTRY_POINTS = "mmcorl.adapters"
"""Entry-point group of outside families."""
TRANSFORMERS = (">=4.57,<4.58", ">=5.16,<5.24")
"""Supported versions of transformers: the paper's, and from the oldest that current serving engines take to the newest
that passes the tests. Its processors change between minor versions, so a later one has to pass them first."""


@dataclass(frozen=True)
class FamilyRow:
    """One row of `mmcorl families`, read from the adapter class."""

    family: str
    model_types: tuple[str, ...]
    """Values of `model_type` in config.json."""
    adapter: str
    """Import path of the class, `package.module:Class`."""
    sizes: str = ""
    """Sizes on the hub."""
    transformers: str = ""
    """Versions of transformers that have it, if not all supported ones do."""
    packages: tuple[str, ...] = ()
    """Distributions it needs besides torch and transformers."""
    patches: tuple[str, ...] = ()
    importance_correction: bool = False
    """Whether `objective.importance_correction: auto` truncates importance weights for this family."""
    stop_tokens: str = ""
    """Tokens that end a completion, in addition to the checkpoint's own generation_config.json."""
    coordinates: str = ""
    """How the family writes places in pictures; empty where a run has to say."""
    notes: str = ""


_HINTS = {
    "internvl_chat": "this is InternVL's own layout, take the checkpoint whose name ends in -HF",
    "qwen2_vl": "Qwen2.5-VL (qwen2_5_vl) is its successor",
    "qwen3_5_moe": "Qwen3.5 without experts (qwen3_5) is served, but trainer and engine would choose experts apart",
    "qwen3_vl_moe": "Qwen3-VL without experts (qwen3_vl) is served, but trainer and engine would choose experts apart",
}


@cache
def builtin_adapters() -> tuple[type[ModelAdapter], ...]:
    """Return the adapter classes in this folder, one per family, sorted by module; the text family is last."""
    import model_adapters
    from model_adapters.base import ModelAdapter

    classes = [
        adapter
        for module in sorted(info.name for info in iter_modules(model_adapters.__path__) if not info.ispkg)
        for adapter in vars(import_module(f"model_adapters.{module}")).values()
        if inspect.isclass(adapter) and issubclass(adapter, ModelAdapter) and "family" in vars(adapter)
        if adapter.__module__ == f"model_adapters.{module}"
    ]
    return tuple(sorted(classes, key=lambda adapter: not adapter.model_types))


def families() -> list[FamilyRow]:
    rows = [_row(adapter, adapter.notes) for adapter in builtin_adapters()]
    for entry, adapter in _installed():
        package = entry.dist.name if entry.dist else "?"
        if isinstance(adapter, AdapterError):
            rows.append(FamilyRow(entry.name, (), entry.value, notes=f"Of the installed package {package}: {adapter}"))
        else:
            rows.append(_row(adapter, f"{adapter.notes} From the installed package {package}.".strip()))
    return rows


def _row(adapter: type[ModelAdapter], notes: str) -> FamilyRow:
    return FamilyRow(
        family=adapter.family,
        model_types=adapter.model_types,
        adapter=_import_path(adapter),
        sizes=adapter.sizes,
        transformers=adapter.transformers,
        packages=adapter.packages,
        patches=adapter.patches,
        importance_correction=adapter.needs_importance_correction,
        stop_tokens=" ".join(adapter.end_of_turn),
        coordinates=adapter.coordinates or "",
        notes=notes,
    )


def _installed() -> list[tuple[metadata.EntryPoint, type[ModelAdapter] | AdapterError]]:
    """Return the entry points of installed packages with their classes, or what is wrong with them."""
    adapters: list[tuple[metadata.EntryPoint, type[ModelAdapter] | AdapterError]] = []
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            adapters.append((entry, _class_at(entry.value)))
        except AdapterError as error:
            adapters.append((entry, error))
    return adapters


def is_outside(adapter: ModelAdapter) -> bool:
    """Whether a family comes from outside of this package, whose tests no adapter of it has passed."""
    return type(adapter).__module__.partition(".")[0] != __name__.partition(".")[0]


def spec_of(adapter: ModelAdapter) -> str:
    """Return how a command names a family's class: `file.py:Class` in one's own file, else `package.module:Class`."""
    kind = type(adapter)
    file = Path(inspect.getfile(kind)).resolve()
    if "." in kind.__module__ or file.stem != kind.__module__ or {"site-packages", "dist-packages"} & {*file.parts}:
        return _import_path(kind)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{kind.__qualname__}"


def _import_path(adapter: type[ModelAdapter]) -> str:
    return f"{adapter.__module__}:{adapter.__qualname__}"


def check_versions() -> None:
    """Refuse untested versions of transformers.

    Raises AdapterError naming the installed version and the supported ones.
    """
    version = metadata.version("transformers")
    if not any(SpecifierSet(allowed).contains(version, prereleases=True) for allowed in TRANSFORMERS):
        raise AdapterError(
            f"transformers {version} is installed, but the adapters support {' or '.join(TRANSFORMERS)}; "
            "install one of those."
        )


def missing_family(adapter: type[ModelAdapter]) -> str | None:
    """Return a sentence if the installed transformers does not have this family."""
    version = metadata.version("transformers")
    if SpecifierSet(adapter.transformers).contains(version, prereleases=True):
        return None
    return (
        f"{adapter.family} needs transformers {adapter.transformers}, but {version} is installed; install one of those."
    )


def adapter_for(path_or_id: str | Path, spec: str | None = None) -> ModelAdapter:
    """Return the adapter of a checkpoint folder or hub id.

    `spec` (`file.py:Class` or `package.module:Class`) names an outside class and takes precedence. Otherwise a built-in
    family or an installed package serves the `model_type`, and the text family serves any other causal language model.
    Raises AdapterError if the folder, its config.json, the model type or the class does not fit.
    """
    check_versions()
    config = _config(path_or_id)
    model_type = config["model_type"]
    if spec is None:
        return _load(_spec_for(model_type, config), model_type="")
    return _load(spec, model_type)


def context_of(path_or_id: str | Path) -> int | None:
    """Return the tokens that config.json of a checkpoint says it reads at most; None where it does not say."""
    config = _config(path_or_id)
    text = config.get("text_config")
    known = {**config, **(text if isinstance(text, dict) else {})}.get("max_position_embeddings")
    return known if isinstance(known, int) else None


# -- config.json -----------------------------------------------------------------------------------------


def _config(path_or_id: str | Path) -> dict[str, Any]:
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            if (path / "adapter_config.json").is_file():
                raise AdapterError(
                    f"`{path_or_id}` holds LoRA weights without their model; give the base model or a merged folder."
                )
            inside = sorted({*path.glob("final/*/config.json"), *path.glob("*/config.json")})
            instead = " or ".join(f"`{each.parent}`" for each in inside[:4])
            instead = instead or "the folder that `save_pretrained` wrote"
            raise AdapterError(
                f"`{path_or_id}` has no config.json, so it is no Hugging Face checkpoint; give {instead}."
            )
    elif path.exists():
        raise AdapterError(f"`{path_or_id}` is a file; give the folder that holds it.")
    elif re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", str(path_or_id)):
        file = _from_hub(str(path_or_id))
    else:
        inside = sorted(Path("runs").glob(f"{path_or_id}/final/*/config.json")) if path.name == str(path_or_id) else []
        instead = " or ".join(f"`{each.parent}`" for each in inside[:4])
        instead = instead or "an existing one or a hub id such as org/name"
        raise AdapterError(f"There is no folder `{path_or_id}`; give {instead}.")
    try:
        config = json.loads(read_regular(file, MAX_BYTES))
    except (ValueError, RecursionError) as error:  # JSON and Unicode errors are two kinds of the first
        raise AdapterError(f"`{file}` is not valid JSON ({error}); fetch the checkpoint again.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise AdapterError(f"`{file}` names no model_type, by which the family is chosen; add it.")
    return config


def _from_hub(name: str) -> Path:
    from transformers.utils import cached_file

    try:
        file = cached_file(name, "config.json")
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise AdapterError(
            f"There is no folder `{name}`, and the hub gave no config.json for it ({reason}); correct the "
            "name or download the model first."
        ) from error
    return Path(str(file))


# -- which class -----------------------------------------------------------------------------------------


_reported: list[metadata.EntryPoint] = []
"""Entry points of installed packages whose fault this process has reported."""


def _spec_for(model_type: str, config: dict[str, Any]) -> str:
    claims = [_import_path(adapter) for adapter in builtin_adapters() if model_type in adapter.model_types]
    for entry, adapter in _installed():
        if not isinstance(adapter, AdapterError):
            claims += [entry.value] * (model_type in (adapter.model_types or (entry.name,)))
        elif entry.name == model_type:
            raise adapter
        elif entry not in _reported:  # another family's, which concerns nobody here but its owner
            _reported.append(entry)
            print(f"installed adapter {entry.name}: {adapter}", file=sys.stderr)
    if len(claims) > 1:
        raise AdapterError(
            f"model_type `{model_type}` is served by {' and '.join(claims)}; choose one by `adapter: "
            f"{claims[-1]}` or uninstall a package."
        )
    if claims:
        return claims[0]
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as MULTIMODAL

    parts = ("vision_config", "visual", "audio_config", "vision_tower", "mm_vision_tower")
    if model_type in MULTIMODAL or any(config.get(part) for part in parts):
        raise AdapterError(f"model_type `{model_type}` is multimodal and no adapter serves it; {_way_out(model_type)}")
    # The table also maps BERT, so `architectures` decides.
    names = config.get("architectures") or [CAUSAL.get(model_type)]
    if model_type in CAUSAL and any(name == CAUSAL[model_type] or name.endswith("ForCausalLM") for name in names):
        return _import_path(builtin_adapters()[-1])
    raise AdapterError(f"model_type `{model_type}` is unknown here; {_way_out(model_type)}")


def _way_out(model_type: str) -> str:
    hint = _HINTS.get(model_type)
    known = ", ".join(f"{row.family} ({', '.join(row.model_types)})" for row in families() if row.model_types)
    start = f"{hint}, or " if hint else ""
    return (
        f"{start}use a checkpoint of {known} or of any causal language model, or add the family: "
        "docs/add_a_family.md shows how in one class of your own, named by `adapter: file.py:Class` (`adapter` of a "
        f"command), `package.module:Class` or the entry point `{ENTRY_POINTS}`."
    )


def _load(spec: str, model_type: str) -> ModelAdapter:
    """Instantiate the class at `spec`; a non-empty `model_type` must be among those it serves."""
    adapter = _class_at(spec)
    if reason := missing_family(adapter):
        raise AdapterError(reason)
    if model_type and adapter.model_types and model_type not in adapter.model_types:
        raise AdapterError(
            f"`{spec}` serves {', '.join(adapter.model_types)}, but the checkpoint's model_type is "
            f"`{model_type}`; choose another adapter or add it to the class's model_types."
        )
    for package in adapter.packages:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            raise AdapterError(
                f"{adapter.family} needs the package {package}, which is not installed; pip install {package}."
            ) from None
    return adapter()


def _module_in(path: str) -> str:
    """Return the name of the module in a file, whose folder joins the path unless Python knows it already."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise AdapterError(f"There is no file `{path}`; give the one that holds the adapter class.")
    name = file.stem
    if not name.isidentifier():
        raise AdapterError(f"`{path}` cannot be imported as a module; name it with letters, digits and _.")
    if name not in sys.modules and find_spec(name) is None:
        sys.path.append(str(file.parent))
        invalidate_caches()
    known = sys.modules.get(name) or find_spec(name)
    origin = getattr(known, "__file__", None) or getattr(known, "origin", None)
    if origin is None or Path(origin).resolve() != file:
        raise AdapterError(
            f"Python knows another module `{name}` ({origin or 'built in'}) than `{path}`; rename the file."
        )
    return name


def _class_at(spec: str) -> type[ModelAdapter]:
    """Import the class at `spec`, a whole ModelAdapter."""
    from model_adapters.base import ModelAdapter

    module_name, _, class_name = spec.rpartition(":")
    if module_name.endswith(".py"):
        module_name = _module_in(module_name)
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", f"{module_name}:{class_name}"):
        raise AdapterError(
            f"`{spec}` does not name an adapter class; write it as file.py:Class or package.module:Class."
        )
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise AdapterError(
            f"`{spec}` cannot be imported ({error}); install its package, put its folder on PYTHONPATH or name its "
            "file (file.py:Class)."
        ) from error
    except (Exception, SystemExit) as error:  # an outside module may raise anything
        raise AdapterError(
            f"`{spec}` cannot be imported ({type(error).__name__}: {error}); correct the module."
        ) from error
    adapter = getattr(module, class_name, None)
    if adapter is None:
        raise AdapterError(f"`{module_name}` has no class `{class_name}`; correct the name.")
    if not (inspect.isclass(adapter) and issubclass(adapter, ModelAdapter)):
        raise AdapterError(f"`{spec}` is not a ModelAdapter; derive it from model_adapters.base.ModelAdapter.")
    missing = sorted(adapter.__abstractmethods__) + [
        name for name in ("family", "model_types") if not hasattr(adapter, name)
    ]
    if missing:
        raise AdapterError(f"`{spec}` is incomplete; implement {', '.join(missing)}.")
    if isinstance(adapter.model_types, str):
        raise AdapterError(f'model_types of `{spec}` is a string; write a tuple, ("{adapter.model_types}",).')
    return adapter
