"""Look for likely mistakes in schedules, and print a line for each:

- a warmup that is longer than the run, or a phase that is never reached
- a value that is infinite or NaN, a learning rate below 0, or a beta that is not at least 0 and below 1
- a jump of the value that is not a milestone
- a beta that changes in the first steps of its average, which Adam's bias correction does not follow
- a value at the last batch that is far from the end value
- a time that cannot be converted, with the conversion factor that is missing
- tags that match no group (with --model)
- two schedulers of one key
- norms or biases with weight decay (with --model)
- an alpha_f above 1 for the learning rate
- a schedule that multiplies 0, such as the weight decay of an optimizer without one (with --model)
- bfloat16 weights that the learning rate cannot change (with --model)
- a learning rate of Muon that suits a different adjust_lr_fn (with --model)
A learning rate of 0 in the first batch is a note. With notes alone the exit code is 0.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import takewhile
from typing import Any

import torch
from torch.optim import Optimizer

import optim
from optim.groups.decay import decaying_groups, describe_decaying_norms, norm_and_bias_names
from optim.groups.parameters import find_parameters
from optim.muon.muon import ALGORITHMS, find_large_updates
from optim.precision.options import find_rounded_steps
from timesched.cli.schedules import SCHEDULE_HELP, add_run_options, make_model, read_finite, read_run, read_trial
from timesched.cli.settings import add_set_option
from timesched.drawing.lines import Source, axis, run_length, values
from timesched.drawing.schedulers import sources
from timesched.findings import find_long_warmup
from timesched.run.horizon import State
from timesched.schedulers.schedule import items_in
from timesched.time.units import Exact, TimeUnit, format_number

_EXAMPLES = """\
examples:
  timesched check "LinearWithWarmupScheduler('200ba')" --max-duration 100ba
  timesched check run.yaml --model model:make
"""
_INTENDED_JUMPS = ("milestone", "point", "period")  # marks at which a schedule is meant to jump
_JUST_BEFORE = Fraction(1, 10**6)  # a count before a mark: what changes in a whole batch, as a steep warmup, is no jump
_ADAM: tuple[type, ...] = (optim.AdamBase, optim.RAdam)
# The optimizers that correct the bias of an average by 1 - beta**t.
_CORRECTED: dict[str, tuple[type, ...]] = {"betas[0]": (*_ADAM, optim.Adamax), "betas[1]": (*_ADAM, optim.NAdam)}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser("check", help="what may be wrong", description=__doc__, epilog=_EXAMPLES)
    check.add_argument("schedule", metavar="SCHEDULE", help=SCHEDULE_HELP)
    check.add_argument("--model", metavar="MODULE:NAME", help="a function without arguments that returns the model")
    add_run_options(check)
    add_set_option(check)
    percent = "%% of the highest value (default: %(default)g)"
    jump, far = f"report a jump of more than X {percent}", f"report an end that is off by more than X {percent}"
    check.add_argument("--jump", type=read_finite, default=50.0, metavar="X", help=jump)
    check.add_argument("--far", type=read_finite, default=5.0, metavar="X", help=far)
    check.set_defaults(run=_run_check)


class Course:
    """The values that a scheduler writes over a run.

    `jump` and `far`: the limits that the options set, as shares of the largest value.
    """

    def __init__(self, source: Source, scheduler: Any, options: argparse.Namespace) -> None:
        self.source, self.scheduler = source, scheduler
        self.is_learning_rate = scheduler.key == "lr"
        # The source has the values of these parameter groups. Groups with another factor have a source of their own.
        self.groups = [i for i, factor in zip(scheduler.indices, scheduler.factors) if factor == source.factor]
        self.unit, self.length = run_length(source.horizon)  # the unit of all counts below, and the count at the end
        self.values = values(source)  # by their counts, in order
        self.marks, self.curve = source.marks(), source.curve(self.unit)
        self.largest_value = max(map(abs, self.values.values()))
        self.jump, self.far = options.jump / 100, options.far / 100

    @property
    def run_text(self) -> str:
        """The length of the run, as in 5ep."""
        length = self.source.horizon.max_duration
        assert length is not None  # else `run_length` has raised
        return f"{format_number(float(length.exact))}{length.unit.value}"

    def time_text(self, count: Exact) -> str:
        """A count as a time in the unit of the run's length, as in 5ep."""
        unit, position = axis(self.source.horizon, None)
        return f"{format_number(position(count))}{unit.value}"


def _run_check(options: argparse.Namespace) -> int:
    model = make_model(options.model)
    trial = read_trial(options.schedule, read_run(options), options.settings, model)
    faults, notes = trial.problems.lines(), list[str]()
    highest: dict[int, float] = {}  # learning rates of parameter groups
    for path, scheduler in trial.schedulers.items():
        for source in _make_sources(path, scheduler, trial.clock):
            try:
                course = Course(source, scheduler, options)
                for group in course.groups if course.is_learning_rate else ():
                    highest[group] = max(highest.get(group, 0.0), *course.values.values())
                faults += [f"{path}, {source.name}: {fault}" for fault in find_faults(course)]
                notes += [f"note: {path}, {source.name}: {note}" for note in find_zero_first_learning_rate(course)]
            except (TypeError, ValueError) as error:  # such as a time that does not convert
                faults.append(f"{path}: {error}")
    if model is not None and trial.optimizer is not None:
        faults += find_decays(model, trial.optimizer, list(trial.schedulers.values()))
        faults += find_multiples_of_zero(trial.schedulers)
        faults += find_unsuitable_learning_rates(trial.optimizer, highest)
    for line in dict.fromkeys([*faults, *notes]) or ["nothing found"]:
        print(" ".join(line.split()))
    if trial.optimizer is None and trial.schedulers:
        print("timesched check: without an optimizer, the values of schedulers are not checked", file=sys.stderr)
    if model is None and "SCHEDULE" not in trial.schedulers:
        print("timesched check: without --model, tags and weight decay are not checked", file=sys.stderr)
    return 1 if faults else 0


def _make_sources(path: str, scheduler: object, clock: State | None) -> list[Source]:
    """The lines that a scheduler writes: none if it could not be made, or if its later values are not known."""
    if scheduler is None:
        return []
    try:
        return sources(scheduler, clock)
    except (TypeError, ValueError) as error:  # not a fault of the config
        print(f"timesched check: {path} is not checked: {error}", file=sys.stderr)
        return []


def find_faults(course: Course) -> list[str]:
    """Find likely mistakes in one schedule. Raises `ValueError` if a time does not convert."""
    lines = list(find_infinite_value(course))
    for find in FINDERS_OF_BETAS if lines else [*FINDERS_OF_FINITE_VALUES, *FINDERS_OF_BETAS]:
        lines += find(course)
    return lines


def find_infinite_value(course: Course) -> Iterator[str]:
    count = next((count for count, value in course.values.items() if not math.isfinite(value)), None)
    if count is not None:
        yield (
            f"the value is {course.values[count]:.4g} at {course.time_text(count)}, and a step with it raises an "
            f"error. End the schedule before, or change its arguments."
        )


def find_negative_learning_rate(course: Course) -> Iterator[str]:
    count = next((count for count, value in course.values.items() if value < 0), None)
    if course.is_learning_rate and count is not None:
        yield (
            f"the learning rate is {course.values[count]:.4g} at {course.time_text(count)}, and steps then go uphill. "
            f"End at 0 or above."
        )


def find_rising_alpha(course: Course) -> Iterator[str]:
    """Yield a line for each schedule that ends above the initial learning rate."""
    for schedule in items_in(course.source.schedule):
        alpha_f = getattr(schedule, "alpha_f", None)
        if course.is_learning_rate and course.scheduler.relative and alpha_f is not None and alpha_f > 1:
            yield (
                f"alpha_f={alpha_f:g} is a multiple of the initial learning rate, so {type(schedule).__name__} ends "
                f"above it. Pass a multiple such as 0.1."
            )


def find_unreached_marks(course: Course) -> Iterator[str]:
    """Yield a line for each mark after the end. A decay, a milestone or a phase has no batch at the end itself."""
    if long_warmup := find_long_warmup(course.source.schedule, course.source.horizon):
        yield long_warmup
    for kind, count in course.marks:
        begins_late = kind in ("decay", "milestone", "phase") and count >= course.length
        ends_late = kind in ("peak", "point") and count > course.length
        if begins_late or ends_late:
            time = course.time_text(count)
            yield f"the {kind} at {time} is never reached in the run of {course.run_text}. Move it, or leave it out."


def find_zero_first_learning_rate(course: Course) -> Iterator[str]:
    """Yield a note, which is not a fault: most warmups start at 0."""
    if course.is_learning_rate and course.values[0] == 0.0:
        yield (
            "the first batch has a learning rate of 0, and changes nothing. Start above 0, with alpha_s or "
            "initial_learning_rate."
        )


def find_jump(course: Course) -> Iterator[str]:
    """Yield a line for the first jump at a mark that is not meant to be one, with the number of other jumps."""
    intended = {count for kind, count in course.marks if kind in _INTENDED_JUMPS}
    jumps = []
    for count in sorted({count for _, count in course.marks if 0 < count < course.length} - intended):
        before, after = course.curve(Fraction(count) - _JUST_BEFORE), course.curve(count)
        if abs(after - before) > course.jump * course.largest_value:
            jumps.append((count, before, after))
    if jumps:
        count, before, after = jumps[0]
        others = f", and {len(jumps) - 1} more" if len(jumps) > 1 else ""
        yield (
            f"the value jumps from {before:.4g} to {after:.4g} at {course.time_text(count)}{others}. Give the phases "
            f"that meet there one value, or pass a larger --jump."
        )


def find_late_end(course: Course) -> Iterator[str]:
    """Yield a line if the end value comes after the run, and the value of the last batch is far from it."""
    ends = sorted((count for kind, count in course.marks if kind in ("end", "point")), reverse=True)
    if not ends or ends[0] <= course.length:
        return
    last = course.curve(course.length - 1 if course.unit is TimeUnit.BATCH else course.length)
    end_value = course.curve(ends[0])
    reached = min(takewhile(lambda count: course.curve(count) == end_value, ends))
    if reached > course.length and abs(last - end_value) > course.far * course.largest_value:
        yield (
            f"the last batch has {last:.4g}, and the end value {end_value:.4g} comes at {course.time_text(reached)}, "
            f"in a run of {course.run_text}. End the schedule with the run, as with '1dur'."
        )


def find_beta_out_of_range(course: Course) -> Iterator[str]:
    """Yield a line for the first beta that no average has. The value at the end of the run is used by no step."""
    if not course.scheduler.key.startswith("beta"):
        return
    for count, beta in course.values.items():
        if count < course.length and (beta < 0 or beta >= 1):
            place = f"step {count + 1}" if course.unit is TimeUnit.BATCH else course.time_text(count)
            yield f"it is {beta:.4g} at {place}, and must be at least 0 and below 1. Change the schedule."
            return


def find_miscorrected_average(course: Course) -> Iterator[str]:
    """Yield a line with the step after which constant gradients and the average with this beta differ most.

    The optimizer corrects the bias as if all steps had used the beta of the present step.
    """
    group = course.scheduler.optimizer.param_groups[course.groups[0]]
    kind = ALGORITHMS.get(group.get("algorithm"), type(course.scheduler.optimizer))
    corrects = issubclass(kind, _CORRECTED.get(course.scheduler.key, ())) and group.get("correct_bias", True)
    if not corrects or course.unit is not TimeUnit.BATCH:
        return
    # after so many steps, the first gradient has left the average, for any beta that is in use
    betas = torch.tensor([course.curve(step) for step in range(min(int(course.length), 20_000))], dtype=torch.float64)
    if not len(betas) or ((betas < 0) | (betas >= 1)).any():
        return
    steps = torch.arange(1, len(betas) + 1)
    ratios = (1 - betas.cumprod(0)) / (1 - betas**steps)  # of the average to the gradient
    i = int(ratios.log().abs().argmax())
    if abs(math.log(ratios[i])) > math.log1p(course.jump):
        yield (
            f"after step {i + 1} the average is {ratios[i]:.3g} times its correct value: the bias correction uses "
            f"{betas[i]:.4g} for all steps so far. Change the beta later, or less."
        )


FINDERS_OF_FINITE_VALUES = [
    find_negative_learning_rate,
    find_rising_alpha,
    find_unreached_marks,
    find_jump,
    find_late_end,
]
FINDERS_OF_BETAS = [find_beta_out_of_range, find_miscorrected_average]


def find_decays(model: object, optimizer: Optimizer, schedulers: list[object]) -> Iterator[str]:
    """Yield a line for each group in which norms or biases decay, now or by a scheduler of the weight decay."""
    names = norm_and_bias_names(find_parameters(model), optimizer.param_groups)
    for i in sorted(decaying_groups(optimizer.param_groups, schedulers) & names.keys()):
        yield f"optimizer: {describe_decaying_norms(names[i], i)}"


def find_multiples_of_zero(schedulers: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each scheduler that multiplies 0 in all its groups."""
    for path, scheduler in schedulers.items():
        if scheduler is not None and not any(scheduler.factors):
            yield (
                f"{path}: {scheduler.key} is 0 in every group that it sets, and a multiple of 0 is 0. Give the "
                f"optimizer a {scheduler.key}."
            )


def find_unsuitable_learning_rates(optimizer: Optimizer, highest: dict[int, float]) -> Iterator[str]:
    """Yield a line for each group whose learning rate does not suit its bfloat16 weights, or Muon's `adjust_lr_fn`."""
    for i, group in enumerate(optimizer.param_groups):
        learning_rate = highest.get(i, float(group["lr"] or 0.0))
        if rounded_steps := find_rounded_steps(group, i, learning_rate):
            yield f"optimizer: {rounded_steps}"
        if large_updates := find_large_updates(group, learning_rate):
            yield f"optimizer: group {i} has a learning rate of {learning_rate:.4g}: {large_updates}"
