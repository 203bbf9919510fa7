"""The adapter contract: what the trainer and the engines rely on, checked numerically on a real checkpoint.

Run by `mmcorl check-adapter MODEL_DIR` and by the tests over every family. The reference is transformers itself: its
chat template, its processor and one plain forward pass of the whole model. What is checked is in `testing/checks.py`.
"""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from model_adapters.base import DEFAULT_VISION, AdapterError, ModelAdapter, VisionSettings, require_options
from model_adapters.loading import random_weights
from model_adapters.registry import adapter_for, spec_of
from model_adapters.templates import Template
from model_adapters.testing.checks import CHECKS
from model_adapters.testing.shrink import NoSmallVersionError, shrunk
from model_adapters.testing.subject import Failed, Skipped, Subject

Checks = Mapping[str, Callable[[Subject], str]]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    """True also for a skipped check."""
    detail: str
    """The measurement, or the fault."""
    skipped_reason: str | None = None


def check_adapter(
    path: str | Path,
    spec: str | None = None,
    *,
    tolerance: float = 1e-5,
    dtype: torch.dtype = torch.float32,
    vision: VisionSettings = DEFAULT_VISION,
    more: Checks = MappingProxyType({}),
) -> list[Check]:
    """Load a checkpoint through its adapter and compare it with plain transformers, check by check.

    `spec` (`file.py:Class` or `package.module:Class`) names an outside adapter. `tolerance` bounds differences of
    log-probabilities (nats) and of features; 1e-5 suits fp32. The images are synthetic, in several sizes, and reach the
    model as `vision` says. `more` checks follow those of the contract. A check that raises has failed; the others still
    run, without those that need what raised. Raises AdapterError when the checkpoint has no adapter or does not load.
    """
    adapter = adapter_for(path, spec)
    require_options(vision, [adapter])
    with _quiet():
        processor = adapter.load_processor(path, vision)
        subject = Subject(adapter, path, processor, adapter.load_model(path, dtype).eval(), vision, tolerance)
        return [_run(name, check, subject) for name, check in {**CHECKS, **more}.items()]


def check_tiny(
    path: str | Path,
    spec: str | None = None,
    *,
    vision: VisionSettings = DEFAULT_VISION,
    save: Path | None = None,
    more: Checks = MappingProxyType({}),
) -> tuple[str, list[Check]]:
    """Do the same with a few narrow layers of random weights; also returns what of the model is small and what is not.

    `path` needs no weights: of a hub id only config, tokenizer and processor are fetched. `save` is a folder to make,
    in which the small checkpoint is kept.
    """
    adapter = adapter_for(path, spec)
    require_options(vision, [adapter])
    if save is not None and save.exists():
        raise AdapterError(f"{save} exists already: name a folder that does not, or remove it")
    with _random_of(path, adapter, vision) as (folder, changes):
        if save is not None:
            with torch.random.fork_rng(devices=[]):  # the weights that are checked
                model: Any = adapter.load_model(folder)
            shutil.copytree(folder, save)
            model.save_pretrained(save)
        checks = check_adapter(folder, spec, vision=vision, tolerance=TINY, more=more)
    return changes, [replace(check, detail=check.detail.replace(str(folder), str(path))) for check in checks]


@contextmanager
def _random_of(path: str | Path, adapter: ModelAdapter, vision: VisionSettings) -> Iterator[tuple[Path, str]]:
    """Yield a folder whose models are small, with the same random weights every time."""
    with _quiet(), torch.random.fork_rng(devices=[]), shrunk(path, adapter, vision) as small:
        torch.manual_seed(0)
        with random_weights(torch.device("cpu")):
            yield small


def require_sound_tiny(adapter: ModelAdapter, path: str, vision: VisionSettings, template: Template) -> None:
    """`require_sound` on a few narrow layers of random weights, for a model that no process holds whole."""
    with _random_of(path, adapter, vision) as (folder, _):
        processor = adapter.load_processor(folder, vision)
        require_sound(adapter, processor, adapter.load_model(folder), path, vision, template, tiny=True)


def require_sound(
    adapter: ModelAdapter,
    processor: Any,
    model: Any,
    path: str,
    vision: VisionSettings,
    template: Template,
    *,
    tiny: bool = False,
) -> None:
    """Refuse an adapter whose positions or log-probabilities are not those of plain transformers.

    Prompts with none, one and two images, one forward pass of each by both; their features in one pass of the tower are
    those of one by one, and cached steps give what the forward pass does: no token sees what follows it. For adapters
    from outside, before a model trains or is evaluated by them. `model` is whole and on the CPU; where it is not in
    fp32, whose bound wrong features may keep, a small one in fp32 is compared too. `tiny` says that it is the small one
    of `path`. Raises AdapterError with the command that tells more.
    """
    exact = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    prompts = 1 if template == "off" else 3
    subject = Subject(adapter, path, processor, model, vision, EQUAL if exact else EQUAL_BF16, template, prompts)
    names = ["positions equal transformers'", "forward equals transformers'"]
    names += ["collate then split is identity"] * (exact and template != "off")
    names += ["cached generation scores as the forward"] * exact
    with _quiet():
        results = [_run(name, CHECKS[name], subject) for name in names]
    for result in results:
        if not (result.passed or result.skipped_reason):
            command = ["mmcorl", "check-adapter", path, *["--tiny"] * tiny, "--adapter", spec_of(adapter)]
            command += _as_arguments(vision)
            raise AdapterError(
                f"adapter {spec_of(adapter)} does not compute what transformers computes for {path} ({result.name}: "
                f"{result.detail}): correct it until `{shlex.join(command)}` passes"
            )
    if not exact:
        try:
            require_sound_tiny(adapter, path, vision, template)
        except NoSmallVersionError as error:
            print(f"the adapter of {path} was compared in bf16 alone: {error}", file=sys.stderr)


def _as_arguments(vision: VisionSettings) -> list[str]:
    """Return image settings as a command takes them, without those that are as by default."""
    usual, settings = asdict(DEFAULT_VISION), asdict(vision)
    options = {f"options.{name}": value for name, value in settings.pop("options").items()}
    changed = {name: value for name, value in settings.items() if value != usual[name]} | options
    return [f"vision.{name}={json.dumps(value)}" for name, value in changed.items()]


EQUAL = 1e-3
"""Nats by which log-probabilities of one model differ in fp32 at most, by the order of additions in large models."""
EQUAL_BF16 = 0.3
TINY = 1e-4
"""Tolerance with random weights, which add up to larger numbers than trained ones."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars and warnings of transformers, which repeat how its processors would rather be called."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _run(name: str, check: Callable[[Subject], str], subject: Subject) -> Check:
    try:
        return Check(name, True, check(subject))
    except Skipped as reason:
        return Check(name, True, "skipped", skipped_reason=str(reason))
    except Failed as failure:
        return Check(name, False, str(failure))
    except Exception as error:  # the adapter may be a user's code: what it raises is the result
        message = str(error).splitlines()[0] if str(error) else ""
        return Check(name, False, f"{type(error).__name__}: {message} ({_innermost_line(error, subject.adapter)})")


def _innermost_line(error: Exception, adapter: ModelAdapter) -> str:
    """Return the innermost line of the adapter's class, or of one it derives from, that an error passed."""
    files = {inspect.getfile(part) for part in type(adapter).__mro__ if issubclass(part, ModelAdapter)}
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if frame.filename in files] or frames)[-1]
    return f"{last.filename}:{last.lineno}, in {last.name}"
