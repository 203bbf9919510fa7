"""The model client on a real server: retries, rate limits, outages, the reply cache, and kills."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest

from mmcorl.errors import RunError, UserError
from mmcorl.llm_client import EndpointSettings, MapSummary, Outcome, Prompt, ReplyCache, Unanswered, map_prompts
from mmcorl.llm_client.client import _retry_after
from openai_server import Call, OpenAIServer, Reply, fail, in_turn, say
from paths import ROOT

YES = say("yes")
KEY = "sk-secret-0123456789"


def quickly(status: int, message: str = "no") -> Callable[[Call], Reply]:
    """An error after which a retry is wanted at once."""
    return fail(status, message, retry_after_ms="1")


def settings(server: OpenAIServer | str, **changes: Any) -> EndpointSettings:
    url = server if isinstance(server, str) else server.url
    return EndpointSettings(
        base_url=url, **{"model": "m", "timeout": 2.0, "retries": 2, "patience": 2.0, "stop_after": 3, **changes}
    )


def texts(n: int) -> list[Prompt]:
    return [Prompt(f"key {k}", f"What is {k} - 0?") for k in range(n)]


def mapped(
    prompts: list[Prompt], endpoint: EndpointSettings, **other: Any
) -> tuple[list[str], list[Outcome], MapSummary]:
    """What came of each prompt (the reply, or `!kind` of the failure), each reported once, and the summary."""
    outcomes: dict[int, Outcome] = {}

    def report(index: int, outcome: Outcome) -> None:
        assert index not in outcomes
        outcomes[index] = outcome

    summary = map_prompts(prompts, endpoint, report, **other)
    ordered = [outcomes[index] for index in range(len(prompts))]
    return [f"!{it.kind}" if isinstance(it, Unanswered) else str(it) for it in ordered], ordered, summary


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


# Requests and replies


def test_one_user_message_with_the_sampling_and_the_extra_fields(serve, monkeypatch):
    # The openai client would take these of the environment.
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    server = serve(YES)
    endpoint = settings(server, extra={"max_tokens": None, "max_completion_tokens": 64, "seed": 3})
    words, _, summary = mapped([Prompt("k", "What?", {"temperature": 0.5}), Prompt("l", lambda: "Who?")], endpoint)
    assert words == ["yes", "yes"]
    first, second = server.calls
    assert first.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "What?"}],
        "temperature": 0.5,
        "max_completion_tokens": 64,
        "seed": 3,
    }
    assert (second.prompt, second.body["temperature"]) == ("Who?", 0)
    assert not [name for call in server.calls for name, value in call.headers.items() if KEY in value]
    assert "authorization" not in first.headers
    assert (summary.asked, summary.sent, summary.cached, summary.failures) == (2, 2, 0, {})
    assert endpoint.name == 'm {"max_completion_tokens": 64, "max_tokens": null, "seed": 3}'


def test_the_address_in_all_its_forms_and_without_a_proxy_for_this_machine(serve, monkeypatch, nobody):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nobody.removesuffix("/v1"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for suffix in ("", "/", "/chat/completions"):
        assert mapped(texts(1), settings(serve(YES).url + suffix))[0] == ["yes"]


def test_concurrency_is_bounded_and_each_prompt_gets_its_own_reply(serve):
    server = serve(lambda call: Reply(call.prompt, delay=0.01 * (call.number % 3)))
    words, _, _ = mapped(texts(41), settings(server, concurrency=4))
    assert words == [f"What is {k} - 0?" for k in range(41)]
    assert 2 <= server.most_at_once <= 4


def test_it_works_where_an_event_loop_runs_and_with_nothing_to_ask(serve, nobody):
    async def notebook_cell() -> list[str]:
        return mapped(texts(1), settings(serve(YES)))[0]

    assert asyncio.run(notebook_cell()) == ["yes"]
    assert mapped([], settings(nobody))[0] == []


# Faults that pass

FAULTS = {
    "500": quickly(500),
    "502": quickly(502),
    "408": quickly(408),
    "409": quickly(409),
    "dropped": say("", disconnect=True),
    "no json": say("", body=b"{not json"),
    "html": say("", body=b"<html>bad gateway</html>"),
    "list": say("", body=b"[]"),
    "no choice": say("", body=b'{"choices": []}'),
    "no message": say("", body=b'{"choices": [{"message": "yes"}]}'),
    "a list of texts": say("", body=b'{"choices": [{"message": {"content": ["yes"]}}]}'),
    "deep": say("", body=b"[" * 100_000),
    "empty": say("", body=b""),
    "endless": say("", endless=b" " * 65536),
    "endless error": say("", status=500, endless=b" " * 65536, headers={"retry-after-ms": "1"}),
    "gzip bomb": say("", body=gzip.compress(b" " * 2**26), headers={"Content-Encoding": "gzip"}),
    "no gzip": say("", headers={"Content-Encoding": "gzip"}),
    "slow": say("no", delay=30),
    # A body of some 130 bytes at 0.05 s each would never let a limit on single reads expire.
    "dripping": say("no", drip=0.05),
}


def test_every_fault_is_retried(serve):
    # Each prompt meets its own fault at its first two requests.
    met = dict.fromkeys(FAULTS, 0)

    def behave(call: Call) -> Reply:
        if call.prompt == "first":
            return YES(call)
        met[call.prompt] += 1
        return FAULTS[call.prompt](call) if met[call.prompt] <= 2 else YES(call)

    prompts = [Prompt(name, name) for name in ("first", *FAULTS)]
    words, _, summary = mapped(prompts, settings(serve(behave), timeout=1.0, concurrency=len(FAULTS)))
    assert words == ["yes"] * len(prompts)
    assert set(met.values()) == {3}
    assert (summary.sent, summary.failures) == (1 + 3 * len(FAULTS), {})


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (quickly(500, "out of memory"), "500", 'answered 500 to 3 tries (it said: "out of memory")'),
        (say("", disconnect=True), "connection", "broke the connection"),
        (say("", body=b"<html>hello</html>"), "malformed", 'no chat completion (it said: "<html>hello</html>")'),
        (say("", delay=30), "timeout", "gave no reply within 0.3 s"),
    ],
)
def test_a_fault_that_stays_fails_after_the_retries_and_is_explained_once(serve, fault, kind, sentence):
    server = serve(lambda call: YES(call) if "What is 0" in call.prompt else fault(call))
    words, outcomes, summary = mapped(texts(3), settings(server, timeout=0.3, concurrency=2))
    assert words == ["yes", f"!{kind}", f"!{kind}"]
    assert len(server.calls) == 1 + 2 * 3
    assert {name: failure.questions for name, failure in summary.failures.items()} == {kind: 2}
    assert sentence in summary.failures[kind].sentence
    assert sentence in str(outcomes[2])
    assert summary.stopped is None


# Rate limits


def test_retry_after_is_obeyed_by_every_request(serve):
    limit, slow = fail(429, retry_after="0.3"), say("yes", delay=0.02)
    server = serve(lambda call: limit(call) if call.number == 5 else slow(call))
    words, _, summary = mapped(texts(60), settings(server, concurrency=4))
    assert (words, summary.sent) == (["yes"] * 60, 61)
    # All four lanes together are silent for that long.
    assert max(b.time - a.time for a, b in pairwise(server.calls[5:])) >= 0.29


def test_a_limited_endpoint_answers_everything_in_the_end(serve):
    # Five requests per 0.1 s, as a token bucket that is refilled whole; retries=2 alone would lose many.
    windows: dict[int, int] = {}

    def limited(call: Call) -> Reply:
        window = int(call.time / 0.1)
        windows[window] = windows.get(window, 0) + 1
        return YES(call) if windows[window] <= 5 else fail(429, "slow down", retry_after="0.1")(call)

    words, _, summary = mapped(texts(40), settings(serve(limited), concurrency=16, patience=20.0))
    assert (words, summary.stopped) == (["yes"] * 40, None)


def test_a_wait_beyond_patience_fails_at_once_and_ends_the_run(serve):
    server = serve(in_turn(YES, fail(429, "come back tomorrow", retry_after="3600")))
    began = time.monotonic()
    words, _, summary = mapped(texts(50), settings(server, concurrency=1))
    assert time.monotonic() - began < 10
    assert words == ["yes", *["!429"] * 3, *["!stopped"] * 46]
    # One answered, three in a row that failed (stop_after), nobody hammered.
    assert len(server.calls) == 4
    assert summary.stopped is not None
    assert summary.stopped.startswith("3 questions in a row failed, the last because the endpoint at http://127.0.0.1")
    assert "asking for 3600 s" in summary.stopped


def test_a_wait_longer_than_the_openai_client_accepts_is_obeyed(serve, monkeypatch):
    monkeypatch.setattr("openai._base_client.MAX_RETRY_AFTER_DELAY", 0.1)
    monkeypatch.setattr("mmcorl.llm_client.client._SDK_LIMIT", 0.1)
    for fault in (fail(429, retry_after="0.3"), fail(503, retry_after="0.3")):
        server = serve(in_turn(fault, YES))
        assert mapped(texts(1), settings(server))[0] == ["yes"]
        assert server.calls[1].time - server.calls[0].time >= 0.29


def test_patience_bounds_a_limit_that_never_ends(serve):
    began = time.monotonic()
    assert mapped(texts(1), settings(serve(fail(429)), patience=0.5, retries=0))[0] == ["!429"]
    assert time.monotonic() - began < 10


def test_retry_after_is_read():
    for headers, seconds in [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "150", "retry-after": "1"}, 0.15),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        *(({"retry-after": text}, None) for text in ("soon", "-1", "nan", "1e999", "")),
    ]:
        assert _retry_after(headers) == seconds
    assert 98 < (_retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)}) or 0) <= 100


# What no retry would change


REFUSALS = [
        (401, "Incorrect API key", 'answered 401: it refused the key; name a variable with a key it accepts (api_key_env) (it said: "Incorrect API key").'),  # noqa: E501
        (403, "", "answered 403: it forbids it; check the key and what it may use."),
        (404, "The model `m` does not exist.", "does not know the address or the model 'm'; check that its address ends in /v1"),  # noqa: E501
        (405, "", "takes no chat completions"),
        (307, "", "redirects are not followed"),
]  # fmt: skip


def test_a_wrong_key_model_or_address_is_reported_after_one_request(serve):
    for status, message, sentence in REFUSALS:
        server = serve(fail(status, message, location="http://127.0.0.1:9/v1"))
        words, _, summary = mapped(texts(50), settings(server))
        assert len(server.calls) == 1
        assert words == [f"!{status}", *["!stopped"] * 49]
        assert sentence in (summary.stopped or "")
        assert "\n" not in (summary.stopped or "")
        assert [failure.questions for failure in summary.failures.values()] == [1]


def test_a_spent_quota_is_not_a_rate_limit(serve):
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    server = serve(say("", status=429, body=json.dumps(body).encode(), headers={"x-should-retry": "false"}))
    summary = mapped(texts(9), settings(server))[2]
    assert len(server.calls) == 1
    assert "quota is spent" in (summary.stopped or "")


def test_one_refused_question_does_not_stop_the_others(serve):
    # A question too long for the model's context, in vLLM's words; asked first, before anything was answered.
    narrow = fail(400, "This model's maximum context length is 4096 tokens.")
    server = serve(lambda call: narrow(call) if "What is 0" in call.prompt else YES(call))
    words, _, summary = mapped(texts(20), settings(server))
    assert words == ["!400"] + ["yes"] * 19
    assert (len(server.calls), summary.stopped) == (20, None)
    assert 'refused the request with 400 (it said: "This model' in summary.failures["400"].sentence


# Outages


def test_an_endpoint_that_is_down_is_reported_in_one_sentence_after_one_question(nobody):
    words, _, summary = mapped(texts(3000), settings(nobody))
    assert summary.sent == 3
    assert words == ["!connect", *["!stopped"] * 2999]
    assert (summary.stopped or "").startswith(f"the endpoint at {nobody} cannot be reached (")
    assert (summary.stopped or "").endswith("); start it, or correct its address.")


def test_an_endpoint_that_goes_down_ends_the_run_and_the_next_run_asks_only_the_rest(serve, tmp_path):
    server = serve(lambda call: YES(call) if call.number < 20 else quickly(503, "unloading")(call))
    with ReplyCache(tmp_path / "replies.sqlite") as cache:
        words, _, summary = mapped(texts(200), settings(server, concurrency=4), cache=cache)
        assert words.count("yes") == 20
        assert summary.stopped is not None
        assert len(server.calls) < 20 + 4 * 3 * 3
        server.behaviour, before = say("no"), len(server.calls)
        again, _, summary = mapped(texts(200), settings(server, concurrency=4), cache=cache)
    assert len(server.calls) - before == 180
    assert (summary.cached, again.count("yes"), again.count("no")) == (20, 20, 180)
    assert [one for one, new in zip(words, again, strict=True) if one == "yes" and new != one] == []


def test_one_answer_between_failures_keeps_the_run_going(serve):
    # Requests 0, 7, 14, ... are answered, and a question takes up to three: 0 | 1 2 3 | 4 5 6 | 7 | 8 9 10 | ...,
    # so the first of every three questions is answered, 10 of 30, and two in a row fail, fewer than stop_after.
    server = serve(lambda call: YES(call) if call.number % 7 == 0 else quickly(500)(call))
    words, _, summary = mapped(texts(30), settings(server, concurrency=1))
    assert (summary.stopped, words.count("yes"), words.count("!500")) == (None, 10, 20)


# Cache, merging, kills


def test_equal_prompts_are_asked_once_and_known_ones_need_no_endpoint(serve, nobody, tmp_path):
    server = serve(YES)
    prompts = [*texts(1) * 5, *texts(2)]
    with ReplyCache(tmp_path / "replies.sqlite") as cache:
        words, _, summary = mapped(prompts, settings(server), cache=cache)
        assert (words, len(server.calls), summary.asked, summary.cached) == (["yes"] * 7, 2, 2, 0)
        words, _, summary = mapped(prompts, settings(nobody, api_key_env="MMCORL_TEST_UNSET"), cache=cache)
        assert (words, summary.asked, summary.cached) == (["yes"] * 7, 0, 7)


def test_declined_replies_and_failures_are_asked_again_by_the_next_call(serve, tmp_path):
    server = serve(lambda call: Reply("hmm") if "What is 0" in call.prompt else quickly(500)(call))

    def keep(reply: Any) -> str | None:
        return reply.text.upper() if reply.text == "yes" else None

    with ReplyCache(tmp_path / "replies.sqlite") as cache:
        words, outcomes, _ = mapped(texts(2), settings(server), cache=cache, keep=keep)
        assert (getattr(outcomes[0], "text", None), words[1]) == ("hmm", "!500")
        server.behaviour = YES
        words, _, summary = mapped(texts(2), settings(server), cache=cache, keep=keep)
    assert (words, summary.cached) == (["YES", "YES"], 0)


def test_what_the_listener_raises_comes_through_and_ends_the_run(serve):
    server = serve(say("yes", delay=0.01))

    def full(index: int, outcome: Outcome) -> None:
        raise RunError("the disk is full")

    with pytest.raises(RunError, match="the disk is full"):
        map_prompts(texts(200), settings(server, concurrency=2), full)
    assert len(server.calls) < 20


ASKING = """
import sys
from mmcorl.llm_client import EndpointSettings, Prompt, ReplyCache, map_prompts
url, path = sys.argv[1:]
prompts = [Prompt(f"key {k}", f"What is {k} - 0?") for k in range(300)]
with ReplyCache(path) as cache:
    endpoint = EndpointSettings(base_url=url, model="m", concurrency=4)
    map_prompts(prompts, endpoint, lambda index, text: print(index, text, flush=True), cache=cache)
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_midway_the_next_run_asks_only_what_was_under_way_or_not_begun(serve, tmp_path, blow):
    server = serve(lambda call: Reply(call.prompt, delay=0.03))
    path = tmp_path / "replies.sqlite"
    command = [sys.executable, "-c", ASKING, server.url, str(path)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(40)]
        process.send_signal(blow)
        assert process.wait(timeout=30) != 0
        reported += [line for line in process.stdout.read().splitlines(keepends=True) if line[-1] == "\n"]
    with ReplyCache(path) as cache:
        words, _, summary = mapped(texts(300), settings(server, concurrency=4), cache=cache)
    # What was reported is known. Asked twice is at most what was under way (4), waiting to be kept (4), or being kept
    # (5: the one waited for, and those waiting then).
    assert 300 > summary.cached >= len(reported) >= 40
    assert summary.sent == 300 - summary.cached
    assert len(server.calls) - 300 <= 4 + 4 + 5
    assert words == [f"What is {k} - 0?" for k in range(300)]
    assert {line.strip() for line in reported} <= {f"{k} {word}" for k, word in enumerate(words)}


def test_the_first_reply_in_the_cache_stays(tmp_path):
    path = tmp_path / "new" / "replies.sqlite"
    with ReplyCache(path) as cache:
        assert cache.get(["a"]) == {}
        assert cache.put({"a": "one", "b": "two"}) == {"a": "one", "b": "two"}
    with ReplyCache(path) as cache:
        assert cache.put({"a": "three"}) == {"a": "one"}
        # More keys than a query takes.
        many = {str(n): "four" for n in range(1700)}
        cache.put(many)
        assert cache.get([*many, "a", "c"]) == many | {"a": "one"}
        cache.forget(["a"])
        assert cache.get(["a"]) == {}


WRITER = """
import sys
from mmcorl.llm_client import ReplyCache
path, word = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with ReplyCache(path) as cache:
    for start in range(0, 200, 10):
        cache.put({str(n): word for n in range(start, start + 10)})
    held = cache.get([str(n) for n in range(200)])
print(*(held[str(n)] for n in range(200)))
"""


def test_two_processes_start_on_one_cache_at_once_and_agree(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "r.sqlite"), word],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for word in ("yes", "no")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    held = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(held[0]) == 200
    assert held[0] == held[1]


def test_a_cache_that_cannot_be_used_is_explained_and_left_alone(tmp_path):
    notes, other, path = tmp_path / "notes.txt", tmp_path / "other.sqlite", tmp_path / "full.sqlite"
    notes.write_text("my notes " * 500)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (x)")
    connection.close()
    with pytest.raises(UserError, match=r"notes\.txt is no reply cache .*; move it away or name another\.$"):
        ReplyCache(notes)
    assert notes.read_text().startswith("my notes")
    with pytest.raises(UserError, match=r"says 0, not 101.*move it away"):
        ReplyCache(other)
    for place in (notes / "r.sqlite", tmp_path):
        with pytest.raises(RunError, match="cannot be used"):
            ReplyCache(place)
    with ReplyCache(path) as cache:
        cache.put({"a": "yes"})
        (pages,) = cache._connection.execute("PRAGMA page_count").fetchone()
        cache._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(RunError, match="full"):
            cache.put({str(n) * 40: "yes" for n in range(500)})
        assert cache.get(["a"]) == {"a": "yes"}


# The key


def test_the_key_is_sent_and_appears_nowhere_else(serve, monkeypatch, caplog, capfd, tmp_path):
    monkeypatch.setenv("MMCORL_TEST_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    echo = in_turn(YES, say(f"you sent {KEY}"), fail(500, f"bad key {KEY}"), fail(400, KEY), fail(401, f"no: {KEY}"))
    server = serve(echo)
    endpoint = settings(server, api_key_env="MMCORL_TEST_KEY", concurrency=1, retries=0, stop_after=9)
    path = tmp_path / "replies.sqlite"
    with ReplyCache(path) as cache:
        words, outcomes, summary = mapped(texts(5), endpoint, cache=cache)
    assert {call.headers["authorization"] for call in server.calls} == {f"Bearer {KEY}"}
    assert words == ["yes", "you sent ***", "!500", "!400", "!401"]
    everything = f"{outcomes} {summary} {endpoint} {caplog.text} {capfd.readouterr()}".encode() + path.read_bytes()
    assert KEY.encode() not in everything
    server.behaviour = fail(401, f"Incorrect API key provided: {KEY}.")
    assert "Incorrect API key provided: ***." in (mapped(texts(1), endpoint)[2].stopped or "")


def test_settings_that_cannot_work_are_refused_without_repeating_a_key():
    for changes, sentence in [
        ({"base_url": "localhost:8000/v1"}, "'localhost:8000/v1' is not the address of an endpoint; write it like"),
        ({"base_url": "http://"}, "is not the address of an endpoint"),
        ({"base_url": "http://host:99999/v1"}, "is not the address of an endpoint"),
        ({"base_url": "http://ho st/v1"}, "is not the address of an endpoint"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "the endpoint's address at host holds a user name"),
        ({"base_url": f"http://host/v1?key={KEY}"}, "the endpoint's address at host holds a user name, a query"),
        ({"api_key_env": KEY}, "is not the name of an environment variable"),
        ({"model": " "}, "names no model"),
        ({"concurrency": 0}, "endpoint concurrency 0 is not a whole number of at least 1."),
        ({"retries": -1}, "endpoint retries -1 is not a whole number of at least 0."),
        ({"max_tokens": True}, "endpoint max_tokens True is not a whole number"),
        ({"timeout": 0}, "endpoint timeout 0 is not a number of seconds above 0."),
        ({"patience": float("inf")}, "endpoint patience inf is not"),
        ({"extra": {"a": object()}}, "cannot be sent as JSON"),
    ]:
        with pytest.raises(UserError) as refused:
            EndpointSettings(**{"model": "m", **changes})
        assert sentence in str(refused.value)
        assert KEY not in str(refused.value)


def test_a_variable_without_a_key_is_refused_before_anything_is_sent(monkeypatch, nobody):
    for value in ("", "  ", "two words", "schlüssel"):
        monkeypatch.setenv("MMCORL_TEST_KEY", value)
        with pytest.raises(UserError, match="MMCORL_TEST_KEY") as refused:
            mapped(texts(1), settings(nobody, api_key_env="MMCORL_TEST_KEY"))
        assert not value.strip() or value not in str(refused.value)
