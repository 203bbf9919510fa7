"""Settings of a judge behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eval_suite.grading.judge.prompt import PROMPT_VERSION
from mmcorl.llm_client import EndpointSettings


@dataclass(frozen=True)
class JudgeSettings(EndpointSettings):
    """An endpoint that serves a judge; the defaults are the paper's judge on vLLM.

    Raises:
        UserError: a setting that cannot work.
    """

    ROLE: ClassVar[str] = "judge"
    KEY_OPTION: ClassVar[str] = "--judge-key-env, or api_key_env in Python"

    model: str = "Qwen/Qwen2.5-32B-Instruct"
    """Name under which the endpoint serves the judge."""
    max_tokens: int = 8
    """Maximum length of the reply. A reasoning judge needs more, and its reply must still be one word."""

    def facts(self) -> dict[str, str]:
        """Return what is recorded beside every verdict."""
        return {"model": self.name, "prompt_version": PROMPT_VERSION}
