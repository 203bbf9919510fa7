"""Score each answer of a debate in [0, 1]: by the known answer, by the majority vote, or by a served model."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcorl.answers.relation import Relation
from mmcorl.errors import RunError
from mmcorl.interactions.base import Reply
from mmcorl.interactions.debate import Verifier
from mmcorl.interactions.settings import VerifierSettings
from mmcorl.labels.voting import TieRule, majority
from mmcorl.llm_client import Content, EndpointSettings, Outcome, Prompt, ReplyCache, map_prompts
from mmcorl.prompts import discussion as prompts
from mmcorl.rewards import match
from mmcorl.types import Group, PseudoLabel
from model_adapters.templates import PLACE, without


def by_label(relation: Relation, kind: str, tie: TieRule = "first_seen") -> Verifier:
    """Score 1 where the answer equals the label, else 0: the known answer (`gold`) or the majority vote (`majority`).

    The vote counts every answer of a step to the same problem, over all agents, turns and conversations, and needs no
    known answer; without a winner every answer scores 0.
    """

    def verify(calls: Sequence[Reply]) -> list[float | None]:
        by_problem: dict[str, list[int]] = {}
        for index, call in enumerate(calls):
            by_problem.setdefault(call.request.problem.uid, []).append(index)
        scores: list[float | None] = [None] * len(calls)
        for uid, places in by_problem.items():
            problem = calls[places[0]].request.problem
            group = Group(uid, tuple(calls[index].completion for index in places))
            label = PseudoLabel(uid, problem.gold, kind, problem.accepted)
            if kind == "majority":
                vote = majority(group.answers, relation, choices=problem.choices, tie=tie)
                label = PseudoLabel(uid, vote.answer, kind)
            earned = match(group.answers, label, relation, problem.choices)
            for index, value in zip(places, earned, strict=True):
                scores[index] = value
        return scores

    return verify


class VerifierCache(ReplyCache):
    """Replies of a served verifier."""

    NAME = "cache of the verifier"
    SCHEMA = 301


class Served:
    """A model behind an OpenAI-compatible endpoint estimates the probability that each solution is right.

    Its replies are kept in a file of the run folder, so that a run that is killed and resumed reads the same. A reply
    without a probability scores None. Raises RunError where the endpoint does not answer.
    """

    def __init__(self, settings: VerifierSettings, cache: Path):
        self.settings, self.cache = settings, cache
        self.endpoint = endpoint_of(settings)

    def __call__(self, calls: Sequence[Reply]) -> list[float | None]:
        scores: list[float | None] = [None] * len(calls)

        def score(index: int, outcome: Outcome) -> None:
            if not isinstance(outcome, str):
                raise RunError(f"a solution could not be verified: {outcome}")
            scores[index] = prompts.read_probability(outcome)

        contents = [self._content(call) for call in calls]
        with VerifierCache(self.cache) as cache:
            map_prompts([Prompt(self._key(text), text) for text in contents], self.endpoint, score, cache=cache)
        return scores

    def _content(self, call: Reply) -> Content:
        problem = call.request.problem
        solution = call.completion.text.strip()
        if not problem.images:
            return prompts.verify(problem.conversation, solution)
        images = [_image_part(data) for data in problem.images]
        asked = prompts.verify(problem.conversation, without(solution, (PLACE,))).split(PLACE)
        texts = [{"type": "text", "text": text} for text in asked]
        if len(texts) == 1:
            return [*images, *texts]
        return [part for pair in zip(texts, images, strict=False) for part in pair] + texts[-1:]

    def _key(self, content: Content) -> str:
        request = json.dumps([self.endpoint.name, self.endpoint.max_tokens, content], sort_keys=True)
        return hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest()


def endpoint_of(settings: VerifierSettings) -> EndpointSettings:
    """Return the verifier's endpoint; raises UserError for an address or a name that cannot work."""
    return EndpointSettings(
        base_url=settings.base_url,
        model=settings.model or "",
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        max_tokens=settings.max_tokens,
    )


def _image_part(data: bytes) -> dict[str, Any]:
    kind = "png" if data.startswith(b"\x89PNG") else "webp" if data[8:12] == b"WEBP" else "jpeg"
    encoded = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{encoded}"}}
