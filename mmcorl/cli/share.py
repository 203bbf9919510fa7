"""Commands that publish: card, push."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from mmcorl.cli.arguments import Arguments, Flag, Output, command

RunDir = Annotated[Path, Flag(positional=True, metavar="RUN")]


class CardArguments(Arguments):
    folder: RunDir
    """folder of a finished run"""
    agent: str | None = None
    """only this agent's (default: every agent's)"""


@command(
    "card",
    "write a model card, with a picture of the curves, beside the final weights of each agent",
    epilog="examples:\n  mmcorl card runs/quickstart\n",
)
def card(what: CardArguments, output: Output) -> int:
    from mmcorl.share.card import write_cards

    cards = write_cards(what.folder, [what.agent] if what.agent else None)
    if output.as_json:
        print(json.dumps([{"agent": path.parent.name, "card": str(path)} for path in cards]))
    else:
        print(*cards, sep="\n")
    return 0


class PushArguments(CardArguments):
    to: Annotated[str, Flag(metavar="ORG/NAME")]
    """repository: ORG/NAME-AGENT for each of several agents, ORG/NAME itself with --agent"""
    private: bool = False
    """create private repositories"""
    checkpoint: str | None = None
    """NAME: weights of RUN/checkpoints/NAME, such as best-by-agreement, instead of the final ones"""
    report: bool = False
    """also upload report.html, which shows prompts and pictures of the training data"""
    dry: bool = False
    """only say what would be uploaded, and show the cards; needs no token and no network"""


EXAMPLES = """examples:
  mmcorl push runs/mine --to my-org/mine --dry              what would be uploaded, and how many bytes
  mmcorl push runs/mine --to my-org/mine --private          my-org/mine-AGENT for each agent
  mmcorl push runs/mine --to my-org/qwen --agent qwen       one agent

Weights, processor, model card, curves and settings go up; votes, logs and data stay. A token comes from `hf auth login`
or HF_TOKEN."""


@command(
    "push",
    "upload trained agents with their model cards to the Hugging Face Hub",
    epilog=EXAMPLES,
    after_interrupt=": the same command continues",
)
def push(what: PushArguments, output: Output) -> int:
    from mmcorl.share import push as tool
    from mmcorl.share.card import CARD

    licences = {} if what.dry else tool.licences_on_hub(what.folder)
    chosen = what.model_dump(include={"agent", "checkpoint", "report"})
    uploads = tool.plan(what.folder, what.to, licences=licences, **chosen)
    for upload in uploads:
        for finding in upload.warnings:
            print(f"{upload.repo}: {finding}; its card says so", file=sys.stderr)
        if upload.left_out:
            print(f"{upload.repo}: not written by the run, and left out: {', '.join(upload.left_out)}", file=sys.stderr)
    records = [
        {"agent": one.agent, "repo": one.repo, "private": what.private, "url": None, "files": one.sizes}
        for one in uploads
    ]
    if what.dry:
        if not output.as_json:
            seen = "private" if what.private else "public (unless the organisation's default is private), see --private"
            for upload in uploads:
                print(f"{upload.repo}: {seen}")
                print(*(f"  {size:>15,}  {name}" for name, size in upload.sizes.items()), sep="\n")
            for upload in uploads:
                print(f"\n--- {upload.repo}/{CARD}\n{upload.card}")
            print(f"{sum(sum(upload.sizes.values()) for upload in uploads):,} bytes in all; nothing was uploaded")
    else:
        for record, (_, url) in zip(records, tool.push(uploads, what.private), strict=True):
            record["url"] = url
            if not output.as_json:
                print(url, flush=True)
    if output.as_json:
        print(json.dumps(records))
    return 0
