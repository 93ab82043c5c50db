"""The tables of docs/coming_from/hugging_face.md: the calls of each row give the same learning rates."""

import inspect
import re
from ast import literal_eval

import pytest
from transformers import SchedulerType, optimization

import timesched
from tests.building import run, sgd, values
from tests.docs.tables import rows

HEADER = ["`transformers.optimization`", "`lr_scheduler_type`", "`timesched`, with `bind`"]
((*TABLE,),) = rows("coming_from/hugging_face.md", HEADER)
((*DEFAULTS,),) = rows("coming_from/hugging_face.md", ["`transformers.optimization`", "there", "here"])
SAME_DEFAULTS = {"num_cycles", "timescale", "min_lr_ratio", "min_lr", "min_lr_rate", "warmup_type", "num_stable_steps"}
CALL = re.compile(r"`([A-Z]\w+\(.*\))`(?: to step (\d+))?$")
STEPS = 100  # the run: after it, some of theirs rise again or keep falling, where ours stay


def rates(optimizer, scheduler, last, clock):
    """The learning rates of the steps 0 to `last`."""
    return [*values(optimizer), *run(last, clock, optimizer, scheduler)]


@pytest.mark.parametrize("row", [row for row in TABLE if CALL.match(row[2])], ids=lambda row: row[1].strip("`"))
def test_the_calls_of_a_row_agree(row):
    theirs, (_, last) = sgd(lr=0.1), CALL.match(row[2]).groups()
    ours, clock = sgd(lr=0.1), timesched.Clock("100ba")
    scheduler = eval(row[0].strip("`"), {**vars(optimization), "o": theirs})
    bound = timesched.bind(eval(CALL.match(row[2])[1], dict(vars(timesched))), ours, clock)
    expected = rates(theirs, scheduler, int(last or STEPS), timesched.Clock("100ba"))
    assert len(set(expected)) > 5 or "constant" in row[1]
    assert rates(ours, bound, int(last or STEPS), clock) == pytest.approx(expected, rel=1e-12, abs=1e-16)


def test_every_schedule_of_transformers_has_a_row():
    named = [re.match(r"`(\w+)\(", row[0])[1] for row in TABLE]
    functions = {name for name in vars(optimization) if re.fullmatch(r"get_\w+_schedule\w*", name)}
    assert set(named) == functions and len(named) == len(functions)
    types = {row[1].strip("`") for row in TABLE if row[1]}
    assert types == {kind.value for kind in SchedulerType}
    none = [name for name, row in zip(named, TABLE) if not CALL.match(row[2])]
    assert none == [
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
        "get_reduce_on_plateau_schedule",
        "get_greedy_schedule",
        "get_adafactor_schedule",
    ]


def default(thing, cell):
    """What a cell says of an argument, and whether that is its default."""
    name, value = cell.strip("`").split("=")
    return inspect.signature(thing).parameters[name].default == literal_eval(value)


def test_defaults_that_differ_are_listed():
    """Those of the functions whose calls the page has; the others are equal, None, or have no argument of ours."""
    ours = {row[0].strip("`").partition("(")[0]: CALL.match(row[2]) for row in TABLE}
    listed = []
    for name, there, here in DEFAULTS:
        function = name.strip("`")
        listed.append((function, there.strip("`").partition("=")[0]))
        assert default(getattr(optimization, function), there)
        assert default(getattr(timesched, ours[function][1].partition("(")[0]), here)
    for name, call in ours.items():
        arguments = inspect.signature(getattr(optimization, name)).parameters.values() if call else []
        optional = {x.name for x in arguments if x.default is not x.empty and x.name != "last_epoch"}
        assert optional <= SAME_DEFAULTS | {argument for function, argument in listed if function == name} | {
            "num_training_steps"
        }
