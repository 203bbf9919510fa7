"""Configs that contradict themselves, cost for nothing or mean harm: refused in one sentence, in little memory.

What is refused has to name the setting; single wrong values are in tests/e2e/test_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Callable

import yaml
from safetensors.torch import load_file

from tests.drills.lab import Lab, Verdict, drills, problem, refused


def bomb(levels: int) -> str:
    """A list that names the list before it nine times, so many levels deep."""
    start = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    return start + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))


def nested_bomb(levels: int) -> str:
    """The same in a single value."""
    value = "&a0 [x,x,x,x,x,x,x,x,x]"
    for n in range(1, levels):
        value = f"&a{n} [{value},{','.join([f'*a{n - 1}'] * 8)}]"
    return value


def text(change: Callable[[str], str | bytes], *words: str) -> Callable[[Lab], Verdict]:
    """A config file as `change` makes it of a good one."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        made = change(yaml.safe_dump(lab.settings(), sort_keys=False))
        (folder / "config.yaml").write_bytes(made if isinstance(made, bytes) else made.encode())
        return refused(lab.run("train", folder / "config.yaml", "--run-dir", folder / "run", seconds=30), *words)

    return body


def value(key: str, written: str) -> Callable[[str], str]:
    """The config with the text of one setting at the top replaced."""

    def change(good: str) -> str:
        return f"{key}: {written}\n" + yaml.safe_dump(
            {name: value for name, value in yaml.safe_load(good).items() if name != key}, sort_keys=False
        )

    return change


def override(*overrides: str, words: tuple[str, ...] = ()) -> Callable[[Lab], Verdict]:
    """A run of six steps with other settings on the command line."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        words_ = words or (overrides[0].partition("=")[0],)
        return refused(lab.run("train", lab.config, *overrides, "--run-dir", run, seconds=30), *words_)

    return body


def finite(*overrides: str) -> Callable[[Lab], Verdict]:
    """A run whose weights are flung far away: told where numbers are not finite, or every exported weight is finite."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        ended = lab.run("train", lab.config, *overrides, "--run-dir", run, seconds=30)
        if ended.code:
            return refused(ended, "finite")
        bad = [
            file
            for file in run.glob("final/*/*.safetensors")
            for w in load_file(file).values()
            if not w.isfinite().all()
        ]
        return problem(ended) or (
            Verdict("silent", f"exit 0 with weights that are not finite: {bad[0]}")
            if bad
            else Verdict("survived", "all weights are finite")
        )

    return body


def harmless(change: Callable[[str], str]) -> Callable[[Lab], Verdict]:
    """A config that may be trained or refused, but neither hangs nor fills the memory."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        (folder / "config.yaml").write_text(change(yaml.safe_dump(lab.settings(steps=1), sort_keys=False)))
        ended = lab.run("train", folder / "config.yaml", "--run-dir", folder / "run", seconds=30)
        return (problem(ended) or Verdict("survived")) if ended.code == 0 else refused(ended)

    return body


FILES = {
    "a bomb of nine levels as steps": text(value("steps", nested_bomb(9))),
    "a bomb of nine levels as the agents": text(value("agents", nested_bomb(9))),
    "a bomb of thirty levels as steps": text(value("steps", nested_bomb(30))),
    "a bomb of nine levels as an unknown key": text(lambda good: good + f"nobody: {nested_bomb(9)}\n"),
    "100,000 nested brackets": text(value("steps", "[" * 100_000 + "]" * 100_000)),
    "3,000 nested mappings": text(lambda good: good + "deep: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n"),
    "a Python tag": text(value("steps", "!!python/object/apply:os.getpid []")),
    "a tag of its own": text(value("steps", "!mine 3")),
    "two documents": text(lambda good: good + "---\nsteps: 7\n"),
    "UTF-16": text(lambda good: good.encode("utf-16")),
    "a NUL": text(lambda good: good + "notes: ['\0']\n"),
    "10 MB of one word": text(value("steps", "x" * 10_000_000), "steps"),
    "10 MB of zeros": text(lambda good: b"\0" * 10_000_000),
    "steps: .inf": text(value("steps", ".inf"), "steps"),
    "steps: of 5,000 digits": text(value("steps", "9" * 5000), "steps"),
    "steps: of 299 digits": text(value("steps", "9" * 299), "steps"),
    "a name of a folder above": text(value("name", "../../x"), "name"),
    "a name of 10,000 letters": text(value("name", "x" * 10_000), "name"),
}
CONTRADICTIONS = {
    "lr=1e6": finite("optimizer.lr=1e6", "optimizer.max_grad_norm=1e9"),
    "lr=1e30": finite("optimizer.lr=1e30", "optimizer.max_grad_norm=1e9"),
    "lr=1e30, never evaluated": finite("optimizer.lr=1e30", "validation.sets=[]", "steps=1", "checkpoint.every=1"),
    "temperature=1e-300": override("sampling.temperature=1e-300", words=("",)),
    "prompts=10^12": override("batch.prompts=1000000000000", words=("prompts",)),
    "max_new_tokens=10^12": override("sampling.max_new_tokens=1000000000000", words=("max_new_tokens",)),
    "size=10^13 of synthetic data": override("data.train.size=10000000000000", words=("size",)),
}
OTHERS = {
    "a bomb in notes": harmless(lambda good: good + f"notes: [{nested_bomb(9)}]\n"),
    "a bomb of keys": harmless(lambda good: bomb(9) + good),
    "a merge key": harmless(lambda good: good + "<<: {steps: 7}\n"),
    "an environment variable": harmless(lambda good: good + "notes: ['${HOME}']\n"),
}
DRILLS = drills("configs", [*FILES.items(), *CONTRADICTIONS.items(), *OTHERS.items()])
