"""The judge over HTTP: retries, rate limits, refusals and outages, counted on a real server."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from eval_suite.grading.judge import (
    PROMPT_VERSION,
    Counts,
    JudgeRequest,
    JudgeSettings,
    VerdictCache,
    as_callable,
    judge_all,
)
from eval_suite.grading.judge import Reply as JudgeReply
from mmcorl.errors import RunError, UserError
from openai_server import Call, OpenAIServer, Reply, fail, in_turn, knows, say
from paths import ROOT

YES, NO = say("correct"), say("incorrect")


def settings(server: OpenAIServer | str, **changes: Any) -> JudgeSettings:
    """Impatient ones."""
    url = server if isinstance(server, str) else server.url
    fast = {"timeout": 2.0, "retries": 2, "backoff": 0.004, "max_backoff": 0.02, "patience": 2.0, "stop_after": 3}
    return JudgeSettings(base_url=url, **{**fast, **changes})


def ask(n: int) -> JudgeRequest:
    return JudgeRequest(f"What is {n} - 0?", None, str(n), f"{n} apples")


def judged(
    requests: list[JudgeRequest], judge: JudgeSettings, **other: Any
) -> tuple[list[tuple[str, str] | None], Counts]:
    """Verdict and words for each request, each told exactly once, and the counts."""
    told: list[tuple[str, str] | None] = [None] * len(requests)

    def keep(number: int, verdict: str, raw: str) -> None:
        assert told[number] is None
        told[number] = (verdict, raw)

    counts = judge_all(requests, judge, keep, **other)
    assert None not in told
    words = [one[0] for one in told if one]
    assert [words.count(verdict) for verdict in ("yes", "no", "unclear", "failed")] == [
        counts.yes,
        counts.no,
        counts.unclear,
        counts.failed,
    ]
    assert counts.done == counts.total == len(requests)
    return told, counts


def verdicts(told: list[tuple[str, str] | None]) -> list[str]:
    return [one[0] for one in told if one]


@pytest.fixture
def serve():
    """Starts servers and stops them at the end."""
    running: list[OpenAIServer] = []

    def start(behaviour: Callable[[Call], Reply]) -> OpenAIServer:
        server = OpenAIServer(behaviour)
        running.append(server)
        return server.__enter__()

    yield start
    for server in running:
        server.__exit__(None, None, None)


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}/v1"


# What is asked, and what is made of the reply


def test_the_request_is_one_message_at_temperature_0_to_the_papers_judge(serve):
    server = serve(YES)
    told, counts = judged([ask(1)], settings(server))
    assert told == [("yes", "correct")]
    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert "authorization" not in call.headers
    assert {name: call.body[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "Qwen/Qwen2.5-32B-Instruct",
        "temperature": 0,
        "max_tokens": 8,
    }
    assert call.quoted("Candidate answer") == "1 apples"
    assert (counts.asked, counts.sent, counts.cached, counts.problems) == (1, 1, 0, {})


def test_a_judge_that_knows_gives_each_its_own_verdict(serve):
    # Odd answers agree; the replies come in another order than the questions.
    truth = {(str(n), f"{n} apples"): n % 2 == 1 for n in range(60)}
    right = knows(truth)
    server = serve(lambda call: Reply(right(call).text, delay=0.01 * (call.number % 3)))
    told, _ = judged([ask(n) for n in range(60)], settings(server, concurrency=8))
    assert verdicts(told) == ["yes" if n % 2 else "no" for n in range(60)]


@pytest.mark.parametrize(
    ("reply", "raw"),
    [
        (Reply("I think it is correct"), "I think it is correct"),
        (Reply(""), ""),
        (Reply(None), ""),
        (Reply("correct", finish_reason="length"), "correct"),
        (Reply("z" * 9000), "z" * 500),
        (Reply("half \ud83d"), "half ?"),
    ],
)
def test_off_the_menu_is_unclear_and_not_asked_again_in_this_run(serve, reply, raw):
    server = serve(lambda call: reply)
    told, counts = judged([ask(1)], settings(server))
    assert told == [("unclear", raw)]
    assert (counts.unclear, counts.failed, len(server.calls)) == (1, 0, 1)


def test_extra_fields_are_sent_removed_and_part_of_the_name(serve):
    server = serve(YES)
    judge = settings(server, model="m", extra={"max_tokens": None, "max_completion_tokens": 64, "seed": 3})
    judged([ask(1)], judge)
    assert server.calls[0].body.keys() == {"model", "messages", "temperature", "max_completion_tokens", "seed"}
    assert judge.facts() == {
        "model": 'm {"max_completion_tokens": 64, "max_tokens": null, "seed": 3}',
        "prompt_version": PROMPT_VERSION,
    }


# Faults that pass


@pytest.mark.parametrize(
    "fault",
    [
        fail(500),
        fail(502),
        fail(408),
        fail(409),
        say("", disconnect=True),
        say("", body=b"{not json"),
        say("", body=b"<html>bad gateway</html>"),
        say("", body=b"[]"),
        say("", body=b'{"choices": []}'),
        say("", body=b'{"choices": [{"message": "correct"}]}'),
        say("", body=b"[" * 100_000),
        say("", endless=b" " * 65536),
        say("", body=gzip.compress(b" " * 2**26), headers={"Content-Encoding": "gzip"}),
        say("", headers={"Content-Encoding": "gzip"}),
        say("", body=b'{"choices": [{"message": {"content": ["correct"]}}]}'),
        say("", body=b""),
    ],
    ids=lambda fault: "",
)
def test_a_fault_is_tried_again(serve, fault):
    server = serve(in_turn(fault, fault, YES))
    told, counts = judged([ask(1)], settings(server, timeout=20.0))
    assert told == [("yes", "correct")]
    assert len(server.calls) == counts.sent == 3
    assert counts.problems == {}


@pytest.mark.parametrize("slow", [say("incorrect", delay=30), say("incorrect", drip=0.05)], ids=["silent", "dripping"])
def test_the_time_of_a_request_is_bounded_as_a_whole(serve, slow):
    # A body of some 130 bytes at 0.05 s each would never let a limit on single reads expire.
    server = serve(in_turn(slow, YES))
    told, counts = judged([ask(1)], settings(server, timeout=0.5))
    assert told == [("yes", "correct")]
    assert counts.sent == 2


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (fail(500, "out of memory"), "500", 'answered 500 to 3 tries (it said: "out of memory")'),
        (say("", disconnect=True), "connection", "broke the connection"),
        (say("", body=b"<html>hello</html>"), "malformed", 'no chat completion (it said: "<html>hello</html>")'),
        (say("", delay=30), "timeout", "gave no reply within 0.3 s"),
    ],
)
def test_a_fault_that_stays_is_failed_after_the_retries_and_said_once(serve, fault, kind, words):
    server = serve(lambda call: YES(call) if "What is 0" in call.prompt else fault(call))
    told, counts = judged([ask(n) for n in range(3)], settings(server, timeout=0.3, concurrency=1))
    assert verdicts(told) == ["yes", "failed", "failed"]
    assert len(server.calls) == 1 + 2 * 3
    assert counts.problems.keys() == {kind}
    assert counts.problems[kind].questions == 2
    assert words in counts.problems[kind].sentence
    assert told[1] is not None
    assert words in told[1][1]
    assert counts.stopped is None


def test_retries_wait_longer_each_time(serve):
    server = serve(fail(500))
    judged([ask(1)], settings(server, backoff=0.04, max_backoff=0.1, retries=3))
    gaps = [b.time - a.time for a, b in pairwise(server.calls)]
    # 0.04, 0.08, then 0.1 at most, each times [0.5, 1]; a busy machine only adds.
    assert len(gaps) == 3
    assert all(gap >= least for gap, least in zip(gaps, (0.02, 0.04, 0.05), strict=True))


def test_never_more_requests_at_once_than_allowed(serve):
    server = serve(say("correct", delay=0.02))
    judged([ask(n) for n in range(41)], settings(server, concurrency=4))
    assert server.most_at_once == 4


# Rate limits


def test_retry_after_is_obeyed_by_every_request(serve):
    limit, slow = fail(429, retry_after="0.3"), say("correct", delay=0.02)
    server = serve(lambda call: limit(call) if call.number == 5 else slow(call))
    told, counts = judged([ask(n) for n in range(60)], settings(server, concurrency=4))
    assert verdicts(told) == ["yes"] * 60
    assert counts.sent == 61
    # All four lanes together are silent for that long.
    assert max(b.time - a.time for a, b in pairwise(server.calls[5:])) >= 0.29


def test_a_budget_said_to_be_spent_is_waited_for_before_anything_is_refused(serve):
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "150ms"}
    server = serve(say("correct", headers=spent))
    judged([ask(n) for n in range(3)], settings(server, concurrency=1))
    assert all(b.time - a.time >= 0.14 for a, b in pairwise(server.calls))


def test_a_limited_endpoint_answers_everything_in_the_end(serve):
    # Five requests per 0.1 s, as a token bucket that is refilled whole; retries=2 alone would lose many.
    windows: dict[int, int] = {}

    def limited(call: Call) -> Reply:
        window = int(call.time / 0.1)
        windows[window] = windows.get(window, 0) + 1
        return YES(call) if windows[window] <= 5 else fail(429, "slow down")(call)

    server = serve(limited)
    told, counts = judged([ask(n) for n in range(40)], settings(server, concurrency=16, patience=20.0))
    assert verdicts(told) == ["yes"] * 40
    assert counts.stopped is None


def test_a_wait_beyond_patience_fails_at_once_and_ends_the_run(serve):
    server = serve(in_turn(YES, fail(429, "come back tomorrow", retry_after="3600")))
    began = time.monotonic()
    told, counts = judged([ask(n) for n in range(50)], settings(server, concurrency=1))
    assert time.monotonic() - began < 10
    assert verdicts(told) == ["yes"] + ["failed"] * 49
    # One answered, three in a row that failed (stop_after), nobody hammered.
    assert len(server.calls) == 4
    assert counts.stopped is not None
    assert counts.stopped.startswith("3 questions in a row failed, the last because the judge at http://127.0.0.1")
    assert "asking for 3600 s" in counts.stopped


def test_patience_also_bounds_a_limit_that_never_ends(serve):
    server = serve(fail(429))
    began = time.monotonic()
    told, _ = judged([ask(1)], settings(server, patience=0.2))
    assert verdicts(told) == ["failed"]
    assert 0.1 < time.monotonic() - began < 10


# What no retry would change


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (401, "Incorrect API key", 'answered 401: it refused the key; name a variable with a key it accepts (--judge-key-env, or api_key_env in Python) (it said: "Incorrect API key").'),  # noqa: E501
        (403, "", "answered 403: it forbids it; check the key and what it may use."),
        (404, "The model `m` does not exist.", "does not know the address or the model 'm'; check that its address ends in /v1"),  # noqa: E501
        (405, "", "takes no chat completions"),
        (307, "", "redirects are not followed"),
    ],
)  # fmt: skip
def test_a_wrong_key_model_or_address_is_said_once_after_one_request(serve, status, message, words):
    server = serve(fail(status, message, location="http://127.0.0.1:9/v1"))
    told, counts = judged([ask(n) for n in range(500)], settings(server, model="m"))
    assert len(server.calls) == 1
    assert verdicts(told) == ["failed"] * 500
    assert counts.stopped is not None
    assert words in counts.stopped
    assert "\n" not in counts.stopped
    assert [problem.questions for problem in counts.problems.values()] == [1]


def test_a_spent_quota_is_not_a_rate_limit(serve):
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    server = serve(say("", status=429, body=json.dumps(body).encode()))
    _, counts = judged([ask(n) for n in range(9)], settings(server))
    assert len(server.calls) == 1
    assert counts.stopped is not None
    assert "quota is spent" in counts.stopped


def test_one_refused_question_does_not_stop_the_others(serve):
    # A question too long for the judge's context, in vLLM's words; asked first, so that nothing had been answered.
    def narrow(call: Call) -> Reply:
        if "What is 0" in call.prompt:
            return fail(400, "This model's maximum context length is 4096 tokens.")(call)
        return YES(call)

    server = serve(narrow)
    told, counts = judged([ask(n) for n in range(20)], settings(server))
    assert verdicts(told) == ["failed"] + ["yes"] * 19
    assert len(server.calls) == 20
    assert counts.stopped is None
    assert 'refused the request with 400 (it said: "This model' in counts.problems["400"].sentence


def test_a_request_that_is_refused_every_time_ends_the_run(serve):
    server = serve(fail(422, "temperature is not supported"))
    told, counts = judged([ask(n) for n in range(100)], settings(server, stop_after=4))
    assert len(server.calls) == 4
    assert verdicts(told) == ["failed"] * 100
    assert counts.stopped is not None
    assert "temperature is not supported" in counts.stopped


# Outages


def test_an_endpoint_that_is_down_is_said_in_one_sentence_after_one_question(nobody):
    began = time.monotonic()
    told, counts = judged([ask(n) for n in range(3000)], settings(nobody))
    assert time.monotonic() - began < 30
    assert counts.sent == 3
    assert verdicts(told) == ["failed"] * 3000
    assert counts.stopped is not None
    assert counts.stopped.startswith(f"the judge at {nobody} cannot be reached (")
    assert counts.stopped.endswith("); start it, or correct its address.")


def test_an_endpoint_that_goes_down_ends_the_run_and_the_next_run_asks_only_the_rest(serve, tmp_path):
    server = serve(lambda call: YES(call) if call.number < 20 else fail(503, "unloading")(call))
    requests = [ask(n) for n in range(200)]
    with VerdictCache(tmp_path / "judge.sqlite") as cache:
        told, counts = judged(requests, settings(server, concurrency=4), cache=cache)
        assert counts.yes == 20
        assert counts.failed == 180
        assert counts.stopped is not None
        assert len(server.calls) < 20 + 4 * 3 * 3
        server.behaviour, before = NO, len(server.calls)
        again, counts = judged(requests, settings(server, concurrency=4), cache=cache)
    assert len(server.calls) - before == 180
    assert (counts.cached, counts.yes, counts.no, counts.failed) == (20, 20, 180, 0)
    assert [one for one, new in zip(told, again, strict=True) if one and one[0] == "yes" and one != new] == []


def test_one_answer_between_failures_keeps_the_run_going(serve):
    server = serve(lambda call: YES(call) if call.number % 7 == 0 else fail(500)(call))
    # Requests 0, 7, 14, ... are answered, and a question takes up to three: 0 | 1 2 3 | 4 5 6 | 7 | 8 9 10 | ...,
    # so the first of every three questions is answered, 10 of 30, and two in a row fail, fewer than stop_after.
    _, counts = judged([ask(n) for n in range(30)], settings(server, concurrency=1))
    assert counts.stopped is None
    assert (counts.yes, counts.failed) == (10, 20)


# The cache, merging, progress, interruption


def test_equal_questions_are_asked_once_and_known_ones_never(serve, tmp_path):
    server = serve(YES)
    five_versions = [ask(7)] * 5
    with VerdictCache(tmp_path / "judge.sqlite") as cache:
        told, counts = judged([*five_versions, ask(8)], settings(server), cache=cache)
        assert verdicts(told) == ["yes"] * 6
        assert (len(server.calls), counts.asked, counts.cached) == (2, 2, 0)
        told, counts = judged([*five_versions, ask(8)], settings(server), cache=cache)
        assert verdicts(told) == ["yes"] * 6
        assert (len(server.calls), counts.asked, counts.cached) == (2, 0, 6)
        # Another judge has its own verdicts.
        server.behaviour = NO
        told, _ = judged([ask(7)], settings(server, model="another"), cache=cache)
        assert verdicts(told) == ["no"]


def test_a_run_of_known_answers_needs_no_endpoint(serve, nobody, tmp_path):
    with VerdictCache(tmp_path / "judge.sqlite") as cache:
        judged([ask(1)], settings(serve(YES)), cache=cache)
        told, counts = judged([ask(1)], settings(nobody, api_key_env="MMCORL_TEST_UNSET"), cache=cache)
    assert (verdicts(told), counts.sent) == (["yes"], 0)


def test_unclear_and_failed_are_asked_again_by_the_next_run(serve, tmp_path):
    server = serve(lambda call: Reply("hmm") if "What is 1" in call.prompt else fail(500)(call))
    with VerdictCache(tmp_path / "judge.sqlite") as cache:
        told, _ = judged([ask(1), ask(2)], settings(server), cache=cache)
        assert verdicts(told) == ["unclear", "failed"]
        server.behaviour = YES
        told, counts = judged([ask(1), ask(2)], settings(server), cache=cache)
    assert (verdicts(told), counts.cached) == (["yes", "yes"], 0)


def test_progress_counts_every_answer(serve):
    server = serve(YES)
    seen: list[tuple[int, int]] = []
    requests = [ask(1), ask(1), ask(2)]
    judge_all(requests, settings(server), on_progress=lambda counts: seen.append((counts.done, counts.total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_what_the_listener_raises_comes_through_and_ends_the_run(serve):
    server = serve(say("correct", delay=0.01))

    def full(number: int, verdict: str, raw: str) -> None:
        raise RunError("the disk is full")

    with pytest.raises(RunError, match="the disk is full"):
        judge_all([ask(n) for n in range(200)], settings(server, concurrency=2), full)
    assert len(server.calls) < 20


def test_nothing_to_judge_asks_nothing(nobody):
    assert judge_all([], settings(nobody)).done == 0


def test_it_also_works_where_an_event_loop_runs(serve):
    server = serve(NO)

    async def notebook_cell() -> Counts:
        return judge_all([ask(1)], settings(server))

    assert asyncio.run(notebook_cell()).no == 1


JUDGING = """
import sys
from eval_suite.grading.judge import JudgeRequest, JudgeSettings, VerdictCache, judge_all
url, path, n = sys.argv[1:]
requests = [JudgeRequest(f"What is {k} - 0?", None, str(k), f"{k} apples") for k in range(int(n))]
with VerdictCache(path) as cache:
    judge_all(requests, JudgeSettings(base_url=url, concurrency=4), lambda *told: print(*told, flush=True), cache=cache)
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_killed_midway_the_next_run_asks_only_what_was_under_way_or_not_begun(serve, tmp_path, blow):
    server = serve(lambda call: Reply("correct" if "0 -" in call.prompt else "incorrect", delay=0.05))
    path = tmp_path / "judge.sqlite"
    command = [sys.executable, "-c", JUDGING, server.url, str(path), "300"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = dict(process.stdout.readline().split(" ", 1) for _ in range(40))
        process.send_signal(blow)
        assert process.wait(timeout=30) != 0
        told |= dict(line.split(" ", 1) for line in process.stdout.read().splitlines(keepends=True) if line[-1] == "\n")
    second, counts = judged([ask(n) for n in range(300)], settings(server, concurrency=4), cache=VerdictCache(path))
    # What was told is known. Asked twice is at most what was under way (4), waiting to be kept (4), or being kept
    # (5: the one waited for, and those waiting then).
    assert 300 > counts.cached >= len(told) >= 40
    assert counts.sent == 300 - counts.cached
    assert len(server.calls) - 300 <= 4 + 4 + 5
    assert counts.yes == 30
    assert all(
        f"{verdict} {raw}\n" == told.get(str(n), f"{verdict} {raw}\n") for n, (verdict, raw) in enumerate(second)
    )


def test_answers_of_a_million_characters_and_odd_ones_are_judged(serve):
    server = serve(YES)
    odd = ["7" * 1_000_000, "\\frac{" * 150_000, "\ud800" * 9, "\x00", "", "答案是七" * 250_000, "\n" * 1_000_000, "𝟕"]
    told, _ = judged([JudgeRequest("What?", None, "7", answer) for answer in odd], settings(server))
    assert verdicts(told) == ["yes"] * len(odd)
    assert max(len(json.dumps(dict(call.body), ensure_ascii=False)) for call in server.calls) < 8000


# One at a time


def test_as_callable_is_true_false_or_none(serve):
    server = serve(in_turn(YES, NO, say("perhaps")))
    judge = as_callable(settings(server))
    assert judge("What?", ("4", "5"), "B", "five") is True
    assert judge(None, None, "5", "6") is False
    assert judge("", None, "5", "7") is None
    assert server.calls[0].quoted("Options") == "A. 4\nB. 5"


def test_as_callable_fails_in_a_sentence_and_at_once_when_the_endpoint_is_down(nobody):
    judge = as_callable(settings(nobody, retries=1))
    for _ in range(2):
        with pytest.raises(RunError, match="cannot be reached"):
            judge("What?", None, "5", "five")


# A judge in this process


class Table:
    """A judge that knows a table by heart."""

    name = "table"

    def __init__(self, replies: dict[str, str]) -> None:
        self.replies = replies
        self.asked: list[int] = []

    def ask(self, prompts: list[str]) -> list[JudgeReply]:
        self.asked.append(len(prompts))
        words = [next(word for key, word in self.replies.items() if f"What is {key} -" in prompt) for prompt in prompts]
        return [JudgeReply(word, cut_off=False) for word in words]


def test_a_judge_in_this_process_is_asked_in_batches_and_cached(tmp_path):
    judge = Table({str(n): ("correct", "incorrect", "hm")[n % 3] for n in range(600)})
    requests = [ask(n) for n in range(600)] + [ask(0)]
    with VerdictCache(tmp_path / "judge.sqlite") as cache:
        counts = judge_all(requests, judge, cache=cache)
        assert (counts.yes, counts.no, counts.unclear) == (201, 200, 200)
        assert judge.asked == [256, 256, 88]
        judge_all(requests, judge, cache=cache)
        assert judge.asked == [256, 256, 88, 200]


def test_a_judge_in_this_process_that_loses_replies_is_an_error():
    judge = Table({"1": "correct"})
    judge.ask = lambda prompts: []  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="gave 0 replies to 1 prompts"):
        judge_all([ask(1)], judge)


# The key

KEY = "sk-secret-0123456789"


def test_the_key_is_sent_and_appears_nowhere_else(serve, monkeypatch, caplog, capfd, tmp_path):
    monkeypatch.setenv("MMCORL_TEST_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    echo = in_turn(YES, say(f"you sent {KEY}"), fail(500, f"bad key {KEY}"), fail(400, KEY), fail(401, f"no: {KEY}"))
    server = serve(echo)
    judge = settings(server, api_key_env="MMCORL_TEST_KEY", concurrency=1, retries=0, stop_after=9)
    path = tmp_path / "judge.sqlite"
    with VerdictCache(path) as cache:
        told, counts = judged([ask(n) for n in range(5)], judge, cache=cache)
    assert {call.headers["authorization"] for call in server.calls} == {f"Bearer {KEY}"}
    assert verdicts(told) == ["yes", "unclear", "failed", "failed", "failed"]
    out, err = capfd.readouterr()
    everything = f"{told} {counts} {judge} {judge.facts()} {caplog.text} {out} {err}".encode() + path.read_bytes()
    assert KEY.encode() not in everything
    assert b"***" in everything


def test_a_key_that_is_refused_at_the_start_is_not_repeated(serve, monkeypatch):
    monkeypatch.setenv("MMCORL_TEST_KEY", KEY)
    server = serve(fail(401, f"Incorrect API key provided: {KEY}."))
    _, counts = judged([ask(1)], settings(server, api_key_env="MMCORL_TEST_KEY"))
    assert counts.stopped is not None
    assert "Incorrect API key provided: ***." in counts.stopped


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"base_url": "localhost:8000/v1"},
            "judge 'localhost:8000/v1' is not the address of an endpoint; write it like",
        ),
        ({"base_url": "http://"}, "is not the address of an endpoint"),
        ({"base_url": "http://host:99999/v1"}, "is not the address of an endpoint"),
        ({"base_url": "http://ho st/v1"}, "is not the address of an endpoint"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "the judge's address at host holds a user name"),
        ({"base_url": f"http://host/v1?key={KEY}"}, "the judge's address at host holds a user name, a query"),
        ({"api_key_env": KEY}, "is not the name of an environment variable"),
        ({"model": " "}, "names no model"),
        ({"concurrency": 0}, "judge concurrency 0 is not a whole number of at least 1."),
        ({"retries": -1}, "judge retries -1 is not a whole number of at least 0."),
        ({"max_tokens": True}, "judge max_tokens True is not a whole number"),
        ({"timeout": 0}, "judge timeout 0 is not a number of seconds above 0."),
        ({"patience": float("inf")}, "judge patience inf is not"),
        ({"extra": {"a": object()}}, "cannot be sent as JSON"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_repeating_a_key(changes, sentence):
    with pytest.raises(UserError) as refused:
        JudgeSettings(**changes)
    assert sentence in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "schlüssel"])
def test_a_variable_without_a_key_is_refused_before_anything_is_sent(monkeypatch, nobody, value):
    monkeypatch.delenv("MMCORL_TEST_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MMCORL_TEST_KEY", value)
    with pytest.raises(UserError, match="MMCORL_TEST_KEY") as refused:
        judge_all([ask(1)], settings(nobody, api_key_env="MMCORL_TEST_KEY"))
    if value and value.strip():
        assert value not in str(refused.value)


@pytest.mark.parametrize("suffix", ["", "/", "/chat/completions"])
def test_the_address_may_be_given_with_or_without_the_last_part(serve, suffix):
    told, _ = judged([ask(1)], settings(serve(YES).url + suffix))
    assert verdicts(told) == ["yes"]


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(serve, monkeypatch, nobody):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nobody.removesuffix("/v1"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    told, _ = judged([ask(1)], settings(serve(YES)))
    assert verdicts(told) == ["yes"]
