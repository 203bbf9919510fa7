"""What made a folder: the command without passwords, the first beginning, the version."""

from __future__ import annotations

import json
from pathlib import Path

from mmcorl.run import provenance
from mmcorl.system.version import __version__


def test_the_command_is_kept_without_passwords(tmp_path: Path) -> None:
    words = ["eval", "a b", "--judge", "https://me:pa:ss@host/v1", "judge.api_key=abc", "sampling.max_new_tokens=64"]
    with provenance.command(words):
        facts = provenance.begin(tmp_path)
    assert facts["command"] == (
        "mmcorl eval 'a b' --judge https://me:***@host/v1 judge.api_key=*** sampling.max_new_tokens=64"
    )
    assert facts["version"].startswith(__version__)
    assert json.loads((tmp_path / "made.json").read_text()) == facts == provenance.read(tmp_path)
    # Python code that resumes the work has no command; the work began when it began.
    (tmp_path / "made.json").write_text(json.dumps(facts | {"started": "2026-01-02 03:04:05 UTC"}))
    provenance.begin(tmp_path)
    ended = provenance.end(tmp_path)
    assert (ended["command"], ended["started"]) == (None, "2026-01-02 03:04:05 UTC")
    assert list(ended) == ["command", "started", "ended", "version"]
    assert ended["ended"].endswith(" UTC")


def test_a_folder_that_nothing_is_known_of_has_a_version(tmp_path: Path) -> None:
    assert provenance.read(tmp_path) == {}
    assert provenance.end(tmp_path)["version"] == provenance.code_version()
