"""Named methods: fragments of a config that make any run another method, laid under it by `--method`.

A method is a YAML file here, or one of the user's. `+` lays several on top of each other, the later ones winning:
`rent+kl0` is RENT without its anchor, `co_rl+gspo` another objective for Co-RL. What a config or an override says of
data, models, steps and batch is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from mmcorl.config.yaml_loader import Loader, complaint
from mmcorl.errors import UserError

FOLDER = Path(__file__).parent
FORBIDDEN = ("name", "agents", "data", "validation", "seed", "data_seed", "steps", "epochs")
"""What belongs to a run and not to a method."""
PLAIN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("supervision", "kind"): {"supervision": {"voter": "policy", "teachers": None, "pair": None}, "episode": None},
    ("reward", "kind"): {"reward": {"unanswered_entropy": None}},
    ("episode", "kind"): {"reward": {"kind": "match", "unanswered_entropy": None}},
    ("objective", "kl_coef"): {"objective": {"kl_reference": "start"}},
}
"""What a method that says the one also says, unless it says otherwise: no part of another method stays beneath it."""


def names() -> dict[str, str]:
    """Every shipped method and its first line, which says what it is."""
    return {path.stem: path.read_text().splitlines()[0].removeprefix("# ") for path in sorted(FOLDER.glob("*.yaml"))}


def describe(method: str) -> str:
    """What a method is, in the words of its parts; a file of the user's own has none."""
    known = names()
    return "; ".join(known[part] for part in method.split("+") if part in known)


def fragment(method: str) -> dict[str, Any]:
    """The settings of `NAME`, `FILE.yaml` or several joined by `+`; UserError where one is unknown or oversteps."""
    merged: dict[str, Any] = {}
    for part in method.split("+"):
        merged = merge(merged, _read(part.strip()))
    return merged


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of both, key by key; what `above` says wins."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _read(name: str) -> dict[str, Any]:
    own = name.endswith((".yaml", ".yml"))
    path = Path(name) if own else FOLDER / f"{name}.yaml"
    if own and not path.is_file():
        raise UserError(f"there is no file {name!r}: correct its path, or use a method by name")
    if "=" in name:
        raise UserError(f"{name!r} is an override and no method: write overrides before --methods")
    if not name or not path.is_file():
        near = get_close_matches(name.lower().replace("-", "_"), names(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"there is no method {name!r}: {hint}use {', '.join(names())}, a file.yaml, or several joined by +"
        )
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except yaml.YAMLError as error:
        raise UserError(f"the method {name!r} is not valid YAML: {complaint(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the method {name!r} is not text in UTF-8: save it as UTF-8") from error
    if not isinstance(found, dict):
        raise UserError(f"the method {name!r} holds no settings: write `key: value` lines, as in a config")
    for key in found:
        if key in FORBIDDEN:
            raise UserError(f"the method {name!r} sets {key!r}, which belongs to a run: leave it to the config")
    said: dict[str, Any] = found
    for (section, key), plain in PLAIN.items():
        if isinstance(found.get(section), Mapping) and key in found[section]:
            said = merge(plain, said)
    return said
