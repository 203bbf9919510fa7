"""What made a folder: the command without passwords, the first beginning, the version."""

from __future__ import annotations

import json
from pathlib import Path

from mmcorl.run import made
from mmcorl.system.version import __version__


def test_the_command_is_kept_without_passwords(tmp_path: Path) -> None:
    words = ["eval", "a b", "--judge", "https://me:pa:ss@host/v1", "judge.api_key=abc", "sampling.max_new_tokens=64"]
    with made.command(words):
        facts = made.begin(tmp_path)
    assert facts["command"] == (
        "mmcorl eval 'a b' --judge https://me:***@host/v1 judge.api_key=*** sampling.max_new_tokens=64"
    )
    assert facts["version"].startswith(__version__)
    assert json.loads((tmp_path / "made.json").read_text()) == facts == made.read(tmp_path)
    # Python code that resumes the work has no command; the work began when it began.
    (tmp_path / "made.json").write_text(json.dumps(facts | {"started": "2026-01-02 03:04:05 UTC"}))
    made.begin(tmp_path)
    ended = made.end(tmp_path)
    assert (ended["command"], ended["started"]) == (None, "2026-01-02 03:04:05 UTC")
    assert list(ended) == ["command", "started", "ended", "version"]
    assert ended["ended"].endswith(" UTC")


def test_a_folder_that_nothing_is_known_of_has_a_version(tmp_path: Path) -> None:
    assert made.read(tmp_path) == {}
    assert made.end(tmp_path)["version"] == made.code_version()
