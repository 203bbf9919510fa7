"""The tracking services besides TensorBoard: how accelerate's trackers start and go on with each."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = "mmcorl"


@dataclass(frozen=True)
class Begun:
    """The run as a service has to know it."""

    folder: Path
    name: str
    group: str | None
    """Runs that belong together, such as those of a sweep."""
    identity: str
    """Of the run with this service, chosen by us."""
    known: str | None
    """The same where an earlier session has begun it there; services that choose for themselves gave it."""


@dataclass(frozen=True)
class Service:
    """One service; its calls are made in one thread."""

    project: str | None
    """Variable that names the project; None where there are no projects."""
    options: Callable[[Begun], Mapping[str, Any]]
    """Arguments of accelerate's tracker besides the project."""
    has_tables: bool = False
    """Whether its package has `Table` and `Image`, as which a gallery is sent."""
    identity: Callable[[Any], str] | None = None
    """What the service calls the run, where that is its own choice."""
    settings_once: bool = False
    """Whether settings that were sent may not change, as some may on a resume."""
    finish: Callable[[Any], object] = lambda tracker: tracker.finish()

    def start(self, name: str, begun: Begun, config: Mapping[str, Any]) -> Any:
        """Begin the run, or go on with it, and send its settings."""
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # The trackers' own log needs it.
        kind = LOGGER_TYPE_TO_CLASS[name]
        project = os.environ.get(self.project, PROJECT) if self.project else begun.name  # Aim asks for the run's name
        tracker = kind(project, **self.options(begun))
        tracker.main_process_only = False
        tracker.start()
        if begun.known is None or not self.settings_once:
            tracker.store_init_configuration(dict(config))
        return tracker


def _by_our_id(begun: Begun) -> dict[str, Any]:
    return {"name": begun.name, "group": begun.group, "id": begun.identity, "resume": "allow"}


def _finish_trackio(_: Any) -> None:
    import trackio

    trackio.finish()  # the run's own finish would be called, and printed, again at exit


def _comet_options(begun: Begun) -> dict[str, Any]:
    from comet_ml import ExperimentConfig

    tags = [begun.group] if begun.group else []
    settings = ExperimentConfig(name=begun.name, tags=tags, offline_directory=str(begun.folder / "comet"))
    return {"experiment_key": begun.identity, "experiment_config": settings}


SERVICES: dict[str, Service] = {
    "wandb": Service("WANDB_PROJECT", lambda begun: {"dir": str(begun.folder), **_by_our_id(begun)}, has_tables=True),
    "trackio": Service(
        "TRACKIO_PROJECT",
        lambda begun: {
            "name": f"{begun.name}-{begun.identity[:8]}",
            "group": begun.group,
            "resume": "allow",
            "embed": False,
        },
        has_tables=True,
        finish=_finish_trackio,
    ),
    "mlflow": Service(
        "MLFLOW_EXPERIMENT_NAME",
        lambda begun: {
            "run_id": begun.known,
            "run_name": begun.name,
            "tags": {"group": begun.group} if begun.group else None,
        },
        identity=lambda tracker: tracker.tracker.info.run_id,
        settings_once=True,
    ),
    "swanlab": Service(
        "SWANLAB_PROJ_NAME", lambda begun: {"log_dir": str(begun.folder / "swanlog"), **_by_our_id(begun)}
    ),
    "comet_ml": Service("COMET_PROJECT_NAME", _comet_options),
    "aim": Service(
        None,
        lambda begun: {
            "logging_dir": str(begun.folder.resolve().parent),
            "run_hash": begun.known,
            "experiment": begun.group or PROJECT,
        },
        identity=lambda tracker: tracker.tracker.hash,
    ),
}
"""By name; also the module to import, and what pip installs."""


def send_gallery(name: str, tracker: Any, records: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Send lines of gallery.jsonl as a table: per agent its votes, its label and one completion; then a picture."""
    package = importlib.import_module(name)
    agents = list(records[0]["agents"])
    columns = ["row", "question", *(f"{agent}: {what}" for agent in agents for what in ("votes", "label", "sample"))]
    rows = []
    for record in records:
        row = [str(record["row"]), str(record["text"])]
        for own in record["agents"].values():
            votes = ", ".join(f"{answer} x{count}" for answer, count in own["votes"])
            row += [votes, str(own["label"]), str(own["sample"])]
        images = [package.Image(str(folder / path)) for path in record["images"][:1]]
        rows.append([*row, str(record["gold"]), *(images or [None])])
    table = package.Table(columns=[*columns, "known answer", "picture"], data=rows)
    tracker.log({"gallery": table}, step=int(records[0]["step"]))


def plain_tag(name: str) -> str:
    """A tag as every service takes it: `cohort/pairs/qwen|intern` with a dash."""
    return re.sub(r"[^\w./: -]", "-", name)
