"""Run a solution on the tests of its problem; outcomes are decided outside the solution's process."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from eval_suite.sandbox.process import ConfinedProcess, HarnessError, Outcome, Sandbox, Stopped
from eval_suite.sandbox.values import ValueProblem, decode, encode, fingerprint, loads, no_handle, same_value

PATIENCE = 3.0
"""Wall-clock deadline over CPU time: a busy machine may keep a program waiting, and sleeping uses no CPU time."""
_TRIES = 3
_MAX_DETAIL = 300
T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A model's program, and the code run before it."""

    source: str
    prelude: str = ""
    """Trusted code run first in the same namespace: imports, helpers. Separate, so that the source may begin with
    `from __future__` and keeps its line numbers."""

    def job(self, kind: str) -> dict[str, str]:
        """Return the job of a confined process that holds this program."""
        return {"kind": kind, "prelude": self.prelude, "source": self.source}


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test."""

    __test__ = False  # pytest takes the name for a class of tests

    outcome: Outcome
    """`wrong`: it answered and the answer fails the test. `error`: it raised, exited or answered nothing readable.
    `killed`: by a limit or a signal. `harness_error`: the sandbox failed, three times, which says nothing of the
    code."""
    detail: str = ""


@dataclass(frozen=True)
class CodeResult:
    """Outcomes of one solution."""

    tests: tuple[TestResult, ...]
    """In order; ends at a test after which the process was gone."""
    total: int
    """Tests of the problem."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every test ran and passed."""
        return self.total > 0 and len(self.tests) == self.total and all(t.outcome == "passed" for t in self.tests)

    @property
    def harness_error(self) -> bool:
        """Whether the sandbox failed, so that nothing is known about the code."""
        return any(test.outcome == "harness_error" for test in self.tests)

    def reason(self) -> str:
        """Return a few words for people."""
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
            return _relay_calls(solution, checker, nonce, deadline)

    return _timed(attempt, len(tests))


def _relay_calls(solution: ConfinedProcess, checker: ConfinedProcess, nonce: str, deadline: float) -> list[TestResult]:
    """Forward the tests' calls to the solution and the replies back, until the tests are done."""
    results: list[TestResult] = []
    while True:
        try:
            message = loads(checker.receive(deadline))
        except Stopped as stopped:
            if stopped.outcome == "timeout":
                return [*results, TestResult("timeout", stopped.detail)]
            raise HarnessError(f"the tests' own process {stopped.detail}") from stopped
        except ValueProblem as problem:
            raise HarnessError(f"the tests' own process broke the protocol: {problem}") from problem
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
            raise HarnessError("the tests' own process broke the protocol")


@dataclass(frozen=True)
class CallCase:
    """One call of a function with plain arguments."""

    arguments: tuple[Any, ...]
    expected: Any


def run_calls(sandbox: Sandbox, program: Program, name: str, calls: Sequence[CallCase], seconds: float) -> CodeResult:
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


def _compare(solution: ConfinedProcess, request: dict[str, Any], expected: Any, deadline: float) -> TestResult:
    try:
        reply = loads(solution.ask(request, deadline))
        if isinstance(reply, dict) and reply.keys() == {"error"}:
            return TestResult("error", _error_text(reply["error"]))
        if not (isinstance(reply, dict) and reply.keys() == {"value"}):
            return TestResult("error", "its process answered with no value")
        value = decode(reply["value"], no_handle)
    except Stopped as stopped:
        return TestResult(stopped.outcome, stopped.detail)
    except (ValueProblem, RecursionError) as problem:
        return TestResult("error", str(problem)[:_MAX_DETAIL])
    if same_value(value, expected):
        return TestResult("passed")
    return TestResult("wrong", f"{_excerpt(value)} instead of {_excerpt(expected)}")


@dataclass(frozen=True)
class StdinCase:
    """One run of a program: its input and the output it must print."""

    stdin: str
    expected: str


def run_programs(sandbox: Sandbox, program: Program, runs: Sequence[StdinCase], seconds: float) -> CodeResult:
    """Run a program once per input in a fresh process each; compare what it printed here. Stops at a failure.

    `seconds`: CPU time for each run.
    """

    def attempt() -> list[TestResult]:
        results: list[TestResult] = []
        with sandbox.start(program.job("stdin"), seconds) as process:
            for run in runs:
                results.append(_check_output(process, run, seconds))
                if results[-1].outcome != "passed":
                    break
        return results

    return _timed(attempt, len(runs))


def _check_output(process: ConfinedProcess, run: StdinCase, seconds: float) -> TestResult:
    try:
        printed, problem = _run_program(process, run.stdin, seconds)
    except Stopped as stopped:
        return TestResult(stopped.outcome, stopped.detail)
    if problem is not None:
        return problem
    if same_output(printed, run.expected):
        return TestResult("passed")
    return TestResult("wrong", f"{_excerpt(printed.strip())} instead of {_excerpt(run.expected.strip())}")


def _run_program(process: ConfinedProcess, stdin: str, seconds: float) -> tuple[str, TestResult | None]:
    """Return what a program prints for one input, or what went wrong. Raises Stopped."""
    try:
        reply = loads(process.ask({"stdin": stdin}, time.monotonic() + PATIENCE * seconds))
    except ValueProblem as problem:
        raise HarnessError(f"the process around the program broke the protocol: {problem}") from problem
    if reply["capped"]:
        return "", TestResult("killed", "it printed more than the limit")
    if reply["status"] == 128 + signal.SIGXCPU:
        return "", TestResult("timeout", "out of CPU time")
    if reply["status"] >= 128:
        return "", TestResult("killed", f"ended by signal {reply['status'] - 128}")
    if reply["status"] != 0:
        note = reply["note"]
        return "", TestResult("error", _error_text(note) if note else f"ended with exit code {reply['status']}")
    return reply["out"], None


def same_output(printed: str, expected: str) -> bool:
    """Return whether two outputs are equal as LiveCodeBench compares them.

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
class Observation:
    """Outputs of a program on inputs, not compared with anything."""

    outputs: tuple[str, ...]
    """One text per input: the value or the printed text, or the name of the error."""
    ran: bool
    """Whether any input gave an output."""


def observe_calls(
    sandbox: Sandbox, program: Program, probes: Sequence[str], seconds: float, setup: str = ""
) -> Observation:
    """Evaluate expressions in the namespace of a solution, in order, after some statements.

    `seconds`: CPU time for loading and all probes.
    """

    def attempt() -> Observation:
        outputs: list[str] = []
        ran = False
        with sandbox.start(program.job("serve"), seconds) as solution:
            deadline = time.monotonic() + PATIENCE * seconds
            problem = _load(solution, deadline)
            if problem is not None:
                return Observation((problem.outcome,) * len(probes), False)
            try:
                solution.ask({"do": "eval", "source": setup, "mode": "exec"}, deadline)
                for probe in probes:
                    reply = solution.ask({"do": "eval", "source": probe, "mode": "eval"}, deadline)
                    output, answered = _probe_output(reply)
                    outputs.append(output)
                    ran = ran or answered
            except Stopped as stopped:
                left = len(probes) - len(outputs)
                return Observation((*outputs, *[f"!{stopped.outcome}"] * left), ran)
        return Observation(tuple(outputs), ran)

    return _with_retries(attempt)


def _probe_output(line: bytes) -> tuple[str, bool]:
    """Return the reply to a probe as text, and whether it holds a value."""
    try:
        reply = loads(line)
        return (fingerprint(reply["value"]), True) if "value" in reply else (f"!{reply['error'][0]}", False)
    except (ValueProblem, RecursionError, LookupError, TypeError, ValueError):
        return "!unreadable", False


def observe_programs(sandbox: Sandbox, program: Program, inputs: Sequence[str], seconds: float) -> Observation:
    """Return what a program prints for each input, without outer white space. `seconds`: CPU time for each run."""

    def attempt() -> Observation:
        outputs: list[str] = []
        ran = False
        with sandbox.start(program.job("stdin"), seconds) as process:
            for stdin in inputs:
                try:
                    printed, problem = _run_program(process, stdin, seconds)
                except Stopped as stopped:
                    left = len(inputs) - len(outputs)
                    return Observation((*outputs, *[f"!{stopped.outcome}"] * left), ran)
                outputs.append("\n".join(line.strip() for line in printed.strip().split("\n")) if not problem else "!")
                ran = ran or problem is None
        return Observation(tuple(outputs), ran)

    return _with_retries(attempt)


def _load(solution: ConfinedProcess, deadline: float) -> TestResult | None:
    """Return what went wrong while the solution's top level ran, or None when it loaded."""
    try:
        reply = loads(solution.receive(deadline))
    except Stopped as stopped:
        return TestResult(stopped.outcome, f"while loading: {stopped.detail}")
    except ValueProblem as problem:
        return TestResult("error", f"while loading: {problem}"[:_MAX_DETAIL])
    if reply == {"value": None}:
        return None
    return TestResult("error", f"while loading: {_error_text(reply.get('error') if isinstance(reply, dict) else None)}")


def _error_text(error: Any) -> str:
    if isinstance(error, list) and len(error) == 2:
        return f"{error[0]}: {error[1]}"[:_MAX_DETAIL] if error[1] else str(error[0])[:_MAX_DETAIL]
    return "an error without a name"


def _excerpt(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        return f"a large {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _with_retries(attempt: Callable[[], T]) -> T:
    """Retry failures of the sandbox itself; outcomes of the code are final."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except HarnessError:
            time.sleep(0.1)
    return attempt()


def _timed(attempt: Callable[[], list[TestResult]], total: int) -> CodeResult:
    start = time.monotonic()
    try:
        results = _with_retries(attempt)
    except HarnessError as problem:
        results = [TestResult("harness_error", str(problem)[:_MAX_DETAIL])]
    return CodeResult(tuple(results), total, time.monotonic() - start)
