"""Why a response ended, in the words of every API and harness."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

Finish = Literal["stop", "length", "unknown"]
_KNOWN: Mapping[str, Finish] = {
    **dict.fromkeys(("stop", "stop_token", "stop_sequence", "eos", "eos_token", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("completed", "finished"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_new_tokens", "max_output_tokens", "max_completion_tokens"), "length"),
    **dict.fromkeys(("max_length", "model_length", "token_limit", "incomplete", "truncated"), "length"),
    "model_context_window_exceeded": "length",
}
_BETWEEN = re.compile(r"[^a-z0-9]+")
FINISH_COLUMNS = ("finish_reason", "finish_reasons", "stop_reason", "finishReason", "stopReason", "done_reason")
"""Names under which rows keep it."""


def finish_of(reason: Any) -> Finish:
    """Return why a response ended; `unknown` for None and what no API says.

    Reads names in any case (`MAX_TOKENS`, `FinishReason.STOP`), and objects by their `type` or `reason`, as SGLang
    (`{"type": "length", "length": 512}`) and OpenAI's Responses API write them.
    """
    if isinstance(reason, Mapping):
        reason = reason.get("type", reason.get("reason"))
    name = str(getattr(reason, "value", reason)).rpartition(".")[2]
    return _KNOWN.get(_BETWEEN.sub("_", name.lower()), "unknown")
