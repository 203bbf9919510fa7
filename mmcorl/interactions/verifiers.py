"""How good an answer of a debate is, in [0, 1]: by the known answer, by what most answers say, or by a served model."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcorl.config import VerifierSettings
from mmcorl.errors import RunError
from mmcorl.interactions import prompts
from mmcorl.interactions.base import Call
from mmcorl.interactions.debate import Verifier
from mmcorl.labels.voting import Relation, TieRule, majority
from mmcorl.llm_client import Content, Endpoint, EndpointSettings, ReplyCache, Unanswered, to_the_end
from mmcorl.rewards import match
from mmcorl.types import Group, PseudoLabel


def by_label(relation: Relation, kind: str, tie: TieRule = "first_seen") -> Verifier:
    """1 where the answer equals the label, else 0: the known answer (`gold`), or the vote of all answers (`majority`).

    The vote is over every answer of a step about the same problem, of all agents, turns and conversations, so that it
    needs no known answer; without a winner every answer scores 0.
    """

    def verify(calls: Sequence[Call]) -> list[float | None]:
        about: dict[str, list[int]] = {}
        for index, call in enumerate(calls):
            about.setdefault(call.ask.talk.problem.uid, []).append(index)
        scores: list[float | None] = [None] * len(calls)
        for uid, places in about.items():
            problem = calls[places[0]].ask.talk.problem
            group = Group(uid, tuple(calls[index].completion for index in places))
            label = problem.gold
            if kind == "majority":
                label = majority(group.answers, relation, choices=problem.choices, tie=tie).answer
            earned = match(group.answers, PseudoLabel(uid, label, kind), relation, problem.choices)
            for index, value in zip(places, earned, strict=True):
                scores[index] = value
        return scores

    return verify


class VerifierCache(ReplyCache):
    """What a served verifier said."""

    NAME = "cache of the verifier"
    SCHEMA = 301


class Served:
    """A model behind an OpenAI-compatible endpoint gives each solution a probability of being right.

    Its replies are kept in a file of the run folder: a run that is killed and resumed hears the same. A reply without
    a probability gives None. Raises RunError where the endpoint does not answer.
    """

    def __init__(self, settings: VerifierSettings, cache: Path):
        self.settings, self.cache = settings, cache
        self.endpoint = endpoint_of(settings)

    def __call__(self, calls: Sequence[Call]) -> list[float | None]:
        contents = [self._content(call) for call in calls]
        keys = [self._key(content) for content in contents]
        with VerifierCache(self.cache) as cache:
            known = cache.get(list(dict.fromkeys(keys)))
            missing = {key: content for key, content in zip(keys, contents, strict=True) if key not in known}
            if missing:
                try:
                    known |= cache.put(to_the_end(self._asked(missing)))
                except Unanswered as error:
                    raise RunError(f"a solution could not be verified: {error}") from error
        return [prompts.read_probability(known[key]) for key in keys]

    async def _asked(self, contents: dict[str, Content]) -> dict[str, str]:
        room = asyncio.Semaphore(self.endpoint.concurrency)
        async with Endpoint(self.endpoint) as endpoint:

            async def ask(key: str, content: Content) -> tuple[str, str]:
                async with room:
                    return key, (await endpoint.ask(content)).text

            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(ask(*one)) for one in contents.items()]
        return dict(one.result() for one in made)

    def _content(self, call: Call) -> Content:
        problem = call.ask.talk.problem
        text = prompts.verify(problem.text, call.completion.text.strip())
        return (
            [*(_picture(data) for data in problem.images), {"type": "text", "text": text}] if problem.images else text
        )

    def _key(self, content: Content) -> str:
        asked = json.dumps([self.endpoint.name, self.endpoint.max_tokens, content], sort_keys=True)
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()


def endpoint_of(settings: VerifierSettings) -> EndpointSettings:
    """Where the verifier is served; UserError for an address or a name that cannot work."""
    return EndpointSettings(
        base_url=settings.base_url,
        model=settings.model or "",
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        max_tokens=settings.max_tokens,
    )


def _picture(data: bytes) -> dict[str, Any]:
    kind = "png" if data.startswith(b"\x89PNG") else "webp" if data[8:12] == b"WEBP" else "jpeg"
    encoded = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{encoded}"}}
