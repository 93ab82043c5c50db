"""The program of docs/branches.md with other schedules and runs.

It stops before the stable run if a schedule cannot branch. All other branches are their own runs, bit for bit.
"""

from __future__ import annotations

import doctest
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.building import sgd
from tests.extent import IS_DEEP
from timesched import *  # noqa: F403  # these are tests of all that is public

PAGE = (Path(__file__).parents[2] / "docs" / "branches.md").read_text(encoding="utf-8")
EXAMPLES = [example.source for example in doctest.DocTestParser().get_examples(PAGE)]

WSD = WarmupStableDecayScheduler("7ba", t_decay="0.2dur")
POWER = WarmupScheduler(PowerScheduler("9ba", power=0.51), "9ba", alpha_s=0.1)
KINDS = {
    "stable": WSD,
    "fixed decay": WarmupStableDecayScheduler("700sp", t_decay="1900sp", decay="1-sqrt", alpha_f=0.1),
    "inverse square root": InverseSquareRootWithWarmupScheduler("7ba", t_scale="11ba", t_cooldown="0.15dur"),
    "cooldown": CooldownScheduler(POWER, t_decay="0.3dur", decay="geometric", alpha_f=0.01),
    "product": ProductScheduler([WSD, PowerScheduler("500sp"), MultiStepScheduler(["20ba"], gamma=0.7)]),
    "warmup of a product": WarmupScheduler(ProductScheduler([WSD, ConstantScheduler(0.3)]), "13ba", warmup="cosine"),
}
GROWING = BatchSizeSchedule("0:16 400:32 1700:48", unit="sp")
IN_BATCHES = BatchSizeSchedule({"0ba": 8, "10ba": 24, "25ba": 32})
RUNS = {
    **{f"batches of {size}": {"samples_per_batch": size, "tokens_per_sample": 10} for size in (4, 7, 32, 50, 64, 250)},
    "growing batches": {"samples_per_batch": GROWING, "tokens_per_sample": 10},
    "growing in batches": {"samples_per_batch": IN_BATCHES, "tokens_per_sample": 10},
}
LENGTHS = {"samples": ["9000sp", "5000sp", "7001sp"], "tokens": ["90001tok", "50000tok", "70010tok"]}


def program(schedule: Schedule, **run: Any) -> dict[str, Any]:
    """The names that the page's program defines, with another schedule and other clocks."""
    names: dict[str, Any] = {}
    for source in EXAMPLES:
        if source.startswith(("import ", "from ", "def ")):
            exec(source, names)
    names.update(schedule=schedule, make_clock=lambda length: Clock(length, **run))
    return names


def learning_rates(
    names: dict[str, Any], length: str, state: Any = None, starts: Any = (), saved: Any = None
) -> dict[int, float]:
    """The learning rates of a run by batch, until its end; states are saved at the last batch before each start."""
    clock, optimizer = names["make_clock"](length), sgd(lr=1.0)
    scheduler = bind(names["schedule"], optimizer, clock)
    if state is not None:
        scheduler.load_state_dict(state)
    values = {clock.timestamp.batch.value: optimizer.param_groups[0]["lr"]}
    while not clock.done:
        clock.tick()
        scheduler.step()
        values[clock.timestamp.batch.value] = optimizer.param_groups[0]["lr"]
        for start in starts:
            if clock.before(start):
                saved[start] = scheduler.state_dict()
    return values


CASES = list(product(KINDS, RUNS, LENGTHS))


# Each schedule in each run, with lengths in one of the two units; make test-deep has both.
@pytest.mark.parametrize(("kind", "run", "unit"), CASES if IS_DEEP else CASES[::4] + CASES[3::4])
def test_a_branch_is_its_own_run_bit_for_bit(kind: str, run: str, unit: str) -> None:
    names, lengths, saved = program(KINDS[kind], **RUNS[run]), LENGTHS[unit], {}
    starts = names["find_starts"](names["schedule"], lengths)
    stable = learning_rates(names, max(lengths), None, starts.values(), saved)
    for length, start in starts.items():
        own = learning_rates(names, length)
        state = saved[start]
        branch = learning_rates(names, length, state)
        first = min(branch)
        assert first == state["clock"]["batch"]
        assert branch == {batch: value for batch, value in own.items() if batch >= first}
        before = {batch: value for batch, value in own.items() if batch <= first}
        assert before == {batch: stable[batch] for batch in before} and len(before) == first + 1


TIMES_IN_DUR = "at 1ba. Write the times"
STEP = MultiStepScheduler(["0.5dur"], 0.5)
SPIKE = PiecewiseScheduler([["0ba", 1], ["0.1dur", 1], ["0.1dur", 2], ["0.101dur", 1]])
STOPS: list[tuple[Schedule, list[str], str]] = [
    # no mark "decay"
    (CosineAnnealingScheduler(), ["100ba", "200ba"], "it has no mark 'decay'. Use another."),
    (ConstantScheduler(), ["100ba"], "it has no mark 'decay'. Use another."),
    (WarmupStableDecayScheduler("0ba", t_decay="50ba"), ["100ba", "50ba"], "it has no mark 'decay'. Use another."),
    # the schedules differ before the branch
    (WarmupStableDecayScheduler("0.1dur", t_decay="5ba"), ["100ba", "200ba"], TIMES_IN_DUR),
    (ProductScheduler([WSD, CosineAnnealingScheduler()]), ["200ba", "100ba"], "100ba and 200ba differ at 1ba. Write"),
    (ProductScheduler([WSD, STEP]), ["100ba", "200ba"], "100ba and 200ba differ at 50ba. Write"),
    (ProductScheduler([WSD, SPIKE]), ["1000ba", "2000ba"], "1000ba and 2000ba differ at 100ba. Write"),
    (CooldownScheduler(LinearScheduler(), "5ba"), ["100ba", "200ba"], TIMES_IN_DUR),
    # lengths that do not compare, or are none
    (WSD, ["100ba", "10ep"], "Cannot compare 10ep and 100ba: their units differ."),
    (WSD, ["100ba", "100"], "'100' has no unit"),
    (WSD, ["100ba", "0ba"], "max_duration='0ba': it is not above 0"),
    # what `before` needs
    (WarmupStableDecayScheduler("5sec"), ["60sec"], "Clock.before.time='54sec': no conversion"),
]


@pytest.mark.parametrize(("schedule", "lengths", "message"), STOPS)
def test_the_program_stops(schedule: Schedule, lengths: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        program(schedule)["find_starts"](schedule, lengths)


def test_without_the_comparison_a_branch_loads_and_has_other_weights() -> None:
    """A warmup in `dur`, in the runs of the page: the values are equal at the save, and were different before it."""
    names = program(WarmupStableDecayScheduler("0.1dur", t_decay="0.2dur"), samples_per_batch=8)
    clock, parts = names["make_run"]("504sp")
    while not clock.before("128sp"):
        names["train_batch"](clock, parts)
    clock, branch = names["make_run"]("160sp", [part.state_dict() for part in parts])  # raises nothing
    other, own = names["make_run"]("160sp")
    while not clock.done:
        names["train_batch"](clock, branch)
    while not other.done:
        names["train_batch"](other, own)
    assert branch[1].param_groups[0]["lr"] == own[1].param_groups[0]["lr"] == 0.0
    assert not torch.equal(branch[0].weight, own[0].weight)
