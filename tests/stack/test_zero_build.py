"""DeepSpeed's build for CPUs after one that was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

pytestmark = pytest.mark.stack

PROGRAM = """
import torch
from mmcorl.sharding.deepspeed import _deepspeed
_deepspeed(torch.device("cpu"))
"""


def test_what_a_killed_build_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """Two processes at once, as ranks start, on a folder with the file that torch would wait for."""
    folder = tmp_path / "deepspeed_shm_comm"
    # Objects that another test compiled already serve here too, as they would the next run: only the last step is left.
    built = Path(cpp_extension._get_build_directory(folder.name, verbose=False))
    shutil.copytree(built, folder)
    (folder / "deepspeed_shm_comm.so").unlink(missing_ok=True)
    (folder / "lock").touch()
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) for _ in range(2)]
    try:
        assert [rank.wait(300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    assert (folder / "deepspeed_shm_comm.so").is_file()
    assert not (folder / "lock").exists()
