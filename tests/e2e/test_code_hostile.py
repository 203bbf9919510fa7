"""Hostile programs under every set of layers this machine has: contained, nothing harmed, nothing left running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mmcorl.sandbox.process import Limits, Sandbox, detect, open_sandbox
from mmcorl.sandbox.run_tests import (
    CallCase,
    Program,
    StdinCase,
    observe_calls,
    observe_programs,
    run_calls,
    run_programs,
    run_python_tests,
)

LIMITS = Limits(memory_mb=1024, output_mb=2, disk_mb=16, processes=32)
SECONDS = 1.0
SHORT = 0.2  # for programs that are meant to run into the limit
# The layers of several machines: this one, a container that forbids namespaces, a kernel without Landlock.
SETS = {"all": None, "no namespaces": ("landlock", "seccomp"), "no landlock, no seccomp": ("namespaces", "uid")}


def tiered(table: Iterable[str], *quick: str) -> pytest.MarkDecorator:
    """Run a test for each name of a table; all but a few belong to the slow tier."""
    return pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in table]
    )


@pytest.fixture(params=["all", *(pytest.param(name, marks=pytest.mark.slow) for name in list(SETS)[1:])])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox with one set of layers; sets this machine lacks are skipped."""
    here = open_sandbox(run_code=True).layers
    wanted = SETS[request.param]
    if wanted is None:
        return Sandbox(here, LIMITS)
    if "uid" in wanted and os.geteuid() != 0:
        wanted = tuple(layer for layer in wanted if layer != "uid")
    if not set(wanted) <= set(here):
        pytest.skip(f"layers {wanted} are not available here")
    return Sandbox(wanted, LIMITS)


@pytest.fixture
def full() -> Sandbox:
    return Sandbox(detect(), LIMITS)


@pytest.fixture(autouse=True)
def unharmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Around each test: a file that must stay, a secret that must not be read, and no process or folder left."""
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o011)
    monkeypatch.setattr(tempfile, "tempdir", str(boxes))
    monkeypatch.setenv("MMCORL_TEST_SECRET", "sesame")
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "canary").write_text("alive sesame")
    (outside / "canary").chmod(0o666)
    started = time.monotonic()
    yield outside
    assert time.monotonic() - started < 8  # the longest sleep in here is 9
    assert (outside / "canary").read_text() == "alive sesame"
    assert sorted(path.name for path in outside.iterdir()) == ["canary"]
    assert not list(boxes.iterdir()), "a folder was left behind"
    deadline = time.monotonic() + 2
    while (left := processes_with(str(boxes))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, "processes were left behind"


def processes_with(text: str) -> list[int]:
    """Processes of any namespace with a text in their command line; a forked child keeps its parent's."""
    processes = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if text.encode() in file.read():
                        processes.append(int(name))
            except OSError:
                continue  # it ended meanwhile
    return processes


def outcomes(sandbox: Sandbox, source: str, test: str = "assert f() == 1", seconds: float = SECONDS) -> list[str]:
    result = run_python_tests(sandbox, Program(source), ["f"], "", [test], seconds)
    assert not result.harness_error, result.tests
    return [test.outcome for test in result.tests]


LOOPS = {
    "alarm cancelled": "import signal\ndef f():\n signal.alarm(0)\n while True: pass",
    "signals ignored": (
        "import signal\ndef f():\n for n in signal.valid_signals():\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\n while True: pass"
    ),
    "another session": (
        "import os\ndef f():\n for g in (os.setsid, os.setpgrp):\n  try: g()\n  except OSError: pass\n while True: pass"
    ),
    "one long call": "def f(): return 9**9**9",
    "asleep": "import time\ndef f(): time.sleep(3600)",
    "endless output": "def f():\n while True: print('x' * 100000)",
    "loops at import": "while True: pass\ndef f(): return 1",
}


@pytest.mark.usefixtures("unburdened")
@tiered(LOOPS, "signals ignored", "asleep")
def test_a_program_that_never_ends_is_ended(name, full):
    assert outcomes(full, LOOPS[name], seconds=SHORT) in (["timeout"], ["killed"])
    assert not run_calls(full, Program(LOOPS[name]), "f", [CallCase((), 3)], SHORT).passed


BOMBS = {
    "fork loop": "import os\ndef f():\n while True: os.fork()",
    "forks that go on": "import os\ndef f():\n while True:\n  try: os.fork()\n  except OSError: pass",
    "10 GiB": "def f(): return len(bytearray(10 << 30))",
    "memory by pieces": "def f():\n kept = []\n while True: kept.append(bytearray(1 << 24))",
    "memory without names": (
        "import os\ndef f():\n kept = []\n while True:\n  n = os.memfd_create('x')\n  kept.append(n)\n"
        "  for _ in range(4096): os.write(n, bytes(1 << 20))"
    ),
    "threads": "import threading, time\ndef f():\n while True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "stack": "import sys\ndef f():\n sys.setrecursionlimit(10**9)\n g = lambda x: [g(x)].sort(key=g)\n return g(1)",
    "large answer": "def f(): return 'x' * (64 << 20)",
    "deep answer": "def f():\n x = []\n for _ in range(100000): x = [x]\n return x",
    "answer that holds itself": "def f():\n x = []\n x.append(x)\n return x",
    "files": "def f():\n for n in range(10**6): open(f'{n}', 'wb').write(bytes(1 << 20))",
    "folders in folders": "import os\ndef f():\n for n in range(1200): os.mkdir('d'); os.chdir('d')\n raise OSError",
    "one large file": "def f():\n with open('x', 'wb') as h:\n  while True: h.write(bytes(1 << 20))",
}


@pytest.mark.usefixtures("unburdened")
@tiered(BOMBS, "fork loop", "10 GiB", "threads", "large answer")
def test_a_program_that_wants_everything_gets_little(name, full):
    assert outcomes(full, BOMBS[name], seconds=0.4)[0] in ("error", "killed", "timeout")
    result = run_calls(full, Program(BOMBS[name]), "f", [CallCase((), 3)], 0.4)
    assert (result.passed, result.harness_error) == (False, False)


@tiered(["forks that go on", "10 GiB", "files", "folders in folders", "another session"], "files")
def test_each_set_of_layers_holds_what_multiplies_or_leaves(name, sandbox):
    assert outcomes(sandbox, (BOMBS | LOOPS)[name], seconds=0.4)[0] in ("error", "killed", "timeout")


SEND = " while line: line = line[os.write(4, line):]\n os._exit(0)"


def answers(line: str, then: str = SEND) -> str:
    """A program that writes a reply of its own making where the worker would have written one."""
    return f"import os, time\ndef f():\n line = b'{{\"value\":' + {line} + b'}}\\n'\n{then}"


BURDENS = {
    "a set whose hashes collide": answers(
        "b'{\"set\":[' + b','.join(b'%d' % (n * ((1 << 61) - 1)) for n in range(1, 20001)) + b']}'"
    ),
    "a dict whose hashes collide": answers(
        "b'{\"dict\":[' + b','.join(b'[%d,1]' % (n * ((1 << 61) - 1)) for n in range(1, 20001)) + b']}'"
    ),
    "lists in a list": answers("b'[' + b'[],' * (600 << 10) + b'0]'"),
    "nested to the limit of JSON": answers("b'[' * 900 + b']' * 900"),
    "nested without an end": answers("b'[' * (1 << 20)"),
    "a huge integer": answers("b'{\"int\":\"0x' + b'f' * (2000 << 10) + b'\"}'"),
    "more than the limit": answers("b'\"' + b'x' * (90 << 20) + b'\"'"),
    "no end of a line": "import os\ndef f():\n while True: os.write(4, b'x' * 65536)",
    "millions of lines": "import os\ndef f():\n while True: os.write(4, b'{}\\n' * 20000)",
    "too late by the last byte": answers(
        "b'\"' + b'x' * (1 << 20) + b'\"'",
        " start = time.monotonic()\n end = line[-1:]\n line = line[:-1]\n"
        " while line: line = line[os.write(4, line):]\n"
        " time.sleep(max(0, start + 2.8 * SHORT - time.monotonic()))\n os.write(4, end)\n time.sleep(9)",
    ),
    "while it is loaded": "import os\nline = b'[' + b'[],' * (4 << 20) + b'0]\\n'\nif True:\n" + SEND,
    "an error with a long name": "import os\ndef f():\n line = b'{\"error\":[\"' + b'x' * (1 << 22) + b'\",1]}\\n'\n"
    + SEND,
}
PRINTED = {
    "line ends": "print('a' + '\\n' * ((2 << 20) - 8) + 'a')",
    "control characters": "print('\\x01' * ((2 << 20) - 8))",
    "numbers on one line": "print('1 ' * ((1 << 20) - 8))",
    "one number": "print('1' * ((2 << 20) - 8))",
    "a power of ten": "print('1e999999999999999999')",
    "more than the limit": "print('x' * (8 << 20))",
    "a note of its own": (
        "import os\nfor n in range(3, 9):\n try: os.write(n, b'[' * 4096)\n except OSError: pass\nos._exit(1)"
    ),
}


@pytest.fixture
def unburdened() -> Iterator[None]:
    """Around a test: it costs this process next to no time and no memory, whatever the programs wrote."""
    detect()
    tracemalloc.start()
    before = time.process_time()
    yield
    used, (_, peak) = time.process_time() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 0.5
    assert peak < 2 << 20


@pytest.mark.usefixtures("unburdened")
@tiered(BURDENS, "a set whose hashes collide", "lists in a list", "too late by the last byte", "while it is loaded")
def test_what_a_program_wrote_costs_the_grader_nothing_and_ends_nothing(name, full):
    program = Program(BURDENS[name].replace("SHORT", str(SHORT)))
    assert outcomes(full, program.source, "assert f() == 3", SHORT) != ["passed"]
    result = run_calls(full, program, "f", [CallCase((), 3)], SHORT)
    assert (result.passed, result.harness_error) == (False, False)
    assert len(observe_calls(full, program, ["f()"], SHORT).outputs) == 1


@pytest.mark.usefixtures("unburdened")
@tiered(PRINTED, "numbers on one line", "line ends")
def test_what_a_program_printed_costs_the_grader_nothing(name, full):
    result = run_programs(full, Program(PRINTED[name]), [StdinCase("", "1")], SHORT)
    assert (result.passed, result.harness_error) == (False, False)
    (output,) = observe_programs(full, Program(PRINTED[name]), [""], SHORT).outputs
    assert len(output) <= 4000


WORDS = [
    "passed",
    '{"value": null}',
    '{"outcome": "passed", "detail": "", "nonce": ""}',
    '{"done": ""}',
    '{"status": 0, "capped": false, "note": null, "out": "1"}',
]
EQUAL = " def __eq__(self, other): return True\n def __hash__(self): return 1\n"
LIARS = {
    "stops the loop over its answers": "def f(x=0): raise StopIteration",
    "exit 0": "import os\ndef f(): os._exit(0)",
    "exit 0 at import": "import os\nos._exit(0)",
    "sys.exit at import": "import sys\nsys.exit(0)\ndef f(): return 1",
    "sys.exit in a call": "import sys\ndef f(): sys.exit(0)",
    "always equal": "class T:\n def __eq__(self, o): return True\n __ne__ = __lt__ = __eq__\ndef f(): return T()",
    "an int that is always equal": f"class T(int):\n{EQUAL}def f(): return T(7)",
    "a text that is always equal": f"class T(str):\n{EQUAL} def __str__(self): return '1'\ndef f(): return T('7')",
    "an int that says it is another": (
        "class T(int):\n def __index__(self): return 1\n __int__ = __index__\ndef f(): return T(7)"
    ),
    "a list that lies": "class T(list):\n def __iter__(self): return iter([1])\ndef f(): return T([2])",
    "words of a verdict": (
        f"import os\ndef f():\n for n in range(64):\n  for text in {WORDS!r}:\n"
        "   try: os.write(n, text.encode() + b'\\n')\n   except OSError: pass\n os._exit(0)"
    ),
    "an encoder that lies": "import json\ndef f():\n json.dumps = lambda *a, **k: '{\"done\": true}'\n return 2",
    "no equality left": (
        "import builtins, operator\ndef f():\n builtins.len = builtins.all = builtins.isinstance = lambda *a: True\n"
        " operator.eq = lambda *a: True\n return 2"
    ),
    "assertions switched off": "import builtins\ndef f():\n builtins.__dict__['__debug__'] = False\n return 2",
    "an exception that lies": (
        "class P(Exception):\n def __str__(self): raise SystemExit(0)\n __repr__ = __str__\ndef f(): raise P()"
    ),
}


TESTS = {
    "a list that lies": "assert f() in ([1], 1, '1')",
    "a text that is always equal": "assert f() == '1'",
    "stops the loop over its answers": "assert all(map(f, [1, 2]))",
}


@tiered(LIARS, "exit 0", "always equal", "words of a verdict", "no equality left", "stops the loop over its answers")
def test_nothing_a_program_says_of_itself_makes_it_pass(name, full):
    assert outcomes(full, LIARS[name], TESTS.get(name, "assert f() == 1")) != ["passed"]
    calls = run_calls(full, Program(LIARS[name]), "f", [CallCase((), 1)], SECONDS)
    assert (calls.passed, calls.harness_error) == (False, False)


KILLERS = {
    "parent": "os.kill(os.getppid(), 9)",
    "group": "os.killpg(0, 9)",
    "everyone": "os.kill(-1, 9)",
    "number 1": "os.kill(1, 9)",
    "the grader": "os.kill({grader}, 9)",
    "by thread": "ctypes.CDLL(None).syscall(200, {grader}, 9)",
}


@tiered(KILLERS, "everyone", "the grader")
def test_signals_reach_nobody_else(name, sandbox):
    line = KILLERS[name].format(grader=os.getpid())
    # It may end itself with its group; what counts is that this process goes on, which the assertions below show.
    result = outcomes(sandbox, f"import os, ctypes\ndef f():\n try: {line}\n except OSError: pass\n return 1")
    assert result in (["passed"], ["killed"])


ESCAPES = {
    "reload": "import importlib, os\nimportlib.reload(os)\nos.system('rm -f {canary}; touch {outside}/x')",
    "posix": "import posix\nposix.system('rm -f {canary}')",
    "libc": "import ctypes\nctypes.CDLL(None).system(b'rm -f {canary}')",
    "spawn": "import os\nos.posix_spawn('/bin/rm', ['rm', '-f', '{canary}'], {{}})",
    "subprocess": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'rm -f {canary}'])",
    "write": "open('{canary}', 'w').write('dead')",
    "append": "open('{outside}/x', 'a').write('dead')",
    "remove": "import os\nos.remove('{canary}')",
    "rename": "import os\nopen('mine', 'w').close()\nos.replace('mine', '{canary}')",
    "symlink": "import os\nos.symlink('{outside}', 'way')\nopen('way/x', 'w').write('dead')",
    "symlink to the file": "import os\nos.symlink('{canary}', 'way')\nopen('way', 'w').write('dead')",
    "hard link": "import os\nos.link('{canary}', 'way')\nopen('way', 'w').write('dead')",
    "truncate": "import os\nos.truncate('{canary}', 0)",
    "mount": "import ctypes\nassert ctypes.CDLL(None).mount(b'{outside}', b'.', None, 4096, None) == 0\nopen('x', 'w')",
    "chroot": "import os\nos.chroot('.')",
    "everything": "import shutil\nshutil.rmtree('{outside}')",
}


@tiered(ESCAPES, "libc", "write", "symlink", "everything")
def test_files_elsewhere_stay_as_they_are(name, sandbox, unharmed):
    body = ESCAPES[name].format(canary=unharmed / "canary", outside=unharmed).replace("\n", "\n  ")
    source = f"def f():\n try:\n  {body}\n except BaseException as e: return 1\n return 1"
    assert outcomes(sandbox, source) == ["passed"]


def test_environment_and_files_cannot_be_read(sandbox, unharmed):
    # Everything a secret could be read from, tried in turn; what was read comes back as text.
    places = ["/proc/self/environ", f"/proc/{os.getpid()}/environ", "/proc/1/environ", str(unharmed / "canary")]
    places += [str(Path.home() / ".bashrc"), "/etc/passwd", "/etc/shadow", "/etc/hostname"]
    source = f"""
import os
def f():
    found = [name for name in os.environ if name not in ("HOME", "TMPDIR", "LC_CTYPE")]
    found += [value for value in os.environ.values() if "sesame" in value]
    for place in {places!r}:
        try: found.append(open(place, "rb").read().decode("latin-1")[:50])
        except OSError: pass
    for place in ("/home", "/root", {str(unharmed)!r}, "/proc/{os.getpid()}/root"):
        try: found += os.listdir(place)
        except OSError: pass
    return found
"""
    result = run_calls(sandbox, Program(source), "f", [CallCase((), [])], SECONDS)
    assert result.passed or "landlock" not in sandbox.layers, result.tests
    # Without Landlock the new root still has folders on the way to the library, but nothing else in them.
    assert not [word for word in ("sesame", "root:") if word in repr(result)]


OWN_FOLDER = [
    "assert [os.listdir(), os.path.expanduser('~') == os.getcwd(), os.environ.get('PATH')] == [[], True, None]",
    "open('a', 'w').write('hello')\n assert open('a').read() == 'hello'",
    # A locked folder is removed all the same.
    "os.makedirs('b/c')\n open('b/c/d', 'w').close()\n os.chmod('b', 0)\n os.chmod('.', 0)",
]


def test_the_programs_folder_is_empty_usable_and_removed(sandbox):
    for line in OWN_FOLDER:
        assert outcomes(sandbox, f"import os\ndef f():\n {line}\n return 1") == ["passed"], line


def test_no_network_not_even_to_this_machine(sandbox):
    places = [("AF_INET", "SOCK_STREAM"), ("AF_INET", "SOCK_DGRAM"), ("AF_UNIX", "SOCK_STREAM")]
    for family, kind in places:
        with socket.socket(getattr(socket, family), getattr(socket, kind)) as server:
            server.bind(("127.0.0.1", 0) if family == "AF_INET" else f"\0mmcorl-test-{os.getpid()}")
            if kind == "SOCK_STREAM":
                server.listen()
            source = f"""
import socket
def f():
    try:
        s = socket.socket(socket.{family}, socket.{kind})
        s.connect({server.getsockname()!r})
        s.send(b"sesame")
    except OSError:
        return 1
    return 0
"""
            assert outcomes(sandbox, source) == ["passed"], (family, kind)
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept() if kind == "SOCK_STREAM" else server.recv(10)


def test_a_daemon_does_not_outlive_the_program(sandbox):
    leave = "\n  if os.fork() == 0:\n   os.setsid()\n   if os.fork() == 0: time.sleep(60)\n   os._exit(0)"
    source = f"import os, time\ndef f():\n try:{leave}\n except OSError: pass\n return 1"
    assert outcomes(sandbox, source) == ["passed"]
    assert run_programs(sandbox, Program(source + "\nprint(f())"), [StdinCase("", "1")] * 3, SECONDS).passed


def test_a_grader_that_is_killed_takes_the_programs_with_it(sandbox, unharmed):
    boxes = str(unharmed.parent / "boxes")
    script = f"""
import sys, tempfile
sys.path[:0] = {sys.path!r}
from mmcorl.sandbox.process import Sandbox
from mmcorl.sandbox.run_tests import Program, run_python_tests
tempfile.tempdir = {boxes!r}
print("ready", flush=True)
run_python_tests(Sandbox({sandbox.layers!r}), Program("def f():\\n while True: pass"), ["f"], "", ["f()"], 60)
"""
    grader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert grader.stdout is not None
    assert grader.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 4
    # The script's own command line names the folder as well: two processes of the solution and more of the tests.
    while len(processes_with(boxes)) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    with grader:
        grader.kill()
    for path in Path(boxes).iterdir():
        path.rmdir()  # an empty folder each is all that stays


def test_what_is_expected_is_nowhere_in_the_programs_process(full):
    # The tests are text with a rare number in it: the solution looks through every object it can reach.
    source = """
import gc, sys
def f():
    seen, todo = set(), [*gc.get_objects(), *sys.modules.values()]
    for _ in range(20000):
        if not todo: break
        thing = todo.pop()
        if id(thing) in seen: continue
        seen.add(id(thing))
        if isinstance(thing, (str, bytes)) and ("24681357" in str(thing)) and len(thing) < 200: return 24681357
        if isinstance(thing, (dict, list, tuple)): todo += gc.get_referents(thing)
    return 0
"""
    assert outcomes(full, source, "assert f() == 24681357") == ["wrong"]


STDIN = {
    "endless output": ("while True: print('x' * 1000)", {"killed", "timeout"}),
    "exit 0 before the answer": ("import os\nos._exit(0)", {"wrong"}),
    "exit 3": ("import os\nprint(1, flush=True)\nos._exit(3)", {"error"}),
    "raises after the answer": ("print(1)\nraise ValueError('x')", {"error"}),
    "asleep": ("import time\ntime.sleep(60)", {"timeout"}),
    "traces its parent": (
        "import ctypes, os\nprint(int(ctypes.CDLL(None).ptrace(16, os.getppid(), None, None) == 0))",
        {"wrong"},
    ),
    "busy": ("while True: pass", {"timeout"}),
    "closes its output and stays": ("import os, time\nos.close(1)\ntime.sleep(60)", {"timeout"}),
    "kills itself": ("import ctypes\nctypes.string_at(0)", {"killed"}),
    "writes to every file descriptor": (
        'import os\nfor n in range(3, 64):\n try: os.write(n, b\'{"status": 0, "capped": false, "out": "1"}\\n\')\n'
        " except OSError: pass",
        {"wrong", "error"},
    ),
}


@tiered(STDIN, "endless output", "busy", "writes to every file descriptor")
def test_programs_that_read_stdin_are_held_as_well(name, full):
    source, allowed = STDIN[name]
    result = run_programs(full, Program(source), [StdinCase("", "1"), StdinCase("", "1")], SHORT)
    assert result.tests[0].outcome in allowed, result.tests
    assert not result.passed
