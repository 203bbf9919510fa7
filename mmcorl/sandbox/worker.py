"""The confined process: drops its rights, runs model code in a child, and answers requests.

Run as `python -I -S -X utf8 worker.py CONFIG`; one JSON object per line on stdin and stdout. It holds no expected
values, no nonce and no environment. Three jobs:

serve   load a solution, then answer calls of its functions (one child for all calls).
stdin   run a program once per input, each time in a fresh child, and report what it printed.
check   run a data set's own test code, whose calls are forwarded to the process that holds the solution.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import isolation
import values

del sys.path[0]

_NAME = "solution"
_MAX_NOTE = 300


class JsonPipe:
    """JSON lines over two file descriptors."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self._inbox, self._outbox = inbox, outbox
        self._rest = b""

    def send(self, data: Any) -> None:
        """Write one line."""
        left = memoryview(json.dumps(data).encode("ascii") + b"\n")
        while left:
            left = left[os.write(self._outbox, left) :]

    def receive(self) -> Any | None:
        """Return the next line, or None when the other side is gone."""
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            chunk = os.read(self._inbox, 1 << 20)
            if not chunk:
                return None
            chunks.append(chunk)
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        return values.loads(line)

    def close(self) -> None:
        """Close both ends here."""
        os.close(self._inbox)
        os.close(self._outbox)


def main() -> None:
    """Confine this process and do the job it receives."""
    config = json.loads(sys.argv[1])
    os.umask(0o022)
    line = JsonPipe(os.dup(0), os.dup(1))
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    try:
        box = _confine_self(config, line)
    except OSError as problem:
        line.send({"failed": str(problem)})
        return
    os.chdir(box)
    os.environ.clear()
    os.environ.update(HOME=box, TMPDIR=box)
    line.send({"ready": True})
    job = line.receive()
    if job is None:
        return
    # The child has fewer rights still; everything after the second message may come from model code.
    child = os.fork()
    if child == 0:
        try:
            _confine_child(config)
        except (OSError, ValueError) as problem:
            line.send({"failed": str(problem)})
            os._exit(1)
        line.send({"confined": True})
        if job["kind"] != "stdin":
            (_serve if job["kind"] == "serve" else _check)(job, line)
        os._exit(0)
    if job["kind"] != "stdin":
        line.close()
        _exit_like(child)
    _, status = os.waitpid(child, 0)
    if status == 0:
        _run_programs(job, config, line)


def _confine_self(config: dict[str, Any], line: JsonPipe) -> str:
    layers, box, uid = config["layers"], config["box"], config["uid"]
    isolation.die_with_parent()
    # If memory runs out all the same, the kernel should kill this process rather than the grader.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    gid = os.getegid() if uid is None else uid
    if "namespaces" in layers:
        isolation.enter_namespaces()
        first = os.fork()
        if first:
            # Once more: entering a user namespace made the kernel forget it.
            isolation.die_with_parent()
            line.close()
            _exit_like(first)
        box = isolation.make_root(box, os.geteuid() if uid is None else uid, gid, config["limits"]["disk_mb"])
    else:
        # Without a namespace the limit counts every thread of the user on this machine, so it starts from there.
        config["limits"]["processes"] += isolation.count_tasks(os.getuid() if uid is None else uid)
    if uid is not None:
        isolation.switch_user(uid)
    elif "namespaces" in layers and os.geteuid() != 0:
        isolation.drop_capabilities()
    isolation.die_with_parent()
    isolation.no_new_privs()
    isolation.not_traceable()  # the verdict on what a program printed comes from its parent
    if "landlock" in layers:
        isolation.landlock(box)
    return box


def _confine_child(config: dict[str, Any]) -> None:
    isolation.set_limits(config["limits"])
    isolation.die_with_parent()
    if "seccomp" in config["layers"]:
        isolation.seccomp()


def _exit_like(child: int) -> None:
    """Wait for the child and exit with its code, or 128 plus its signal."""
    _, status = os.waitpid(child, 0)
    os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _describe_error(problem: BaseException) -> list[str]:
    """Return type and message of an exception, bounded; model code may have written either."""
    try:
        text = str(problem)
    except Exception:
        text = "(its message cannot be read)"
    return [type(problem).__name__[:80], text[:_MAX_NOTE]]


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    return module


def _execute(job: dict[str, Any], module: ModuleType) -> None:
    for name in ("prelude", "source"):
        exec(compile(job[name], f"<{name}>", "exec", dont_inherit=True), module.__dict__)


# -- serve ------------------------------------------------------------------------------------------------------


def _serve(job: dict[str, Any], line: JsonPipe) -> None:
    """Answer requests until the other side is gone."""
    module = _module(_NAME)
    objects: list[Any] = []

    def keep(value: Any) -> dict[str, Any]:
        objects.append(value)
        return {"handle": len(objects) - 1, "type": type(value).__name__[:80]}

    def find(data: Any) -> Any:
        return objects[data["handle"]]

    def answer(request: dict[str, Any]) -> Any:
        operation = request["do"]
        if operation == "exec":
            return exec(compile(request["source"], "<probe>", "exec"), module.__dict__)
        if operation == "show":
            value = eval(compile(request["source"], "<probe>", "eval"), module.__dict__)
            return values.shortened(values.fingerprint(values.encode(value, keep)))
        target = getattr(module, request["name"]) if "name" in request else objects[request["handle"]]
        if operation == "call":
            arguments = [values.decode(item, find) for item in request["args"]]
            named = {key: values.decode(item, find) for key, item in request["kwargs"].items()}
            return target(*arguments, **named)
        if operation == "get":
            return getattr(target, request["attribute"])
        if operation == "set":
            return setattr(target, request["attribute"], values.decode(request["value"], find))
        return list(target)

    def reply(work: Any) -> None:
        try:
            outcome = {"value": values.encode(work(), keep)}
        except BaseException as problem:
            outcome = {"error": _describe_error(problem)}
        line.send(outcome)

    def load() -> None:
        _execute(job, module)

    _extend_time(job)
    reply(load)
    while (request := line.receive()) is not None:
        _extend_time(request)
        reply(lambda: answer(request))


def _extend_time(request: dict[str, Any]) -> None:
    if "seconds" in request:
        isolation.extend_cpu_time(request["seconds"])


# -- stdin ------------------------------------------------------------------------------------------------------


def _run_programs(job: dict[str, Any], config: dict[str, Any], line: JsonPipe) -> None:
    while (request := line.receive()) is not None:
        given = os.open("stdin", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink("stdin")
        text = memoryview(request["stdin"].encode("utf-8", "surrogatepass"))
        while text:
            text = text[os.write(given, text) :]
        os.lseek(given, 0, os.SEEK_SET)
        out_read, out_write = os.pipe()
        note_read, note_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(given, 0)
            os.dup2(out_write, 1)
            line.close()
            for number in (given, out_read, out_write, note_read):
                os.close(number)
            _confine_child(config)
            _run_program(job, note_write)
        for number in (given, out_write, note_write):
            os.close(number)
        printed, capped, status = _collect(child, out_read, config["limits"]["output_mb"] << 20)
        os.set_blocking(note_read, False)
        try:
            note = json.loads(os.read(note_read, 1 << 12) or b"null")
        except (ValueError, RecursionError, BlockingIOError):
            note = None
        os.close(note_read)
        os.close(out_read)
        line.send({"status": status, "capped": capped, "note": note})
        if status == 0 and not capped:
            _answer_about(printed, config, line)


def _answer_about(printed: bytes, config: dict[str, Any], line: JsonPipe) -> None:
    """Compare with the known output, or show, what a program printed: in a child with limits, as it may be anything.

    The program has ended and the child reads the request itself, so the known output is in no process that runs a
    program.
    """
    child = os.fork()
    if child == 0:
        try:
            _confine_child(config)
            request = line.receive()
            if request is None:
                os._exit(0)
            text = printed.decode("utf-8", "replace").strip()
            if "show" in request:
                line.send({"text": values.shortened("\n".join(part.strip() for part in text.split("\n")))})
            elif values.same_output(text, request["expected"]):
                line.send({"outcome": "passed", "detail": ""})
            else:
                detail = f"{values.excerpt(text)} instead of {values.excerpt(request['expected'].strip())}"
                line.send({"outcome": "wrong", "detail": detail})
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status:
        line.send({"failed": _exit_code(status)})


def _run_program(job: dict[str, Any], note: int) -> None:
    """Run the program, then shut down as the interpreter does: wait for threads, run atexit functions, flush."""
    streams: dict[str, Any] = {"stdin": open(0), "stdout": open(1, "w"), "stderr": open(2, "w")}  # noqa: SIM115
    for name, stream in streams.items():
        # Both names: programs that print at exit (atexit) write to the second.
        vars(sys).update({name: stream, f"__{name}__": stream})
    main_module = _module("__main__")
    try:
        _execute(job, main_module)
    except SystemExit:
        pass
    except BaseException as problem:
        os.write(note, json.dumps(_describe_error(problem)).encode("ascii"))
        sys.stdout.flush()
        os._exit(1)
    os.close(note)
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    finally:
        os._exit(0)


def _collect(child: int, source: int, most: int) -> tuple[bytes, bool, int]:
    """Return what the child prints, whether it was killed for printing too much, and its exit code."""
    chunks: list[bytes] = []
    size = 0
    status: int | None = None
    while True:
        if select.select([source], [], [], 0.02)[0]:
            chunk = os.read(source, 1 << 16)
            if not chunk:
                break
            size += len(chunk)
            if size > most:
                os.kill(child, signal.SIGKILL)
                break
            chunks.append(chunk)
        elif status is not None:
            # It left a process behind that keeps the pipe open: the program's end counts, not the pipe's.
            break
        else:
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
    if status is None:
        _, status = os.waitpid(child, 0)
    if os.getpid() == 1:
        # Kill and reap every other process of this namespace.
        with contextlib.suppress(ChildProcessError):
            while True:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                os.waitpid(-1, 0)
    return b"".join(chunks), size > most, _exit_code(status)


# -- check ------------------------------------------------------------------------------------------------------


class _Proxy:
    """Stands for an object in the solution's process: equals only itself, and every use of it is a request."""

    def __init__(self, ask: Any, address: dict[str, Any]) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_address", address)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named = {key: _encode_argument(item) for key, item in kwargs.items()}
        return self._ask({"do": "call", **self._address, "args": [*map(_encode_argument, args)], "kwargs": named})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask({"do": "get", **self._address, "attribute": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask({"do": "set", **self._address, "attribute": name, "value": _encode_argument(value)})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask({"do": "list", **self._address}))


def _encode_argument(value: Any) -> Any:
    def address(other: Any) -> dict[str, Any]:
        if isinstance(other, _Proxy) and "handle" in other._address:
            return {"handle": other._address["handle"]}
        raise values.ValueProblem(f"a test passes a {type(other).__name__}, which has no plain form")

    return values.encode(value, address)


class _SolutionError(Exception):
    """The solution raised an exception that is not a builtin one."""


def _error_of(name: str, message: str) -> Exception:
    """Return the solution's error as an exception that the tests can catch."""
    kind: Any = getattr(builtins, name, None)
    # Only what a test could mean to catch: an exit of the solution must not end the tests, and StopIteration would end
    # a loop over its answers as if they were complete.
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, StopIteration):
        with contextlib.suppress(TypeError):  # Some builtin exceptions (UnicodeDecodeError) need more than a message.
            return kind(message)
    return _SolutionError(f"{name}: {message}")


def _check(job: dict[str, Any], line: JsonPipe) -> None:
    """Run each test and report its outcome with the nonce, which the solution's process does not hold.

    Tests are assertions of a data set, or calls with their known answers, which end at the first failure.
    """
    raised: list[tuple[BaseException, str]] = []

    def resolve(data: Any) -> _Proxy:
        if "calls" in job or type(data.get("handle")) is not int:
            raise values.ValueProblem("the value has no plain form")
        return _Proxy(ask, {"handle": data["handle"]})

    def ask(request: dict[str, Any]) -> Any:
        # Two lines: the grader passes on the second without reading it.
        line.send({"ask": True})
        line.send(request)
        try:
            reply = line.receive()
            if reply is None:
                os._exit(0)
            if isinstance(reply, dict) and reply.keys() == {"value"}:
                return values.decode(reply["value"], resolve)
        except (RecursionError, MemoryError) as limit:
            raise values.ValueProblem(f"the answer is too large ({type(limit).__name__})") from None
        if not (isinstance(reply, dict) and isinstance(reply.get("error"), list) and len(reply["error"]) == 2):
            raise values.ValueProblem("the solution's process answered with no value")
        name, message = map(str, reply["error"])
        problem = _error_of(name, message)
        raised.append((problem, f"{name}: {message}" if message else name))
        raise problem

    def outcome_of(test: Callable[[], str]) -> tuple[str, str]:
        """Run a test, which returns how an answer is wrong."""
        try:
            wrong = test()
        except BaseException as problem:
            name, message = _describe_error(problem)
            if isinstance(problem, values.ValueProblem):
                return "error", message
            text = next((text for error, text in raised if error is problem), None)
            if text is not None:
                return "error", text[:_MAX_NOTE]
            return "wrong", f"{name}: {message}" if message else name
        return ("wrong", wrong) if wrong else ("passed", "")

    def report(outcome: str, detail: str) -> bool:
        line.send({"outcome": outcome, "detail": detail, "nonce": job["nonce"]})
        return outcome == "passed"

    def call(arguments: list[Any], known: Any) -> str:
        request = {"do": "call", "name": job["name"], "args": arguments, "kwargs": {}, "seconds": job["seconds"]}
        _extend_time(job)
        value, expected = ask(request), values.decode(known, resolve)
        if values.same_value(value, expected):
            return ""
        return f"{values.excerpt(value)} instead of {values.excerpt(expected)}"

    if "calls" in job:
        for case in job["calls"]:
            if not report(*outcome_of(partial(call, *case))):
                break
    else:
        module = _module("tests")
        remotes = {name: _Proxy(ask, {"name": name}) for name in job["names"]}
        module.__dict__.update(remotes)

        def run(source: str) -> str:
            exec(compile(source, "<tests>", "exec"), module.__dict__)
            return ""

        ready, problem = outcome_of(partial(run, job["setup"]))
        # A data set's prompt may define the function under test as well; the solution's counts.
        module.__dict__.update(remotes)
        for test in job["tests"]:
            ran = outcome_of(partial(run, test)) if ready == "passed" else (ready, f"set-up: {problem}")
            report(*ran)
    line.send({"done": True, "nonce": job["nonce"]})


if __name__ == "__main__":
    main()
