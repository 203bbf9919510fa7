"""Chat templates: rendered the same on every day, with the arguments a user names, around text without turn markers.

A template is a program of the checkpoint. Some read the calendar (Llama 3.2, SmolLM3), some take switches
(Qwen3's `enable_thinking`), and all of them write markers that a tokenizer reads as control tokens wherever they
stand, in a question too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from model_adapters.errors import AdapterError

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
"""The template's own defaults."""

TODAY = datetime(2024, 7, 26)
"""What every template takes for today: the date Llama's falls back to. Prompts must not change overnight."""

_OURS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
_TURNS = ("system", "user", "assistant", "user")

_control: WeakKeyDictionary[Any, tuple[str, tuple[str, ...]]] = WeakKeyDictionary()


def render(processor: Any, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any], **options: Any) -> Any:
    """`apply_chat_template` with the generation prompt, `arguments` filled in.

    Raises AdapterError where the template refuses the messages, such as a system turn it does not know.
    """
    from jinja2.exceptions import TemplateError

    try:
        return processor.apply_chat_template(
            list(messages), add_generation_prompt=True, **arguments(processor, given), **options
        )
    except TemplateError as error:
        if messages[0]["role"] != "system":
            raise AdapterError(
                f"the chat template of {_name(processor)} refuses this prompt ({error}): "
                "use a checkpoint whose template takes a single user turn"
            ) from error
        raise AdapterError(
            f"the chat template of {_name(processor)} refuses a system turn ({error}): "
            "put the instruction into the prompt"
        ) from error


def arguments(processor: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the chat template is called with: `given`, once today is `TODAY` for it.

    Raises AdapterError for a name that the template does not use, which would be ignored without a word.
    """
    source = _source(processor)
    _stop_the_calendar(source)
    known = sorted(_variables(source) - {*_OURS, *_tokenizer(processor).special_tokens_map})
    unknown = [name for name in given if name not in known]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise AdapterError(
            f"the chat template of {_name(processor)} has no argument {unknown[0]!r} ({takes}): correct or remove it"
        )
    return dict(given)


def refuse_control_tokens(processor: Any, text: str, system: str | None) -> None:
    """Raise AdapterError where a text holds a token that begins or ends a turn, or is special in another way.

    The tokenizer reads it as that token wherever it stands: a question could end its own turn and go on as the
    assistant. Added tokens that are neither, such as `<think>`, are text.
    """
    for part, content in (("prompt", text), ("system message", system or "")):
        for token in control_tokens(processor):
            if token in content:
                raise AdapterError(
                    f"the {part} contains {token!r}, which {_name(processor)} reads as a control token "
                    "and not as text: remove it"
                )


def without_control_tokens(processor: Any, text: str) -> str:
    """A text that `refuse_control_tokens` lets pass: for what models wrote, which may spell out any token."""
    found = [token for token in control_tokens(processor) if token in text]
    while found:  # What is left may close up into another one.
        for token in found:
            text = text.replace(token, "")
        found = [token for token in control_tokens(processor) if token in text]
    return text


def control_tokens(processor: Any) -> tuple[str, ...]:
    """Special tokens of a tokenizer, and other added tokens that its chat template puts around turns."""
    tokenizer, source = _tokenizer(processor), _source(processor)
    known = _control.get(processor)
    if known is None or known[0] != source:
        added = tokenizer.added_tokens_decoder.values()
        turns = _turns(processor)
        found = {token.content for token in added if token.special or token.content in turns}
        found.update(tokenizer.all_special_tokens)
        known = _control[processor] = source, tuple(sorted(token for token in found if token.strip()))
    return known[1]


def _turns(processor: Any) -> str:
    """A conversation as the template writes it, the longest it takes; the last turn is the user's.

    With a system turn of our own, because a default one may speak of tags such as `<think>` that a question may
    hold, too; and without a last answer or its beginning, which some templates open with such a tag.
    """
    from jinja2.exceptions import TemplateError

    for first in (0, 1, 3):
        messages = [{"role": role, "content": _content(processor, "?")} for role in _TURNS[first:]]
        try:
            return str(processor.apply_chat_template(messages, tokenize=False, **arguments(processor, {})))
        except (TemplateError, TypeError):  # a role or a form of content that this template does not know
            continue
    return ""


def _content(processor: Any, text: str) -> Any:
    return text if _tokenizer(processor) is processor else [{"type": "text", "text": text}]


def _tokenizer(processor: Any) -> Any:
    return getattr(processor, "tokenizer", processor)


def _name(processor: Any) -> str:
    return str(_tokenizer(processor).name_or_path)


def _source(processor: Any) -> str:
    """The template text; of several named ones the default, as transformers chooses."""
    template = processor.chat_template
    return str(template.get("default", "")) if isinstance(template, dict) else str(template or "")


def _stop_the_calendar(source: str) -> None:
    """Let `strftime_now` of one template tell `TODAY`.

    As an argument it would reach the templates of tokenizers but not those of processors. transformers keeps
    compiled templates by their text, each with globals of its own; called ahead of every rendering, because it
    forgets those not used for long.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    if "strftime_now" in source:
        _compile_jinja_template(source).globals["strftime_now"] = TODAY.strftime


@lru_cache(maxsize=64)
def _variables(source: str) -> frozenset[str]:
    """Names that a template expects from outside."""
    from jinja2 import meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template(source).environment
    return frozenset(meta.find_undeclared_variables(environment.parse(source)))
