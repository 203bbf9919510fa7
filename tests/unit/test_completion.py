"""Completion scripts, driven in a real interactive bash."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import mmcorl.cli.parsing  # noqa: F401
from mmcorl.cli.completion import script
from mmcorl.config import shipped


class Bash:
    """An interactive bash that has read the script; `complete` types a line and Tab, and returns what then stands."""

    def __init__(self, folder):
        (folder / "completion.bash").write_text(script("bash"))
        (folder / "my_run.yaml").write_text("")
        (folder / "notes.txt").write_text("")
        self.master, inner = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "PS1": "$ ", "TERM": "dumb", "HOME": str(folder)}
        line = ["bash", "--norc", "--noprofile", "-i"]
        self.shell = subprocess.Popen(
            line, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        self.type("bind 'set enable-bracketed-paste off'; source completion.bash; echo rea''dy\n", "ready")

    def type(self, text, until):
        os.write(self.master, text.encode())
        seen, end = "", time.monotonic() + 20
        while until not in seen and time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 65536).decode()
        assert until in seen, seen
        return seen

    def complete(self, line):
        """The line after Tab, as the shell holds it: printed with its end marked, without running it."""
        self.type("\x15", "")
        self.type(f"{line}\t", "")
        seen = self.type("|\x01echo '\x05' EN''D\n", " END")
        return re.findall(r"^(mmcorl .*)\|\s* END", seen.replace("\r", ""), re.MULTILINE)[-1]

    def close(self):
        os.close(self.master)
        self.shell.kill()
        self.shell.wait()


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    shell = Bash(tmp_path_factory.mktemp("bash"))
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("mmcorl tra", "mmcorl train "),
        ("mmcorl train quicks", "mmcorl train quickstart "),
        ("mmcorl train paper/vlm_gemma_4", "mmcorl train paper/vlm_gemma_4b_open_r1 "),
        ("mmcorl doctor my_r", "mmcorl doctor my_run.yaml "),
        ("mmcorl train quickstart optimizer.l", "mmcorl train quickstart optimizer.lr="),
        ("mmcorl train quickstart steps=3 batch.pr", "mmcorl train quickstart steps=3 batch.prompts="),
        ("mmcorl train quickstart supervision.kind=sel", "mmcorl train quickstart supervision.kind=self"),
        ("mmcorl train quickstart --run-d", "mmcorl train quickstart --run-dir "),
        ("mmcorl sweep quickstart --methods ttrl intu", "mmcorl sweep quickstart --methods ttrl intuitor "),
        ("mmcorl completion z", "mmcorl completion zsh "),
    ],
)
def test_bash_completes(bash, typed, completed):
    assert bash.complete(typed) == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_commands_configs_and_settings(shell):
    text = script(shell)
    for word in ("check-adapter", "--max-new-tokens", "objective.kl_coef=", *shipped()):
        assert word in text
