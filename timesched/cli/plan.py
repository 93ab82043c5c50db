"""Plan runs of several lengths that share one stable run. Each run has a row: its length, the time at which its decay
starts, and what it trains on its own from there. Save the stable run at the starts, and load a state into a run of the
length. A config plans all its schedules together, and the override is its key for each run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from optim.config.problems import prefix_errors
from optim.scheduler import Scheduler
from timesched.branches import BranchPlan, plan_branches, read_lengths
from timesched.cli.schedules import SCHEDULE_HELP, add_conversion_factors, is_config, make_schedulers, read_run
from timesched.drawing.axes import save
from timesched.drawing.lines import Line, Source, line
from timesched.drawing.schedulers import sources
from timesched.drawing.table import Table
from timesched.time.value import Time

_EXAMPLES = """\
examples:
  timesched plan "WSD('500ba', t_decay='0.2dur')" --lengths 10000ba,20000ba
  timesched plan "WSD('500ba')" --lengths 10Btok,20Btok --samples-per-batch 256 --tokens-per-sample 2048 --format json
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser("plan", help="branches of a stable run", description=__doc__, epilog=_EXAMPLES)
    plan.add_argument("schedule", metavar="SCHEDULE", help=SCHEDULE_HELP)
    plan.add_argument("--lengths", required=True, metavar="TIMES", help="lengths of the runs: 100Btok,200Btok")
    add_conversion_factors(plan.add_argument_group("the run", "each option replaces the same key of a config"))
    plan.add_argument("--format", choices=("table", "json"), default="table")
    plan.add_argument("-o", "--out", metavar="FILE", help="also draw the stable run, the decays, and where to save")
    plan.set_defaults(run=_run_plan)


def _run_plan(options: argparse.Namespace) -> int:
    lengths = read_lengths(options.lengths.split(","))
    written = make_plan_sources(options.schedule, {**read_run(options), "max_duration": str(lengths[-1])})
    schedules = dict.fromkeys(source.schedule for source in written)  # each once
    plan = plan_branches(schedules, written[0].horizon, lengths)
    override = is_config(options.schedule)
    print(_json(plan, override) if options.format == "json" else _table(plan, override))
    if options.out is not None:
        print(f"wrote {save(draw_plan(plan, written), options.out)}", file=sys.stderr)  # not in the JSON
    return 0


def make_plan_sources(text: str, run: dict[str, object]) -> list[Source]:
    """Make the lines that the schedulers of a SCHEDULE write. Raises `ValueError` for an absolute-value scheduler."""
    trial = make_schedulers(text, run)
    written: list[Source] = []
    for path, scheduler in trial.schedulers.items():
        with prefix_errors(path):
            if isinstance(scheduler, Scheduler):
                raise ValueError(
                    f"{type(scheduler).__name__} is an absolute-value scheduler, and a plan needs schedules of "
                    f"timesched. Write one, such as WarmupStableDecayScheduler."
                )
            written += sources(scheduler, trial.clock)
    return written if is_config(text) else [replace(source, name=text, quantity="multiplier") for source in written]


def _rows(plan: BranchPlan, with_override: bool) -> list[dict[str, str]]:
    """Return the times of each branch as text, and the key that makes a config its run."""
    rows = []
    for branch in plan.branches:
        row = {"length": str(branch.length), "start": str(branch.start), "own": str(branch.own)}
        rows.append(row | ({"override": f"max_duration: {branch.length}"} if with_override else {}))
    return rows


def _sums(plan: BranchPlan) -> dict[str, str]:
    return {name: str(getattr(plan, name)) for name in ("stable", "together", "separately")}


def _json(plan: BranchPlan, with_override: bool) -> str:
    return json.dumps({"branches": _rows(plan, with_override), **_sums(plan)}, indent=1)


def _table(plan: BranchPlan, with_override: bool) -> Table:
    rows = _rows(plan, with_override)
    note = ", ".join(f"{name} {time}" for name, time in _sums(plan).items())
    return Table(tuple(rows[0]), [tuple(row.values()) for row in rows], note, texts=("override",))


def draw_plan(plan: BranchPlan, written: list[Source]) -> list[Line]:
    """Return the lines of a picture: of each source the stable run, with marks where to save, and all decays."""
    saves = tuple(("save", float(branch.start.exact)) for branch in plan.branches)
    drawn = []
    for source in written:
        longest = replace(source, name=f"{source.name}, stable", horizon=plan.branches[-1].horizon)
        drawn.append(replace(_cut(longest, Time._make(0, plan.stable.unit), plan.stable), marks=saves))
        for branch in plan.branches:
            decay = replace(source, name=f"{source.name}, {branch.length}", horizon=branch.horizon)
            drawn.append(_cut(decay, branch.start, branch.length))
    return drawn


def _cut(source: Source, start: Time, end: Time) -> Line:
    """Return the line of a source between two times, without its marks."""
    whole = line(source)
    first, last = float(start.exact), float(end.exact)  # in the unit of the run, as the line's points
    inside = [(x, y) for x, y in zip(whole.x, whole.y) if first < x < last]
    points = [(first, source.at(start)), *inside, (last, source.at(end))]
    x, y = zip(*points)
    return replace(whole, x=x, y=y, marks=())
