"""The tracking services besides TensorBoard: how accelerate's trackers start, go on and show pictures with each."""

from __future__ import annotations

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
class Gallery:
    """Prompts of one step with what each agent said, as a table of texts, and the pictures of each row."""

    step: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    pictures: Sequence[Sequence[Path]]

    def captions(self) -> list[tuple[Path, str]]:
        """Each picture with its row in words, for services without tables."""
        texts = ["\n".join(map(": ".join, zip(self.columns, row, strict=True))) for row in self.rows]
        return [(path, text) for paths, text in zip(self.pictures, texts, strict=True) for path in paths]

    def table(self, picture: Callable[[str], Any]) -> list[list[Any]]:
        """The rows with their first picture in a last column."""
        return [
            [*row, picture(str(paths[0])) if paths else None]
            for row, paths in zip(self.rows, self.pictures, strict=True)
        ]


@dataclass(frozen=True)
class Service:
    """One service; its calls are made in one thread."""

    project: str | None
    """Variable that names the project; None where there are no projects."""
    options: Callable[[Begun], Mapping[str, Any]]
    """Arguments of accelerate's tracker besides the project."""
    show: Callable[[Any, Gallery], object]
    """Send a gallery."""
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


def _wandb(tracker: Any, gallery: Gallery) -> None:
    import wandb

    tracker.log_table("gallery", [*gallery.columns, "picture"], gallery.table(wandb.Image), step=gallery.step)


def _trackio(tracker: Any, gallery: Gallery) -> None:
    import trackio

    table = trackio.Table(columns=[*gallery.columns, "picture"], data=gallery.table(trackio.Image))
    tracker.log({"gallery": table}, step=gallery.step)


def _finish_trackio(_: Any) -> None:
    import trackio

    trackio.finish()  # the run's own finish would be called, and printed, again at exit


def _mlflow(tracker: Any, gallery: Gallery) -> None:
    import mlflow
    from PIL import Image

    columns = {name: [row[place] for row in gallery.rows] for place, name in enumerate(gallery.columns)}
    file = f"gallery/step_{gallery.step:06d}"
    mlflow.log_table(columns, f"{file}.json")
    for number, (path, _) in enumerate(gallery.captions()):
        with Image.open(path) as image:
            mlflow.log_image(image, f"{file}_{number}.png")


def _swanlab(tracker: Any, gallery: Gallery) -> None:
    import swanlab

    images = [swanlab.Image(str(path), caption=text) for path, text in gallery.captions()]
    if images:
        tracker.log({"gallery": images}, step=gallery.step)


def _comet(tracker: Any, gallery: Gallery) -> None:
    file = f"gallery_{gallery.step:06d}"
    tracker.tracker.log_table(f"{file}.csv", tabular_data=list(map(list, gallery.rows)), headers=list(gallery.columns))
    for number, (path, text) in enumerate(gallery.captions()):
        facts = {"name": f"{file}_{number}", "step": gallery.step, "metadata": {"said": text}}
        tracker.tracker.log_image(str(path), **facts)


def _comet_options(begun: Begun) -> dict[str, Any]:
    from comet_ml import ExperimentConfig

    tags = [begun.group] if begun.group else []
    settings = ExperimentConfig(name=begun.name, tags=tags, offline_directory=str(begun.folder / "comet"))
    return {"experiment_key": begun.identity, "experiment_config": settings}


def _aim(tracker: Any, gallery: Gallery) -> None:
    import aim

    images = [aim.Image(str(path), caption=text) for path, text in gallery.captions()]
    if images:
        tracker.tracker.track(images, name="gallery", step=gallery.step)


SERVICES: dict[str, Service] = {
    "wandb": Service(
        "WANDB_PROJECT",
        lambda begun: {
            "name": begun.name,
            "group": begun.group,
            "id": begun.identity,
            "resume": "allow",
            "dir": str(begun.folder),
        },
        _wandb,
    ),
    "trackio": Service(
        "TRACKIO_PROJECT",
        lambda begun: {
            "name": f"{begun.name}-{begun.identity[:8]}",
            "group": begun.group,
            "resume": "allow",
            "embed": False,
        },
        _trackio,
        finish=_finish_trackio,
    ),
    "mlflow": Service(
        "MLFLOW_EXPERIMENT_NAME",
        lambda begun: {
            "run_id": begun.known,
            "run_name": begun.name,
            "tags": {"group": begun.group} if begun.group else None,
        },
        _mlflow,
        identity=lambda tracker: tracker.tracker.info.run_id,
        settings_once=True,
    ),
    "swanlab": Service(
        "SWANLAB_PROJ_NAME",
        lambda begun: {
            "name": begun.name,
            "group": begun.group,
            "id": begun.identity,
            "resume": "allow",
            "log_dir": str(begun.folder / "swanlog"),
        },
        _swanlab,
    ),
    "comet_ml": Service("COMET_PROJECT_NAME", _comet_options, _comet),
    "aim": Service(
        None,
        lambda begun: {
            "logging_dir": str(begun.folder.resolve().parent),
            "run_hash": begun.known,
            "experiment": begun.group or PROJECT,
        },
        _aim,
        identity=lambda tracker: tracker.tracker.hash,
    ),
}
"""By name; also the module to import, and what pip installs."""


def plain_tag(name: str) -> str:
    """A tag as every service takes it: `cohort/pairs/qwen|intern` with a dash."""
    return re.sub(r"[^\w./: -]", "-", name)
