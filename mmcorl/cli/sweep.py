"""`mmcorl sweep`: methods side by side, from the same starting weights."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.cli.options import command
from mmcorl.config import methods
from mmcorl.errors import RunError, UserError

if TYPE_CHECKING:
    from mmcorl.tools.sweep import Planned

METHODS = "methods (a name, your own FILE.yaml, or several joined by +; the later ones win):\n"
EXAMPLE = """
example, the toy cohort from three different starts:
  mmcorl sweep configs/quickstart.yaml --methods co_rl ttrl gt rent+kl0 --seeds 0 1 2 \\
    agents.qwen.model=zoo:qwen2.5-vl@{seed} agents.intern.model=zoo:internvl3.5@{seed}
"""


def add(commands: Any) -> None:
    """Its options."""
    listed = "".join(f"  {name:<22}{line}\n" for name, line in methods.names().items())
    sweep = command(
        commands,
        "sweep",
        _sweep,
        "run a list of methods from the same starting weights, and put them into one table",
        METHODS + listed + EXAMPLE,
    )
    sweep.set_defaults(after_interrupt=": the same command goes on where it stood")
    sweep.add_argument("config", type=Path, metavar="CONFIG", help="YAML file: data, models, steps, batch")
    sweep.add_argument(
        "overrides", nargs="*", metavar="key.sub=value", help="for every run; {seed} stands for its seed"
    )
    sweep.add_argument("--methods", nargs="+", required=True, metavar="METHOD", help="the names stand below")
    sweep.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S", help="default: 0")
    sweep.add_argument("--out", type=Path, help="folder of the runs and the table (default: sweeps/NAME)")
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    sweep.add_argument("--quiet", action="store_true", help="no progress on stderr")
    sweep.add_argument("--json", action="store_true", help="print the table as JSON")


def _sweep(arguments: argparse.Namespace) -> int:
    from mmcorl import config as settings
    from mmcorl.report import sweep_page
    from mmcorl.run.progress import task
    from mmcorl.tools import sweep

    if arguments.jobs < 1:
        raise UserError(f"--jobs is {arguments.jobs}, but work needs a process: give 1 or more")
    name = settings.load(arguments.config, _first_seed(arguments)).name
    out: Path = arguments.out or Path("sweeps") / name
    planned = sweep.plan(arguments.config, arguments.methods, arguments.seeds, arguments.overrides, out)
    if not arguments.quiet:
        print(sweep.describe(planned), file=sys.stderr)
    _warm_up(planned, arguments.quiet)
    with task("sweep", len(planned), quiet=arguments.quiet) as bar:
        bar.advance(sum(one.done for one in planned))

        def tell(one: Planned, what: str) -> None:
            bar.update(f"sweep: {one.method} seed {one.seed} {what}")
            if what != "begins":
                bar.advance()

        failed = sweep.execute(planned, arguments.jobs, tell)
    table = sweep.rows(planned)
    page = sweep_page.write(out, planned, table)
    if arguments.json:
        print(json.dumps(sweep.record(table)))
    else:
        sweep_page.print_table(table)
        print(f"table: {out / 'sweep.md'}, {out / 'sweep.csv'}, {out / 'sweep.json'}\npage: {page}")
    if failed:
        told = "; ".join(f"{one.method} seed {one.seed} ({sweep.last_words(one)})" for one in failed)
        raise RunError(f"{len(failed)} of {len(planned)} runs failed: {told}")
    return 0


def _first_seed(arguments: argparse.Namespace) -> list[str]:
    return [text.replace("{seed}", str(arguments.seeds[0])) for text in arguments.overrides]


def _warm_up(planned: list[Planned], quiet: bool) -> None:
    """Make what the zoo lacks once, before several runs would each make it for themselves."""
    from mmcorl.tools.zoo import parse, resolve

    for model in dict.fromkeys(agent.model for one in planned if not one.done for agent in one.config.agents):
        if parse(model) is not None:
            resolve(model, quiet=quiet)
