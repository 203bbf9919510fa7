"""What a row says of its responses beside their text: how each ended, and whether it continues a thought of the prompt.

Servers and harnesses say it in several ways: completions of APIs as objects (OpenAI's chats and responses, Anthropic's
messages, also in a batch; Ollama's), a reason why it ended, thoughts in a column of their own, or the rendered prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmcorl.answers.thinking import opens_thinking, without_thoughts
from mmcorl.grading.finish import FINISH_COLUMNS, Finish, finish_of

THOUGHT_COLUMNS = ("reasoning_content", "reasoning", "thinking")
"""Names under which servers and harnesses keep thoughts that they took out of a response."""
PROMPT_COLUMNS = ("arguments", "input", "prompt", "full_prompt", "formatted_prompt", "rendered_prompt")
_WITHIN = ("response", "body", "result", "message", "completion", "output")
_ENDING = FINISH_COLUMNS[0]
_THOUGHTS = THOUGHT_COLUMNS[0]


def unwrapped(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; one that holds an API's completion with its texts, reasons and thoughts in columns of their own."""
    completions = _completions(row)
    if completions is None and _brought_none(row):
        completions = [(None, None, None)]
    if completions is None:
        return dict(row)
    texts, endings, thoughts = zip(*completions, strict=True) if completions else ((), (), ())
    # The id of a batch's line is the request's; its problem is what the user named.
    named = {"id": row["custom_id"]} if "custom_id" in row else {}
    kept = {key: value for key, value in row.items() if key not in ("choices", *_WITHIN)}
    return kept | named | {"response": list(texts), _ENDING: list(endings), _THOUGHTS: list(thoughts)}


def _brought_none(row: Mapping[str, Any]) -> bool:
    """Return whether a row is the line of a request in a batch, OpenAI's or Anthropic's, that failed."""
    if "custom_id" not in row:
        return False
    response, result = row.get("response"), row.get("result")
    if isinstance(result, Mapping):
        return result.get("type") in ("errored", "canceled", "expired")
    refused = isinstance(response, Mapping) and response.get("status_code", 200) != 200
    return refused or ("response" in row and response is None)


def _completions(value: Any, depth: int = 3) -> list[tuple[Any, Any, Any]] | None:
    """Return text, reason of the end and thoughts of each completion in an object; None where it is none."""
    if not isinstance(value, Mapping) or depth < 0:
        return None
    choices = value.get("choices")
    if isinstance(choices, list) and choices and all(_is_choice(choice) for choice in choices):
        return [_completion(choice.get("message") or choice, choice) for choice in choices]
    if value.get("role") == "assistant" and "content" in value:
        return [_completion(value, value)]
    items = value.get("output")
    if isinstance(items, list) and (value.get("object") == "response" or any(map(_is_message, items))):
        return [_of_items(value, items)]
    for key in _WITHIN:
        if (within := _completions(value.get(key), depth - 1)) is not None:
            around = within[0][1] if within and within[0][1] is not None else _first(value, FINISH_COLUMNS)
            return [(text, around if len(within) == 1 else ending, thoughts) for text, ending, thoughts in within]
    return None


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "message" and "content" in item


def _of_items(body: Mapping[str, Any], items: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return the completion of a body of OpenAI's Responses API: the texts of its messages, beside its reasoning."""
    if body.get("status") in ("failed", "cancelled"):
        return None, None, None
    texts = [_completion(item, item)[0] for item in items if _is_message(item)]
    thoughts = "…" if any(isinstance(item, Mapping) and item.get("type") == "reasoning" for item in items) else None
    return "".join(texts) if texts else None, body.get("incomplete_details") or body.get("status"), thoughts


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return False
    return isinstance(choice.get("message"), Mapping) or ("text" in choice and "finish_reason" in choice)


def _completion(message: Mapping[str, Any], around: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    content, thoughts = message.get("content", message.get("text")), _first(message, THOUGHT_COLUMNS)
    if isinstance(content, list):  # parts, some of which are thoughts
        parts = [part for part in content if isinstance(part, Mapping)]
        content = "".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))
        kinds = {str(part.get("type")) for part in parts}
        thoughts = thoughts or ("…" if any("think" in kind or "reason" in kind for kind in kinds) else None)
    return content, _first(around, FINISH_COLUMNS), thoughts


def endings(row: Mapping[str, Any], count: int) -> list[Finish]:
    """Return why each of `count` responses of a row ended."""
    return [finish_of(reason) for reason in _each(_first(row, FINISH_COLUMNS), count)]


def thoughts_apart(row: Mapping[str, Any], count: int) -> list[bool]:
    """Return of each response whether its thoughts stand in a column of their own."""
    columns = [_each(row.get(name), count) for name in THOUGHT_COLUMNS]
    return [any(map(_is_thought, texts)) for texts in zip(*columns, strict=True)]


def continued_thoughts(row: Mapping[str, Any], count: int) -> list[bool]:
    """Return of each response whether the prompt opened a thought that it continues, as far as the row says so.

    Thoughts in a column of their own are no part of the response, which then continues none.
    """
    stored = [_flag(value) for value in _each(row.get("thinking"), count)]
    opened = any(_opens(row.get(name)) for name in PROMPT_COLUMNS)
    return [
        (opened and not apart) if flag is None else flag
        for flag, apart in zip(stored, thoughts_apart(row, count), strict=True)
    ]


def _opens(prompt: Any) -> bool:
    """Return whether a prompt ends within a thought: a text, a chat that begins the reply, or a harness's arguments."""
    if isinstance(prompt, str) and prompt.lstrip().startswith("[{"):
        try:
            return _opens(json.loads(prompt))
        except (ValueError, RecursionError):
            return False
    if isinstance(prompt, str):
        return opens_thinking(prompt)
    if isinstance(prompt, Mapping):  # {"gen_args_0": {"arg_0": prompt, "arg_1": settings}}
        if "role" in prompt:
            content = prompt.get("content")
            return prompt["role"] == "assistant" and isinstance(content, str) and without_thoughts(content)[1]
        return any(_opens(prompt.get(name)) for name in ("gen_args_0", "arg_0"))
    if isinstance(prompt, Sequence) and prompt:  # [[prompt, settings]], or the messages of a chat
        return _opens(prompt[-1] if isinstance(prompt[0], Mapping) else prompt[0])
    return False


def _is_thought(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and _flag(value) is None


def _flag(value: Any) -> bool | None:
    """Return a yes or no as JSON and tables write it; None for any other value."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def _each(value: Any, count: int) -> list[Any]:
    """Return a value for each response of a row: a list of as many says one of each."""
    if isinstance(value, list) and len(value) == count:
        return value
    return [value[0] if isinstance(value, list) and len(value) == 1 else value] * count


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)
