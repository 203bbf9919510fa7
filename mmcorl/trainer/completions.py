"""From what an agent wrote to completions with their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mmcorl.answers import extract
from mmcorl.answers.regions import Form, read_answer
from mmcorl.answers.settings import AnswerSettings
from mmcorl.sandbox.extract import extract_code
from mmcorl.sandbox.process import open_sandbox
from mmcorl.sandbox.program_answers import program_answers
from mmcorl.system.timing import span
from mmcorl.types import Completion, Prompt
from model_adapters.coordinates import Coordinates


class CompletionReader:
    """Reads the answers of one agent.

    Args:
        settings: what the answer of a response is.
        form: what answers are, where they are places in a picture.
        coordinates: how the agent writes places in the picture of a prompt; called for such answers alone.
    """

    def __init__(self, settings: AnswerSettings, form: Form | None, coordinates: Callable[[Prompt], Coordinates]):
        self.settings, self.form, self.coordinates = settings, form, coordinates
        self.sandbox = open_sandbox(run_code=True) if settings.run_code else None

    def read(self, prompt: Prompt, written: Sequence[Completion]) -> tuple[Completion, ...]:
        """Return the completions of a prompt with their answers.

        An answer is a text, places in the picture in their canonical form, or of a coding problem what its program
        returns.
        """
        read = tuple(self._read(prompt, completion) for completion in written)
        if prompt.calls is None:
            return read
        assert self.sandbox is not None  # refused with the config
        with span("programs"):
            answers = program_answers(self.sandbox, prompt.calls, read)
        return tuple(
            replace(
                each,
                answer=answer,
                unclosed=answer is None
                and extract_code(each.text, each.finish_reason, thinking=each.thinking).source == "unclosed",
            )
            for each, answer in zip(read, answers, strict=True)
        )

    def _read(self, prompt: Prompt, written: Completion) -> Completion:
        text, end, mode = written.text, written.finish_reason, self.settings.extraction
        extraction = extract(text, end, mode, thinking=written.thinking)
        answer = extraction.answer
        if self.form is not None and not prompt.in_text:
            canonical = self.coordinates(prompt).canonical
            answer = read_answer(text, end, mode, self.form, canonical, thinking=written.thinking)
        return replace(written, answer=answer, unclosed=answer is None and extraction.source == "unclosed")
