"""Numbers and settings, in two also pictures, in the files of every tracking service, offline by the real packages."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trackers

SESSION = """
import json, sys
from pathlib import Path
from PIL import Image
from mmcorl.run.trackers import Trackers

run, name, start = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(run / "gallery").mkdir(exist_ok=True)
Image.new("RGB", (8, 8), "red").save(run / "gallery/u_0.png")
own = {"votes": [["7", 5], ["8", 3]], "label": "8", "sample": "so 7"}
kept = {"step": 4, "uid": "u", "row": "r1", "text": "How many?", "gold": "8", "images": ["gallery/u_0.png"],
        "agents": {"qwen": own, "intern": own}}
config = {"name": "mine", "optimizer": {"lr": 0.25, "betas": [0.9, 0.99]}, "agents": [{"name": "qwen", "model": "m"}]}
with Trackers(run, (name,), config, start_step=start) as trackers:
    for step in range(start + 1, start + 5):
        if step == 4:
            trackers.log_gallery([kept])
        trackers.log({"step": step, "agents": {"qwen": {"reward_mean": step / 8}},
                      "cohort": {"pairs": {"qwen|intern": step / 16}}})
"""


def run_twice(name: str, folder: Path, **environment: str) -> Path:
    """Steps 1 to 4, then as resumed after a checkpoint of step 2, steps 3 to 6: 3 and 4 may not come twice."""
    run = folder / "sweep" / "co_rl" / "seed_0"
    run.mkdir(parents=True)
    kept = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    for start in ("0", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(run), name, start],
            env={**kept, "HOME": str(folder), **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "", "stdout is for results"
        assert "takes no more" not in done.stderr, done.stderr
    assert json.loads((run / "trackers.json").read_text())["sent"] == {"gallery": 4, "step": 6}
    return run


STEPS = [1, 2, 3, 4, 5, 6]
VALUES = [step / 8 for step in STEPS]


def records(content: bytes) -> Iterator[bytes]:
    """The records of wandb's file, which is a log of LevelDB: blocks of 32 KiB, of parts with checksum, size, kind."""
    place, parts = 7, []
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        parts.append(content[place + 7 : place + 7 + size])
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb(tmp_path: Path) -> None:
    run = run_twice("wandb", tmp_path, WANDB_MODE="offline")
    from wandb.proto import wandb_internal_pb2

    history: dict[int, dict[str, Any]] = {}
    settings, ids, groups = {}, set(), set()
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                groups.add(record.run.run_group)
            for update in [*record.config.update, *record.run.config.update]:
                settings["/".join(update.nested_key) or update.key] = update.value_json
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                history.setdefault(items["_step"], {}).update(items)
    assert sorted(history) == STEPS
    assert [history[step]["agents/qwen/reward_mean"] for step in STEPS] == VALUES
    assert history[5]["cohort/pairs/qwen-intern"] == 5 / 16
    assert float(settings["optimizer.lr"]) == 0.25
    assert len(ids) == 1
    assert groups == {"sweep"}
    assert history[4]["gallery/_type"] == "table-file"
    (table,) = run.glob("wandb/offline-run-*/files/media/table/gallery*.json")
    content = json.loads(table.read_text())
    assert content["columns"][:3] == ["row", "question", "qwen: votes"]
    assert content["data"][0][:3] == ["r1", "How many?", "7 x5, 8 x3"]
    # The table of the run only names the picture's kind; table and picture are the artifact that the page shows.
    files = b"".join(file.read_bytes() for file in run.glob("wandb/offline-run-*/*.wandb"))
    assert b"gallery.table.json" in files
    assert b"media/images/" in files


def test_trackio(tmp_path: Path) -> None:
    run_twice("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "store"))
    read = """
import json, trackio
run, = trackio.Api().runs("mmcorl")
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps([SQLiteStorage.get_logs("mmcorl", run.name), run.config], default=str))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "store"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", read], env=environment, capture_output=True, text=True, check=True)
    logs, config = json.loads(done.stdout.splitlines()[-1])
    rewards = [(line["step"], line["agents/qwen/reward_mean"]) for line in logs if "agents/qwen/reward_mean" in line]
    assert rewards == list(zip(STEPS, VALUES, strict=True))
    assert config["optimizer.lr"] == 0.25
    (table,) = [line["gallery"] for line in logs if "gallery" in line]
    assert table["_value"][0]["qwen: votes"] == "7 x5, 8 x3"
    assert table["_value"][0]["picture"]["_type"] == "trackio.image"


def test_mlflow(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/mlflow.db"
    run_twice("mlflow", tmp_path, MLFLOW_TRACKING_URI=address)
    import mlflow

    client = mlflow.MlflowClient(address)
    (experiment,) = client.search_experiments(filter_string="name = 'mmcorl'")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "agents/qwen/reward_mean")
    assert [(one.step, one.value) for one in history] == list(zip(STEPS, VALUES, strict=True))
    assert found.data.params["optimizer.lr"] == "0.25"
    assert found.data.tags["group"] == "sweep"
    assert not client.list_artifacts(found.info.run_id)


def test_swanlab(tmp_path: Path) -> None:
    run = run_twice("swanlab", tmp_path, SWANLAB_MODE="offline", SWANLAB_SAVE_DIR=str(tmp_path / "swan"))
    files = [path for path in (run / "swanlog").rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    for said in (b"agents/qwen/reward_mean", b"optimizer.lr"):
        assert said in content


def test_comet(tmp_path: Path) -> None:
    run = run_twice("comet_ml", tmp_path, COMET_START_ONLINE="0", COMET_API_KEY="x" * 25)
    metrics, parameters = [], {}
    for archive in sorted((run / "comet").glob("*.zip")):
        with zipfile.ZipFile(archive) as zipped:
            for line in zipped.read("messages.json").decode().splitlines():
                message = json.loads(line)["payload"]
                if metric := message.get("metric"):
                    if metric["metricName"] == "agents/qwen/reward_mean":
                        metrics.append((metric["step"], float(metric["metricValue"])))
                elif param := message.get("param"):
                    parameters[param["paramName"]] = param["paramValue"]
    assert sorted(metrics) == list(zip(STEPS, VALUES, strict=True))
    assert float(parameters["optimizer.lr"]) == 0.25


def test_aim(tmp_path: Path) -> None:
    run = run_twice("aim", tmp_path)
    read = """
import json, sys
from aim import Repo
from aim.sdk.index_manager import RepoIndexManager
(name,) = Repo(sys.argv[1]).list_all_runs()
RepoIndexManager.get_index_manager(Repo(sys.argv[1])).index(name)  # as `aim up` does
(run,) = Repo(sys.argv[1]).iter_runs()
points = []
for metric in run.metrics():
    if metric.name == "agents/qwen/reward_mean":
        steps, (values, *_) = metric.data.numpy()
        points = sorted(zip(steps.tolist(), values.tolist()))
print(json.dumps([points, run["hparams"]["optimizer.lr"], run.experiment]))
"""
    command = [sys.executable, "-c", read, str(run.parent)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    points, rate, experiment = json.loads(done.stdout.splitlines()[-1])
    assert points == [[step, value] for step, value in zip(STEPS, VALUES, strict=True)]
    assert (rate, experiment) == (0.25, "sweep")
