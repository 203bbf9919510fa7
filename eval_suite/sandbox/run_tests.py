"""Run one solution on the tests of its problem: what happened in each test, decided outside the solution's process."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from eval_suite.sandbox.process import Confined, HarnessError, Outcome, Sandbox, Stopped
from eval_suite.sandbox.values import ValueProblem, decode, encode, fingerprint, loads, no_handle, same_value

PATIENCE = 3.0
"""Wall clock over CPU time: a program may be kept waiting by a busy machine, and sleeping is not working."""
_TRIES = 3
_MAX_DETAIL = 300
T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """What a model wrote, and what stands before it."""

    source: str
    prelude: str = ""
    """Trusted code run first in the same namespace: imports, helpers. Apart, so that the source may begin with
    `from __future__` and its line numbers are its own."""

    def job(self, kind: str) -> dict[str, str]:
        """The job of a confined process that holds this program."""
        return {"kind": kind, "prelude": self.prelude, "source": self.source}


@dataclass(frozen=True)
class TestResult:
    """What happened in one test."""

    __test__ = False  # not a class of tests, whatever pytest thinks of the name

    outcome: Outcome
    """`wrong`: it answered and the answer fails the test. `error`: it raised, exited or answered nothing readable.
    `killed`: by a limit or a signal. `harness_error`: the sandbox failed, three times, which says nothing of the
    code."""
    detail: str = ""


@dataclass(frozen=True)
class CodeResult:
    """What happened to one solution."""

    tests: tuple[TestResult, ...]
    """Outcomes in order; nothing follows a test after which the process was gone."""
    total: int
    """Tests of the problem."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Every test was run and passed."""
        return self.total > 0 and len(self.tests) == self.total and all(t.outcome == "passed" for t in self.tests)

    @property
    def harness_error(self) -> bool:
        """The sandbox failed, so nothing is known about the code."""
        return any(test.outcome == "harness_error" for test in self.tests)

    def reason(self) -> str:
        """A few words for people."""
        good = sum(test.outcome == "passed" for test in self.tests)
        first = next(((n, test) for n, test in enumerate(self.tests, 1) if test.outcome != "passed"), None)
        if first is None:
            return f"{good} of {self.total} tests passed"
        number, test = first
        return f"test {number} of {self.total}: {test.outcome}" + (f" ({test.detail})" if test.detail else "")


def run_python_tests(
    sandbox: Sandbox, program: Program, names: Sequence[str], setup: str, tests: Sequence[str], seconds: float
) -> CodeResult:
    """Run test code of a data set (assertions) against a solution, in two processes that share no memory.

    The solution's process only answers calls of `names`; the tests run in another one, where what comes back is
    plain data, so no object of the solution takes part in a comparison. A test's outcome carries a random number
    that the solution's process never holds. `seconds`: CPU time for loading the solution and all tests.
    """

    def attempt() -> list[TestResult]:
        nonce = secrets.token_hex(16)
        job = {"kind": "check", "names": list(names), "setup": setup, "tests": list(tests), "nonce": nonce}
        with (
            sandbox.start(program.job("serve"), seconds) as solution,
            sandbox.start(job, seconds) as checker,
        ):
            deadline = time.monotonic() + PATIENCE * seconds
            problem = _load(solution, deadline)
            if problem is not None:
                return [problem] * len(tests)
            return _referee(solution, checker, nonce, deadline)

    return _timed(attempt, len(tests))


def _referee(solution: Confined, checker: Confined, nonce: str, deadline: float) -> list[TestResult]:
    """Carry the tests' calls to the solution and back until the tests are done."""
    results: list[TestResult] = []
    while True:
        try:
            message = loads(checker.receive(deadline))
        except Stopped as stopped:
            if stopped.outcome == "timeout":
                return [*results, TestResult("timeout", stopped.detail)]
            raise HarnessError(f"the tests' own process {stopped.detail}") from stopped
        except ValueProblem as problem:
            raise HarnessError(f"the tests' own process said what is {problem}") from problem
        if "ask" in message:
            try:
                reply = solution.ask(message["ask"], deadline)
            except Stopped as stopped:
                return [*results, TestResult(stopped.outcome, stopped.detail)]
            checker.send_line(reply, deadline)
        elif message.get("nonce") == nonce:
            results.append(TestResult(message["outcome"], message["detail"]))
        elif message.get("done") == nonce:
            return results
        else:
            raise HarnessError("the tests' own process said something else than agreed")


@dataclass(frozen=True)
class Call:
    """One call of a function with plain arguments."""

    arguments: tuple[Any, ...]
    expected: Any


def run_calls(sandbox: Sandbox, program: Program, name: str, calls: Sequence[Call], seconds: float) -> CodeResult:
    """Call one function of a solution; compare each result here, with types checked. Stops at the first failure.

    `seconds`: CPU time for loading and for each call.
    """

    def attempt() -> list[TestResult]:
        results: list[TestResult] = []
        job = {**program.job("serve"), "seconds": seconds}
        with sandbox.start(job, seconds * (len(calls) + 1)) as solution:
            problem = _load(solution, time.monotonic() + PATIENCE * seconds)
            if problem is not None:
                return [problem]
            for call in calls:
                arguments = [encode(argument, no_handle) for argument in call.arguments]
                request = {"do": "call", "name": name, "args": arguments, "kwargs": {}, "seconds": seconds}
                results.append(_compare(solution, request, call.expected, time.monotonic() + PATIENCE * seconds))
                if results[-1].outcome != "passed":
                    break
        return results

    return _timed(attempt, len(calls))


def _compare(solution: Confined, request: dict[str, Any], expected: Any, deadline: float) -> TestResult:
    try:
        reply = loads(solution.ask(request, deadline))
        if isinstance(reply, dict) and reply.keys() == {"error"}:
            return TestResult("error", _named(reply["error"]))
        if not (isinstance(reply, dict) and reply.keys() == {"value"}):
            return TestResult("error", "its process answered with no value")
        value = decode(reply["value"], no_handle)
    except Stopped as stopped:
        return TestResult(stopped.outcome, stopped.detail)
    except (ValueProblem, RecursionError) as problem:
        return TestResult("error", str(problem)[:_MAX_DETAIL])
    if same_value(value, expected):
        return TestResult("passed")
    return TestResult("wrong", f"{_short(value)} instead of {_short(expected)}")


@dataclass(frozen=True)
class Run:
    """One run of a program: what it reads and what it must print."""

    stdin: str
    expected: str


def run_programs(sandbox: Sandbox, program: Program, runs: Sequence[Run], seconds: float) -> CodeResult:
    """Run a program once per input in a fresh process each; compare what it printed here. Stops at a failure.

    `seconds`: CPU time for each run.
    """

    def attempt() -> list[TestResult]:
        results: list[TestResult] = []
        with sandbox.start(program.job("stdin"), seconds) as process:
            for run in runs:
                results.append(_print_and_compare(process, run, seconds))
                if results[-1].outcome != "passed":
                    break
        return results

    return _timed(attempt, len(runs))


def _print_and_compare(process: Confined, run: Run, seconds: float) -> TestResult:
    try:
        printed, problem = _printed(process, run.stdin, seconds)
    except Stopped as stopped:
        return TestResult(stopped.outcome, stopped.detail)
    if problem is not None:
        return problem
    if same_output(printed, run.expected):
        return TestResult("passed")
    return TestResult("wrong", f"{_short(printed.strip())} instead of {_short(run.expected.strip())}")


def _printed(process: Confined, stdin: str, seconds: float) -> tuple[str, TestResult | None]:
    """What a program prints for one input, or what went wrong. Raises Stopped."""
    try:
        reply = loads(process.ask({"stdin": stdin}, time.monotonic() + PATIENCE * seconds))
    except ValueProblem as problem:
        raise HarnessError(f"the process around the program said something else than agreed: {problem}") from problem
    if reply["capped"]:
        return "", TestResult("killed", "it printed more than the limit")
    if reply["status"] == 128 + signal.SIGXCPU:
        return "", TestResult("timeout", "out of CPU time")
    if reply["status"] >= 128:
        return "", TestResult("killed", f"ended by signal {reply['status'] - 128}")
    if reply["status"] != 0:
        note = reply["note"]
        return "", TestResult("error", _named(note) if note else f"ended with exit code {reply['status']}")
    return reply["out"], None


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs are equal as LiveCodeBench compares them.

    Line by line without outer white space; a pair of lines that differs as text is equal when all its words are
    decimal numbers and these are equal.
    """
    ours = [line.strip() for line in printed.strip().split("\n")]
    theirs = [line.strip() for line in expected.strip().split("\n")]
    return len(ours) == len(theirs) and all(a == b or _same_numbers(a, b) for a, b in zip(ours, theirs, strict=True))


def _same_numbers(a: str, b: str) -> bool:
    try:
        return [Decimal(word) for word in a.split()] == [Decimal(word) for word in b.split()]
    except InvalidOperation:
        return False


@dataclass(frozen=True)
class Behaviour:
    """What a program did on inputs whose answers nobody looked at."""

    outputs: tuple[str, ...]
    """One text per input: the value or the printed text, or the name of the error."""
    ran: bool
    """Whether any input gave an output."""


def observe_calls(
    sandbox: Sandbox, program: Program, probes: Sequence[str], seconds: float, setup: str = ""
) -> Behaviour:
    """Evaluate expressions in the namespace of a solution, in order, after some statements.

    `seconds`: CPU time for loading and all probes.
    """

    def attempt() -> Behaviour:
        outputs: list[str] = []
        ran = False
        with sandbox.start(program.job("serve"), seconds) as solution:
            deadline = time.monotonic() + PATIENCE * seconds
            problem = _load(solution, deadline)
            if problem is not None:
                return Behaviour((problem.outcome,) * len(probes), False)
            try:
                solution.ask({"do": "eval", "source": setup, "mode": "exec"}, deadline)
                for probe in probes:
                    reply = solution.ask({"do": "eval", "source": probe, "mode": "eval"}, deadline)
                    output, answered = _output(reply)
                    outputs.append(output)
                    ran = ran or answered
            except Stopped as stopped:
                left = len(probes) - len(outputs)
                return Behaviour((*outputs, *[f"!{stopped.outcome}"] * left), ran)
        return Behaviour(tuple(outputs), ran)

    return _retried(attempt)


def _output(line: bytes) -> tuple[str, bool]:
    """One text for a reply to a probe, and whether it holds a value."""
    try:
        reply = loads(line)
        return (fingerprint(reply["value"]), True) if "value" in reply else (f"!{reply['error'][0]}", False)
    except (ValueProblem, RecursionError, LookupError, TypeError, ValueError):
        return "!unreadable", False


def observe_programs(sandbox: Sandbox, program: Program, inputs: Sequence[str], seconds: float) -> Behaviour:
    """What a program prints for each input, outer white space aside. `seconds`: CPU time for each run."""

    def attempt() -> Behaviour:
        outputs: list[str] = []
        ran = False
        with sandbox.start(program.job("stdin"), seconds) as process:
            for stdin in inputs:
                try:
                    printed, problem = _printed(process, stdin, seconds)
                except Stopped as stopped:
                    left = len(inputs) - len(outputs)
                    return Behaviour((*outputs, *[f"!{stopped.outcome}"] * left), ran)
                outputs.append("\n".join(line.strip() for line in printed.strip().split("\n")) if not problem else "!")
                ran = ran or problem is None
        return Behaviour(tuple(outputs), ran)

    return _retried(attempt)


def _load(solution: Confined, deadline: float) -> TestResult | None:
    """What went wrong while the solution's top level ran; None when it loaded."""
    try:
        reply = loads(solution.receive(deadline))
    except Stopped as stopped:
        return TestResult(stopped.outcome, f"while loading: {stopped.detail}")
    except ValueProblem as problem:
        return TestResult("error", f"while loading: {problem}"[:_MAX_DETAIL])
    if reply == {"value": None}:
        return None
    return TestResult("error", f"while loading: {_named(reply.get('error') if isinstance(reply, dict) else None)}")


def _named(error: Any) -> str:
    if isinstance(error, list) and len(error) == 2:
        return f"{error[0]}: {error[1]}"[:_MAX_DETAIL] if error[1] else str(error[0])[:_MAX_DETAIL]
    return "an error without a name"


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        return f"a large {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _retried(attempt: Callable[[], T]) -> T:
    """Only a failure of the sandbox itself is tried again; what code did is final."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except HarnessError:
            time.sleep(0.1)
    return attempt()


def _timed(attempt: Callable[[], list[TestResult]], total: int) -> CodeResult:
    start = time.monotonic()
    try:
        results = _retried(attempt)
    except HarnessError as problem:
        results = [TestResult("harness_error", str(problem)[:_MAX_DETAIL])]
    return CodeResult(tuple(results), total, time.monotonic() - start)
