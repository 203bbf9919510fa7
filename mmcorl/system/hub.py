"""The model hub: ids of its repositories, and whether it answers."""

from __future__ import annotations

import re
from pathlib import Path

PATIENCE = 5.0
"""Seconds for the hub to answer at all."""
_CACHED = re.compile(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots[/\\]")


def hub_id(model: str) -> str | None:
    """Return the hub id of a model that a config names; None for a folder of this machine or a demo model.

    A folder in the hub's cache has its id in its name.
    """
    if cached := _CACHED.search(model):
        return f"{cached[1]}/{cached[2]}"
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", model)
    return model if is_id and not Path(model).exists() else None


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of the hub, of its client and of the client's HTTP library, whose name depends on the version."""
    from huggingface_hub.errors import HfHubHTTPError

    known = [base for base in HfHubHTTPError.__mro__[1:] if issubclass(base, Exception) and base is not Exception]
    return OSError, RuntimeError, ValueError, *known


def unreachable() -> str | None:
    """Return why the hub cannot be reached, after which this process does not ask it; None where it can.

    Its client would try for half a minute per file, and print each try.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if not constants.HF_HUB_OFFLINE:
        try:
            get_session().head(constants.ENDPOINT, timeout=PATIENCE)
        except hub_errors() as error:
            constants.HF_HUB_OFFLINE = True
            return " ".join(str(error).split()) or type(error).__name__
    return None
