"""Asks a model what was not asked before: every reply is on disk before anything is made of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mmcorl.answers import RELATION
from mmcorl.llm_client import GREEDY, Breaker, Content, Endpoint, Reply, ReplyCache, Unanswered
from mmcorl.tools.rephrase import prompts


class Asker:
    """One model and what it has said. Equal requests are sent once, also when they come at the same time."""

    def __init__(self, endpoint: Endpoint, cache: ReplyCache) -> None:
        self.breaker = Breaker(endpoint.settings.stop_after)
        self.asked = 0
        """Different requests put to the model in this run."""
        self.known = 0
        """Replies that were known."""
        self._endpoint = endpoint
        self._cache = _Writer(cache)
        self._under_way: dict[str, asyncio.Future[str]] = {}

    async def rewrite(self, content: Content, sampling: Mapping[str, Any]) -> tuple[str | None, str]:
        """See `prompts.read_rewrite`."""
        said = json.loads(await self._ask("rewrite", content, sampling))
        return said[0], said[1]

    async def compare(self, content: Content) -> bool | None:
        """See `prompts.read_comparison`."""
        same: bool | None = json.loads(await self._ask("compare", content, GREEDY))
        return same

    async def solve(self, content: Content, sampling: Mapping[str, Any]) -> str | None:
        """See `prompts.read_solution`."""
        answer: str | None = json.loads(await self._ask("solve", content, sampling))
        return answer

    async def settle(self) -> None:
        """Return when all that was replied is on disk."""
        await self._cache.settle()

    async def _ask(self, kind: str, content: Content, sampling: Mapping[str, Any]) -> str:
        """What was read of the reply, as JSON.

        Raises:
            Unanswered: no reply came; nothing is remembered, the next run asks again.
            Stop: nor will one come to other requests.
        """
        request = self._endpoint.settings.body(content, sampling)
        version = [prompts.PROMPT_VERSION, *(RELATION if kind == "solve" else ())]
        key = hashlib.sha256(json.dumps([kind, version, request], sort_keys=True).encode()).hexdigest()
        if key in self._under_way:
            self.known += 1
            return await asyncio.shield(self._under_way[key])
        known = self._cache.get(key)
        if known is not None:
            self.known += 1
            return known
        future = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            said = await self._cache.keep(key, await self._read(kind, content, sampling))
            future.set_result(said)
            return said
        except Unanswered as trouble:
            future.set_exception(trouble)
            future.exception()  # Looked at here, as nobody else may be waiting for it.
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._under_way[key]

    async def _read(self, kind: str, content: Content, sampling: Mapping[str, Any]) -> str:
        self.asked += 1
        try:
            reply = await self._endpoint.ask(content, sampling)
        except Unanswered as trouble:
            self.breaker.failure(trouble)
            raise
        self.breaker.success()
        # JSON can carry half a character, files cannot.
        reply = Reply(reply.text.encode("utf-8", "replace").decode(), reply.cut_off)
        # What is read of it, not the reply: thoughts would take gigabytes for a large set.
        if kind == "rewrite":
            return json.dumps(prompts.read_rewrite(reply), ensure_ascii=False)
        if kind == "compare":
            return json.dumps(prompts.read_comparison(reply))
        return json.dumps(prompts.read_solution(reply), ensure_ascii=False)


class _Writer:
    """Puts replies on disk as many at once as are in: to commit many costs no more than to commit one."""

    def __init__(self, cache: ReplyCache) -> None:
        self._cache = cache
        self._waiting: list[tuple[str, str, asyncio.Future[str]]] = []
        self._writing: asyncio.Task[None] | None = None

    def get(self, key: str) -> str | None:
        return self._cache.get([key]).get(key)

    async def keep(self, key: str, reply: str) -> str:
        """The reply that holds once it is on disk; another process may have set it. Raises RunError."""
        held: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, reply, held))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        # A lane that is cancelled leaves the writing to go on for the others.
        return await asyncio.shield(held)

    async def settle(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                held = await asyncio.to_thread(self._cache.put, {key: reply for key, reply, _ in batch})
            except Exception as error:
                for _, _, future in batch:
                    future.set_exception(error)
                    future.exception()  # Looked at here, as who waits may have been cancelled.
                return
            for key, _, future in batch:
                future.set_result(held[key])
