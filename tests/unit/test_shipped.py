"""Shipped configs by name, and install commands that fit how mmcorl was installed."""

from __future__ import annotations

import shutil

import pytest

from mmcorl import config as settings
from mmcorl.config import load, shipped
from mmcorl.errors import UserError
from mmcorl.system import install_hints
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


WHEEL = {"url": "file:///tmp/mmcorl-0.1.0-py3-none-any.whl", "archive_info": {}}
CLONE = {"url": "https://host/mmcorl.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}}


@pytest.mark.parametrize(
    ("tool", "origin", "command"),
    [
        ("pip", {}, "pip install 'mmcorl[ray]'"),
        ("uv pip", {}, "uv pip install 'mmcorl[ray]'"),
        ("pip", WHEEL, "pip install 'mmcorl[ray] @ file:///tmp/mmcorl-0.1.0-py3-none-any.whl'"),
        ("pip", CLONE, "pip install 'mmcorl[ray] @ git+https://host/mmcorl.git@0a1b'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(tool, origin, command, tmp_path):
    assert install_hints._command(tool, "mmcorl[ray]", origin, tmp_path) == command


def test_a_checkout_is_installed_from_its_folder(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    assert install_hints._command("uv pip", "mmcorl[ray]", {}, tmp_path) == f"uv pip install -e '{tmp_path}[ray]'"
    monkeypatch.chdir(ROOT)
    assert install_hints.install("ray").endswith("pip install -e '.[ray]'")
