"""Folders that name code of their own: it is not imported by a command that does not name it, which says so."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.drills.configs import nested_bomb
from tests.drills.lab import Ended, Lab, Verdict, drills, problem, refused
from tests.runs import write_config

GSM8K = Path(__file__).resolve().parents[1] / "fixtures" / "benchmarks" / "gsm8k.jsonl"
CODE = """open({marker!r}, 'a').write('ran')
print('IMPORTED', flush=True)
from model_adapters.text import TextAdapter
class X(TextAdapter):
    notes = 'own'
def same(a, b): return False
def short(answers): return [1.0] * len(answers)
"""
EVAL = (f"gsm8k={GSM8K}", "--max-new-tokens", "4", "--quiet", "--out", "out")


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def evil(marker: Path, *files: Path) -> None:
    for file in files:
        write(file, CODE.format(marker=str(marker)))


def judged(ended: Ended, marker: Path, code: Path | None, passes: bool = False) -> Verdict:
    """`code` did not run, and where the command is not to pass it ends with its path, its hash and an option."""
    if marker.exists():
        return Verdict("lost", f"exit {ended.code}, the code was run")
    if wrong := problem(ended):
        return wrong
    if passes or code is None:
        fine = ended.code == 0 or (code is None and ended.code == 2)
        return Verdict("survived" if fine else "unclear", f"exit {ended.code}: {ended.sentence}")
    if ended.code != 2:
        return Verdict("silent", f"exit {ended.code}: {ended.sentence}")
    missing = [
        word
        for word in (str(code), hashlib.sha256(code.read_bytes()).hexdigest(), "give --")
        if word not in ended.sentence
    ]
    return Verdict("unclear" if missing else "survived", f"lacks {missing}: {ended.sentence}" if missing else "")


def weights(
    *argv: str,
    spec: str | None = "evil:X",
    code: str = "user/evil.py",
    cwd: str = ".",
    passes: bool = False,
    **more: Any,
) -> Callable[[Lab], Verdict]:
    """A command on weights in a run whose mmcorl.json names `code`; `more` are further files by place."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        run, marker = folder / "d", folder / "marker"
        shutil.copytree(lab.model("qwen2"), run / "weights")
        settings = {"name": "x", "agents": [{"name": "weights", "adapter": "evil:X"}]}
        write(run / "config.yaml", yaml.safe_dump(settings))
        (run / "metrics.jsonl").touch()
        if spec is not None:
            write(run / "weights" / "mmcorl.json", json.dumps({"adapter": spec}))
        evil(marker, run / code)
        if known := more.get("known"):  # a file that a command has named, and what is not of it
            known(lab, run, marker)
        words = [word.format(weights=run / "weights", other=lab.model("llama"), run=run) for word in argv]
        ended = lab.run(*words, cwd=folder / cwd)
        told = None if passes else more.get("told", code)
        return judged(ended, marker, None if told is None else run / told, passes)

    return body


def with_helper(lab: Lab, run: Path, marker: Path) -> None:
    """evil.py is known; the helper beside it is not the one that it was known with."""
    text = "import own_helper\n" + CODE.partition("\n")[2]
    for place, helper in ((run.parent, "A = 1\n"), (run / "user", CODE.format(marker=str(marker)))):
        write(place / "evil.py", text)
        write(place / "own_helper.py", helper)
    lab.run("check-adapter", lab.model("qwen2"), "--adapter", run.parent / "evil.py:X")


def with_bytecode(lab: Lab, run: Path, marker: Path) -> None:
    """evil.py is known, and what Python would take for its bytecode is of another."""
    write(run / "user" / "evil.py", CODE.partition("\n")[2] + f"# {run}\n")
    lab.run("check-adapter", lab.model("qwen2"), "--adapter", run / "user/evil.py:X")
    other = write(run / "other.py", CODE.format(marker=str(marker)))
    pyc = run / "user" / "__pycache__" / f"evil.{sys.implementation.cache_tag}.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), str(pyc), doraise=True, invalidation_mode=mode)


def with_shadows(lab: Lab, run: Path, marker: Path) -> None:
    """evil.py is known; beside it lie modules with the names of packages and of optional ones."""
    write(run / "user" / "evil.py", CODE.partition("\n")[2] + f"import json\n# {run}\n")
    lab.run("check-adapter", lab.model("qwen2"), "--adapter", run / "user/evil.py:X")
    evil(marker, *(run / "user" / f"{name}.py" for name in ("json", "torchaudio", "flash_attn", "sentencepiece")))


def with_link(lab: Lab, run: Path, marker: Path) -> None:
    """A package with a module that lies behind a link, where an empty __init__.py is known to everybody."""
    write(run.parent / "ownpkg" / "__init__.py", "")
    write(run.parent / "ownpkg" / "mod.py", CODE.partition("\n")[2])
    lab.run("check-adapter", lab.model("qwen2"), "--adapter", "ownpkg.mod:X", cwd=run.parent)
    write(run / "user" / "evil" / "__init__.py", "")
    (run / "x").mkdir()
    (run / "user" / "evil" / "part.py").rename(run / "x" / "attack.py")
    (run / "user" / "evil" / "sub").symlink_to("../../x")


def with_lazy(lab: Lab, run: Path, marker: Path) -> None:
    """evil.py is known, and what it imports lies behind a link, where no look from outside goes."""
    text = "import own_lazy.sub.attack\n" + CODE.partition("\n")[2]
    for place, code in ((run.parent, f"A = 1  # {run}\n"), (run / "user", CODE.format(marker=str(marker)))):
        write(place / "evil.py", text)
        write(place / "own_lazy" / "__init__.py", "")
        (place / "own_lazy" / "sub").symlink_to("../behind")
        write(place / "behind" / "attack.py", code)
    assert lab.run("check-adapter", lab.model("qwen2"), "--adapter", run.parent / "evil.py:X").code == 0


def with_special(lab: Lab, run: Path, marker: Path) -> None:
    """A package among whose modules are a pipe, a device, a folder, a link to nothing and a nest of operators."""
    package = run / "user" / "evil"
    write(package / "__init__.py", CODE.partition("\n")[2] + f"# {run}\n")
    write(package / "deep.py", f"x = {'-' * 100_000}1\n")
    os.mkfifo(package / "pipe.py")
    (package / "zero.py").symlink_to("/dev/zero")
    (package / "gone.py").symlink_to("nowhere")
    (package / "a.py").mkdir()
    lab.run("check-adapter", "/nowhere", "--trust", package)


def reread(lab: Lab) -> Verdict:
    """evil.py is known, and another takes its place when it has been read once, twice, ..., five times."""
    from mmcorl.system import user_code

    for reads in range(1, 6):
        run = lab.folder() / "d"
        marker, file = run / "marker", write(run / "user" / "evil.py", CODE.partition("\n")[2] + f"# {run}\n")
        shutil.copytree(lab.model("qwen2"), run / "weights")
        write(run / "weights" / "mmcorl.json", json.dumps({"adapter": "evil:X"}))
        lab.run("check-adapter", lab.model("qwen2"), "--adapter", f"{file}:X")
        other = write(run / "other.py", CODE.format(marker=str(marker)))

        def swap(file: Path = file, other: Path = other, reads: int = reads) -> None:
            read, count = user_code._read, iter(range(reads))

            def counted(path: Path) -> bytes:
                data = read(path)
                if path == file and next(count, None) == reads - 1:
                    os.replace(other, file)
                return data

            user_code._read = counted

        write(run / "config.yaml", "name: x\n")
        (run / "metrics.jsonl").touch()
        verdict = judged(lab.run("check-adapter", run / "weights", before=swap), marker, None)
        if verdict.outcome != "survived":
            return Verdict(verdict.outcome, f"after {reads} reads: {verdict.word}")
    return verdict


def evaluation(
    *argv: str, code: str | None = "evil.py", benchmark: str | None = None, relation: str | None = None, **more: Any
) -> Callable[[Lab], Verdict]:
    """A command on an evaluation that names code, in the folder where that lies."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        marker, out = folder / "marker", folder / "out"
        if not (made := lab.root / "evaluation").exists():
            lab.run("eval", lab.model("qwen2"), *EVAL[:-1], made, seconds=300)
        shutil.copytree(made, out)
        if benchmark is not None:
            manifest = json.loads((out / "manifest.json").read_text())
            manifest["benchmarks"]["gsm8k"]["import"] = benchmark
            (out / "manifest.json").write_text(json.dumps(manifest))
        if relation is not None:
            rows = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
            rows = [row | {"relation": relation, "threshold": None, "metric": None, "accepted": []} for row in rows]
            (out / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, text in more.items():
            file = out / f"{name}.json{'' if name == 'manifest' else 'l'}"
            rows = [json.loads(line) | text for line in ([file.read_text()] if name == "manifest" else file.open())]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        shutil.copytree(out, folder / "more")
        evil(marker, folder / "evil.py")
        write(folder / "mine.py", f"from shutil import copyfile\ndef same(a, b): return a == b\n# {folder}\n")
        lab.run("check-adapter", "/nowhere", "--trust", folder / "mine.py")
        words = [word.format(model=lab.model("qwen2")) for word in argv]
        return judged(lab.run(*words, cwd=folder), marker, folder / code if code else None)

    return body


def run_folder(*argv: str, refused: bool = False, **settings: Any) -> Callable[[Lab], Verdict]:
    """A command on somebody's finished run whose config names code that lies in RUN/user and in the working folder."""

    def body(lab: Lab) -> Verdict:
        run = lab.finished()
        marker, config = run.parent / "marker", yaml.safe_load((run / "config.yaml").read_text())
        config |= settings or {"reward": config["reward"] | {"kind": "evil:short"}}
        os.chmod(run / "config.yaml", 0o644)
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        evil(marker, run / "user" / "evil.py", run.parent / "evil.py")
        ended = lab.run(*(word.format(run=run) for word in argv), cwd=run.parent)
        return judged(ended, marker, run / "user" / "evil.py" if refused else None, not refused)

    return body


def shadow(name: str, *argv: str, module: bool = False) -> Callable[[Lab], Verdict]:
    """A process of its own in a folder with modules of the names of packages."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        marker = folder / "marker"
        write(folder / "rows.jsonl", json.dumps({"id": 1, "gold": r"\ln x", "response": r"\boxed{\ln(x)}"}) + "\n")
        evil(marker, *(folder / f"{part}.py" for part in name.split()))
        start = (
            ["-m", "mmcorl"] if module else ["-P", "-c", "from mmcorl.cli.main import main; raise SystemExit(main())"]
        )
        ended = lab.wait(lab.fork(lambda: subprocess.call([sys.executable, *start, *argv]), cwd=folder), 120)
        return judged(ended, marker, None)

    return body


def named(*argv: str, own: str = "reward=evil.py:short") -> Callable[[Lab], Verdict]:
    """A config on the command line names its code, which runs after it was told; nothing else beside it does."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        config = write_config(folder, lab.settings(steps=1))
        evil(folder / "ran", folder / "evil.py")
        evil(folder / "marker", *(folder / f"{part}.py" for part in ("flash_attn", "sentencepiece", "wandb")))
        words = [word.format(config=config, out=folder / "out") for word in argv]
        ended = lab.run(*words, own, seconds=120)
        sha = hashlib.sha256((folder / "evil.py").read_bytes()).hexdigest()
        told, _, after = ended.output.partition("IMPORTED")
        if not after or str(folder / "evil.py") not in told or sha not in told:
            return Verdict("silent", f"not told before it is imported: {ended.sentence}")
        return judged(ended, folder / "marker", None, passes=ended.code == 0)

    return body


def bombed(lab: Lab) -> Verdict:
    """Weights in a run whose config.yaml stands for billions of values."""
    run = lab.folder() / "d"
    shutil.copytree(lab.model("qwen2"), run / "weights")
    write(run / "config.yaml", f"name: x\nprompt: {nested_bomb(9)}\n")
    (run / "metrics.jsonl").touch()
    ended = lab.run("eval", run / "weights", *EVAL, cwd=run.parent)
    return refused(ended, "aliases") if len(ended.output) < 2000 else Verdict("lost", "the refusal prints the value")


TRUST = {
    "eval of weights beside a bomb": bombed,
    "eval of weights in a run": weights("eval", "{weights}", *EVAL),
    "eval, as config.yaml says": weights("eval", "{weights}", *EVAL, spec=None),
    "eval, a file by its path": weights("eval", "{weights}", *EVAL, spec="d/user/evil.py:X"),
    "eval, a package": weights("eval", "{weights}", *EVAL, code="user/evil/__init__.py"),
    "eval, a folder without __init__.py": weights(
        "eval", "{weights}", *EVAL, spec="evil.part:X", code="user/evil/part.py"
    ),
    "eval --like": weights("eval", "{other}", "--like", "{weights}", *EVAL),
    "eval . with the file beside": weights("eval", ".", *EVAL, code="weights/evil.py", cwd="d/weights"),
    "check-adapter": weights("check-adapter", "{weights}"),
    "check-adapter . with the file beside": weights("check-adapter", ".", code="weights/evil.py", cwd="d/weights"),
    "diversity": weights("diversity", "{weights}", "{other}", "--benchmark", f"gsm8k={GSM8K}", "--out", "out"),
    "pair": weights("pair", "{weights}", "{other}", "--benchmark", f"gsm8k={GSM8K}", "--out", "out"),
    "a known file with another helper": weights(
        "eval", "{weights}", *EVAL, known=with_helper, told="user/own_helper.py"
    ),
    "a known file with other bytecode": weights("eval", "{weights}", *EVAL, known=with_bytecode, passes=True),
    "a known file among shadows of packages": weights("eval", "{weights}", *EVAL, known=with_shadows, passes=True),
    "a package with a link": weights(
        "eval",
        "{weights}",
        *EVAL,
        spec="evil.sub.attack:X",
        code="user/evil/part.py",
        known=with_link,
        told="user/evil/sub/attack.py",
    ),
    "a known file with code behind a link": weights(
        "eval", "{weights}", *EVAL, known=with_lazy, told="user/own_lazy/sub/attack.py"
    ),
    "a known package with special files": weights("check-adapter", "{weights}", known=with_special, passes=True),
    "a known file that changes": reread,
    "eval of a module of Python's tests": weights("eval", "{weights}", *EVAL, spec="test.autotest:X", told=None),
    "eval of an installed package": weights("check-adapter", "{weights}", spec="pip.__pip-runner__:X", told=None),
    "grade by another's function in a known file": evaluation("grade", "out", relation="mine:copyfile", code="mine.py"),
    "grade by a trusted function": evaluation("grade", "out", code=None, relation="mine:same"),
    "grade of a list for a relation": evaluation("grade", "out", code=None, items={"relation": ["a:b"]}),
    "grade of an unknown key": evaluation("grade", "out", code=None, responses={"other": 1}),
    "table of a text for benchmarks": evaluation("table", "out", "more", code=None, manifest={"benchmarks": "evil:X"}),
    "table of a benchmark": evaluation("table", "out", "more", benchmark="evil:TINY"),
    "grade of a benchmark": evaluation("grade", "out", benchmark="evil:TINY"),
    "grade of a benchmark's file": evaluation("grade", "out", benchmark="evil.py:TINY"),
    "report of a benchmark": evaluation("report", "out", benchmark="evil:TINY"),
    "compare of a benchmark": evaluation("compare", "out", "more", benchmark="evil:TINY"),
    "ensemble of a benchmark": evaluation("ensemble", "out", "more", "--out", "pool", benchmark="evil:TINY"),
    "eval resumed on a benchmark": evaluation("eval", "{model}", *EVAL, code=None, benchmark="evil:TINY"),
    "table of a relation": evaluation("table", "out", "more", code=None, relation="evil:same"),
    "grade of a relation": evaluation("grade", "out", relation="evil:same"),
    "grade of a relation's file": evaluation("grade", "out", relation="evil.py:same"),
    "grade by os:execl": evaluation("grade", "out", code=None, relation="os:execl"),
    "table of Python's own module": evaluation("table", "out", "more", code=None, benchmark="antigravity:TINY"),
    "report of a run": run_folder("report", "{run}"),
    "report of a run with a relation": run_folder("report", "{run}", answers={"relation": "evil:same"}),
    "report of runs with an engine": run_folder("report", "{run}", "{run}", engine={"kind": "evil:same"}),
    "report of runs with an objective": run_folder("report", "{run}", "{run}", objective={"kind": "evil:short"}),
    "card of a run": run_folder("card", "{run}"),
    "push --dry of a run": run_folder("push", "{run}", "--to", "org/name", "--dry"),
    "dynamics of a run": run_folder("dynamics", "--run", "{run}", refused=True, answers={"relation": "evil:same"}),
    "mmcorl where packages' names lie": shadow("json torch yaml psutil sympy multiprocessing", "grade", "rows.jsonl"),
    "python -m mmcorl where packages' names lie": shadow("torch yaml psutil sympy", "grade", "rows.jsonl", module=True),
    "train": named("train", "{config}", "--run-dir", "{out}"),
    "train --dry": named("train", "{config}", "--dry"),
    "doctor": named("doctor", "{config}"),
    "sweep": named("sweep", "{config}", "--out", "{out}"),
    "doctor of a relation": named("doctor", "{config}", own="answers.relation=evil:same"),
    "train of an adapter": named("train", "{config}", "--run-dir", "{out}", own="agents.qwen.adapter=evil.py:X"),
}
DRILLS = drills("trust", TRUST.items())
