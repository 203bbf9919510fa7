"""Benchmarks as validation sets of a training run: the suite's own problems, graded by its own rules."""

from __future__ import annotations

import atexit

from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.evaluation.generation import OWN_PROMPT
from mmcorl.errors import UserError
from mmcorl.grading import GRADER, Grader
from mmcorl.grading.grade_by_relation import form_of
from mmcorl.grading.items import Item, Response
from mmcorl.run.evaluation import HeldOut
from mmcorl.run.settings import BenchmarkSet
from mmcorl.types import Completion, Prompt, PromptStyle


def held_out(settings: BenchmarkSet) -> HeldOut:
    """Load one benchmark for evaluation during training; its responses are graded by the rule stage.

    Raises UserError for an unknown benchmark, a copy that cannot be read, and coding benchmarks, which run code.
    """
    benchmark = BENCHMARKS.find(settings.name)
    items = benchmark.load(settings.source, limit=settings.limit).items
    if any(item.kind == "code" for item in items):
        raise UserError(
            f"validation.benchmarks names {settings.name}, which runs code that a model wrote: evaluate checkpoints "
            "with `mmcorl eval ... --run-code` instead"
        )
    by_uid = {item.fingerprint: item for item in items}
    form = form_of(items[0])
    grader = Grader()
    atexit.register(grader.close)

    def grade(prompt: Prompt, completion: Completion) -> bool:
        item = by_uid[prompt.uid]
        if form is not None:  # the run has read the place in its agent's coordinates
            return completion.answer is not None and grader.score(item, completion.answer)[1]
        response = Response(
            *(item.benchmark, item.id, 0, completion.text, completion.finish_reason), thinking=completion.thinking
        )
        return grader.rule(item, response).rule

    facts = {"name": GRADER[0], "version": GRADER[1]}
    # A question that asks for a form itself takes no instruction of the run.
    style: PromptStyle | None = OWN_PROMPT if benchmark.prompt_style == OWN_PROMPT else None
    return HeldOut(benchmark.name, [_prompt(item, style) for item in items], grade, facts, form)


def _prompt(item: Item, style: PromptStyle | None) -> Prompt:
    return Prompt(item.fingerprint, item.id, item.question, item.images, item.gold, item.choices, style=style)
