"""A family from outside whose workers misbehave: what $MMCORL_SABOTAGE says is run where a Ray worker loads it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_adapters.text import TextAdapter


class Saboteur(TextAdapter):
    """The text family."""


def on_rank(number: int, action: Callable[..., None]) -> Callable[..., None]:
    """`action` on one rank of the agent only."""
    import torch.distributed as dist

    def chosen(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized() or dist.get_rank() == number:
            action(*args, **kwargs)

    return chosen


def marked(action: Callable[..., None]) -> Callable[..., None]:
    """`action`, with the time of it written down first."""

    def noted(*args: Any, **kwargs: Any) -> None:
        Path(os.environ["MMCORL_MARK"]).write_text(str(time.time()))
        action(*args, **kwargs)

    return noted


def suspend(*_: Any, **__: Any) -> None:
    """Like SIGSTOP from outside."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stand_still(*_: Any, **__: Any) -> None:
    """Never come back, with all threads but this one alive."""
    time.sleep(3600)


def explode(*_: Any, **__: Any) -> None:
    """Raise."""
    raise ValueError("the third shoe dropped")


def no_big_files(*_: Any, **__: Any) -> None:
    """As on a full disk: no file may grow beyond some kilobytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _in_worker() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


if os.environ.get("MMCORL_SABOTAGE") and _in_worker():
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import sabotage

    exec(os.environ["MMCORL_SABOTAGE"], {**vars(sabotage), **globals()})
