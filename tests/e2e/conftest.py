"""A run of two text agents that tests of kills and forks repeat in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs import ForkServer, assert_it_learns, small_config, taught, write_config


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of two agents."""
    cache = tmp_path_factory.getbasetemp() / "taught"
    models = {"qwen": taught("qwen2", cache), "llama": taught("llama", cache)}
    return write_config(tmp_path_factory.mktemp("config"), small_config(models, "text"))


@pytest.fixture(scope="session")
def reference(config: Path, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, left alone."""
    run = tmp_path_factory.mktemp("reference") / "run"
    ended = server.run("train", config, "--run-dir", run)
    assert ended.code == 0, ended.output
    assert_it_learns(run)
    return run
