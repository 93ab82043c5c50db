"""`timesched check`: what is likely to be wrong with a config, before it runs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import takewhile
from typing import Any

import torch

import optim
from optim.groups.parameters import named
from timesched.cli.schedules import add_run, finite, model_of, run_of, trial_of
from timesched.drawing.lines import Source, axis, counted, end_of, number, values
from timesched.drawing.schedulers import sources
from timesched.time.units import Exact, TimeUnit

_INTENDED = ("milestone", "point", "period")  # marks at which a schedule is meant to jump
_CLOSE = Fraction(1, 10**6)  # a count before a mark: what changes in a whole batch, as a steep warmup, is no jump
_SHOWN = 3  # names of parameters
_ADAM: Any = (optim.AdamBase, optim.RAdam)
_CORRECTED: Any = {"betas[0]": (*_ADAM, optim.Adamax), "betas[1]": (*_ADAM, optim.NAdam)}  # by 1 - beta**t


def add(commands: Any) -> None:
    about = """\
Look for what is likely to be wrong with schedules, and print a line for each:
  a warmup that is longer than the run, or a phase that is never reached
  a learning rate of 0 in the first batch
  a jump of the value that is no milestone
  a beta that changes while its average is young, which Adam's bias correction does not follow
  a value at the last batch that is far from the end value
  times that cannot be converted, and the rate that is missing
  tags that match nothing (with --model)
  two schedulers of one key
  norms or biases with weight decay (with --model)
  bfloat16 weights that the learning rate cannot move (with --model)
"""
    examples = """\
examples:
  timesched check "LinearWithWarmupScheduler('200ba')" --max-duration 100ba
  timesched check run.yaml --model model:make
"""
    raw = argparse.RawDescriptionHelpFormatter
    check = commands.add_parser(
        "check", help="what may be wrong", description=about, epilog=examples, formatter_class=raw
    )
    check.add_argument("schedule", metavar="SCHEDULE")
    check.add_argument("--model", metavar="MODULE:NAME", help="a function without arguments that returns the model")
    add_run(check)
    percent = "percent of the highest value (default: %(default)g)"
    check.add_argument(
        "--jump", type=finite, default=50.0, metavar="X", help=f"the largest jump that passes, {percent}"
    )
    check.add_argument(
        "--far", type=finite, default=5.0, metavar="X", help=f"how far from the end value is far, {percent}"
    )
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    model = model_of(options.model)
    made = trial_of(options.schedule, run_of(options), model)
    found, highest = list(made.problems), dict[int, float]()
    for path, scheduler in made.schedulers.items():
        if scheduler is None:
            continue
        try:
            written = sources(scheduler, made.clock)
        except (TypeError, ValueError) as error:  # not a fault of the config
            print(f"timesched check: {path} is not looked at: {error}", file=sys.stderr)
            continue
        try:
            for source in written:
                rate = scheduler.key == "lr"
                for group in scheduler.indices if rate else ():
                    highest[group] = max(highest.get(group, 0.0), *values(source).values())
                lines = [*findings(source, options, rate), *miscorrected(source, options, scheduler)]
                found += [f"{path}, {source.name}: {what}" for what in lines]
        except (TypeError, ValueError) as error:
            found.append(f"{path}: {error}")
    if model is not None and made.optimizer is not None:
        found += decayed(model, made.optimizer, list(made.schedulers.values()))
        found += unmoved(made.optimizer, highest)
    for each in dict.fromkeys(found) or ["nothing found"]:
        print(" ".join(each.split()))
    if model is None and "SCHEDULE" not in made.schedulers:
        print("timesched check: without --model, tags and what decays are not looked at", file=sys.stderr)
    return 1 if found else 0


def findings(source: Source, options: argparse.Namespace, rate: bool) -> Iterator[str]:
    """What may be wrong with one schedule; of a learning `rate` also that it begins at 0, or falls below. Raises
    `ValueError` where a time does not convert.
    """
    unit, length = counted(source.horizon)
    found, marks, value = values(source), source.marks(), source.curve(unit)
    wanted, place = axis(source.horizon, None)

    def at(count: Exact) -> str:
        return f"{number(place(count))}{wanted.value}"

    for count, each in found.items():
        if not math.isfinite(each):
            yield (
                f"the value is {each:.4g} at {at(count)}, where a step stops with an error: end the "
                f"schedule before, or change its arguments"
            )
            return
    below = next((count for count, each in found.items() if each < 0), None)
    if rate and below is not None:
        yield (
            f"the learning rate is {found[below]:.4g} at {at(below)}, and steps go uphill from there: end at 0 or above"
        )
    for name, count in marks:
        where, end = at(count), at(end_of(source.horizon))
        if name == "warmup" and count > length:
            yield f"the warmup takes {where}, longer than the run of {end}: shorten it"
        elif (name in ("decay", "milestone", "phase") and count >= length) or (
            name in ("peak", "point") and count > length
        ):
            yield f"the {name} at {where} is never reached in the run of {end}: move it, or leave it out"
    if rate and found[0] == 0.0:
        yield (
            "the first batch has a learning rate of 0, and changes nothing: start above 0, with alpha_s or "
            "initial_learning_rate"
        )
    largest = max(map(abs, found.values()))
    intended = {count for name, count in marks if name in _INTENDED}
    places = sorted({count for _, count in marks if 0 < count < length} - intended)
    sides = [(count, value(Fraction(count) - _CLOSE), value(count)) for count in places]
    jumps = [each for each in sides if abs(each[2] - each[1]) > options.jump / 100 * largest]
    for count, before, after in jumps[:1]:
        more = f", and {len(jumps) - 1} more" if jumps[1:] else ""
        yield (
            f"a jump from {before:.4g} to {after:.4g} at {at(count)}{more}: give the phases that meet "
            f"there one value, or pass --jump for a larger one"
        )
    ends = [count for name, count in marks if name in ("end", "point")]
    if ends and max(ends) > length:
        last = length - 1 if unit is TimeUnit.BATCH else length
        now, then = value(last), value(max(ends))
        reached = min(takewhile(lambda count: value(count) == then, sorted(ends, reverse=True)))
        if reached > length and abs(now - then) > options.far / 100 * largest:
            yield (
                f"the last batch has {now:.4g}, and the end value {then:.4g} comes at {at(reached)}, "
                f"in a run of {at(end_of(source.horizon))}: end the schedule with the run, as with '1dur'"
            )


def miscorrected(source: Source, options: argparse.Namespace, scheduler: Any) -> Iterator[str]:
    """The step after which the average of a beta is furthest from its gradients, if they are constant: the bias is
    corrected as if all steps had had the beta of the present one.
    """
    group = scheduler.optimizer.param_groups[scheduler.indices[0]]
    kind = optim.muon.muon.ALGORITHMS.get(group.get("algorithm"), type(scheduler.optimizer))
    unit, length = counted(source.horizon)
    corrected = issubclass(kind, _CORRECTED.get(scheduler.key, ())) and group.get("correct_bias", True)
    if corrected and unit is TimeUnit.BATCH:
        # later, nothing is left of the first steps in the average of any beta that is in use
        curve, steps = source.curve(unit), torch.arange(1, min(int(length), 20_000) + 1)
        betas = torch.tensor([curve(int(step) - 1) for step in steps], dtype=torch.float64)
        strange = torch.nonzero((betas < 0) | (betas >= 1))
        if len(strange):
            at = int(strange[0])
            yield f"it is {betas[at]:.4g} at step {at + 1}, and has to be at least 0 and below 1: change the schedule"
            return
        off = (1 - betas.cumprod(0)) / (1 - betas**steps)
        at = int(off.log().abs().argmax())
        if abs(math.log(off[at])) > math.log1p(options.jump / 100):
            yield (
                f"after step {at + 1} the average is {off[at]:.3g} times what it should be, as the bias correction "
                f"takes {betas[at]:.4g} for the beta of all steps so far: change it later, or less"
            )


def decayed(model: Any, optimizer: Any, schedulers: list[Any]) -> Iterator[str]:
    """A line for each group in which norms or biases decay, now or by a scheduler of the weight decay."""
    spared = {id(each.tensor): each.name for each in named(model) if not each.decays}
    for i, group in enumerate(optimizer.param_groups):
        names = [spared[id(p)] for p in group["params"] if id(p) in spared]
        by = [s for s in schedulers if s is not None and s.key == "weight_decay" and i in s.indices]
        if names and (by or group.get("weight_decay")):
            shown = ", ".join(names[:_SHOWN]) + (", ..." if names[_SHOWN:] else "")
            yield (
                f"optimizer: norms and biases of group {i} decay ({len(names)}: {shown}): write no_decay: true, and "
                f"give a scheduler of the weight decay the tags of the others (decay_tag)"
            )


def unmoved(optimizer: Any, highest: dict[int, float]) -> Iterator[str]:
    """A line for each group whose learning rate is rounded away from bfloat16 weights of 1 and below."""
    for i, group in enumerate(optimizer.param_groups):
        rate = highest.get(i, float(group["lr"] or 0.0))
        kept = group.get("master_weights") or group.get("stochastic_rounding")
        if rate > 0 and not kept and any(p.dtype is torch.bfloat16 for p in group["params"]):
            size = 2.0 ** (math.floor(math.log2(rate)) + 9)  # from here on, half the distance to the next one is more
            if size <= 1:
                yield (
                    f"optimizer: a step of the highest learning rate, {rate:.4g}, is rounded away from bfloat16 "
                    f"weights of {size:.4g} and more, as group {i} has: pass master_weights: true, or "
                    f"stochastic_rounding: true"
                )
