"""Parse the command line into a command and its arguments, and explain mistakes in it. Imports no torch."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from mmcorl import __version__
from mmcorl.apps.init.settings_reference import settings as every_setting
from mmcorl.cli import analysis, bench, completion, eval, reference, rephrase, share, start, tools, train, view
from mmcorl.cli.arguments import COMMANDS, Command, add_arguments
from mmcorl.cli.output import enduring
from mmcorl.config import shipped

GROUPS = (start, train, bench, view, eval, analysis, rephrase, share, reference, completion, tools)
"""Importing a group adds its commands to `COMMANDS`."""
TASKS = {
    "start and train": ("init", "doctor", "train", "sweep", "bench"),
    "look at runs": ("view", "report"),
    "evaluate": ("eval", "grade", "judge-check", "table", "compare", "boundary", "ensemble"),
    "choose and analyse models": ("diversity", "pair", "dynamics"),
    "reword training questions": ("rephrase", "rephrase audit"),
    "model families": ("families", "check-adapter", "zoo"),
    "share": ("card", "push"),
    "reference": ("settings", "schema", "completion"),
}
"""The commands by task, as `mmcorl --help` lists them."""
OPENING = """usage: mmcorl COMMAND ...

Co-train models of different families with reinforcement learning and no labels:
each agent votes over its own samples and is rewarded for agreeing with a peer's vote.
"""
EPILOG = """examples:
  mmcorl train quickstart                                    co-train two tiny families on images, without labels
  mmcorl train quickstart name=self supervision.kind=self    the self-rewarding baseline
  mmcorl init my_run.yaml                                    write a config for your models, data and GPUs
  mmcorl report runs/quickstart runs/self                    compare two runs
  mmcorl view                                                look at runs in a browser, live, prompt by prompt
  mmcorl eval runs/quickstart/final/qwen natural:handwriting score a trained checkpoint
  mmcorl settings learning rate                              find a setting
  mmcorl doctor paper/vlm_3b_open_r1                         will this run work on this machine?

`mmcorl help COMMAND` or `mmcorl COMMAND --help` shows the options of a command, with examples."""

TRUST = "let code of your own run from now on, though only a folder names it and not this command line"


def parse(words: Sequence[str]) -> tuple[Command, argparse.Namespace] | int:
    """Return the command and its arguments, or an exit status where there is nothing to run.

    Raises SystemExit: the command does not take these arguments, or was called with --help.
    """
    if " ".join(words[:2]) in COMMANDS:  # such as `rephrase audit`
        words = [" ".join(words[:2]), *words[2:]]
    name, words = words[0], words[1:]
    if name in ("-h", "--help", "--version"):
        with enduring():
            print(f"mmcorl {__version__}" if name == "--version" else overview())
        return 0
    if name not in COMMANDS:
        print(f"mmcorl: {_unknown(name)}", file=sys.stderr)
        return 2
    parser = parser_of(name)
    overrides, words = _overrides(words, parser)
    # argparse takes no positional arguments after an option that follows others; overrides may be anywhere.
    arguments, rest = parser.parse_known_args(words)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "overrides")):
        _refuse(name, parser, rest, has_settings=hasattr(arguments, "overrides"))
    if overrides or rest:
        arguments.overrides = [*arguments.overrides, *overrides, *rest]
    return COMMANDS[name], arguments


def _unknown(word: str) -> str:
    """Return the message about a command that does not exist."""
    near = next(iter(get_close_matches(word, COMMANDS, 1)), None)
    if near is None and (word in shipped() or word.endswith((".yaml", ".yml"))):
        near = f"train {word}"
    hint = f"did you mean `mmcorl {near}`?" if near else "`mmcorl --help` lists them"
    if word in ("benchmark", "benchmarks"):
        hint = "`mmcorl eval --help` lists the benchmarks"
    return f"there is no command {word!r}: {hint}"


def _refuse(name: str, parser: argparse.ArgumentParser, rest: Sequence[str], *, has_settings: bool) -> NoReturn:
    """Exit with a message about arguments that a command does not take, and the way out."""
    wrong = next((word for word in rest if word.startswith("-")), rest[0])
    option, _, value = wrong.partition("=")
    key = option.lstrip("-").replace("-", "_")
    if not wrong.startswith("-"):
        parser.error(f"unexpected argument {wrong!r}")
    if has_settings:
        keys = {setting.key: setting.key for setting in every_setting()}
        near = sorted((full for full in keys if full.endswith(f".{key}")), key=lambda full: "NAME" in full)
        known = keys.get(key) or next(iter(near), None)
        if known:
            after = rest[rest.index(wrong) + 1 :]
            value = value or (after[0] if after and not after[0].startswith("-") else "VALUE")
            parser.error(f"{option} is a setting, which is written without dashes: {known}={value}")
    options = get_close_matches(option, parser._option_string_actions, 1)
    parser.error(f"{name} has no option {option}" + (f": did you mean {options[0]}?" if options else ""))


def _overrides(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Return the settings `key.sub=value` among the words of a command that has them, and the other words.

    They are taken out first, since options with several values, such as `--methods`, would swallow them. The value of
    an option is none of them.
    """
    if not any(action.dest == "overrides" for action in parser._actions):
        return [], list(words)
    options: dict[str, argparse.Action] = parser._option_string_actions

    def takes_value(option: str) -> bool:
        """Return whether a word is an option, perhaps shortened, whose value is the next word."""
        if not option.startswith("-") or "=" in option:
            return False
        whole = [option] if option in options else [name for name in options if name.startswith(option)]
        return {options[name].nargs for name in whole} != {0}

    settings, others = list[str](), list[str]()
    for before, word in zip(["", *words], words, strict=False):
        is_setting = re.match(r"[a-z_][\w.]*=", word) and not takes_value(before)
        (settings if is_setting else others).append(word)
    return settings, others


class _Parser(argparse.ArgumentParser):
    """Report mistakes in one sentence; the usage of some commands would fill the screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nsee `{self.prog} --help`\n")


def overview() -> str:
    """Return what `mmcorl --help` prints."""
    lines = []
    for task, names in TASKS.items():
        lines += [f"{task}:", *(f"  {name:<15} {COMMANDS[name].help}" for name in names), ""]
    return "\n".join([OPENING, *lines, EPILOG])


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    command = COMMANDS[name]
    epilog = command.epilog if isinstance(command.epilog, str) else command.epilog()
    layout = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
    parser = _Parser(prog=f"mmcorl {name}", description=command.help, epilog=epilog, formatter_class=layout)
    for model in command.models.values():
        add_arguments(parser, model, command.flags)
    parser.add_argument("--trust", action="append", type=Path, default=[], metavar="FILE.py", help=TRUST)
    return parser
