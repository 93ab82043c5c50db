"""The formula in the docstring of a schedule gives its values, as it is printed, and it describes all arguments."""

import inspect
import math
import re
from dataclasses import fields
from itertools import pairwise

import pytest

import timesched
from tests.laws.rows import EXAMPLE_CALLS
from timesched import Horizon, Schedule, Time

RUN = Horizon("100ba")
CLASSES = [
    getattr(timesched, name) for name in timesched.__all__ if name.endswith("Scheduler") and name != "ComposerScheduler"
]
DECAYS = ("linear", "cosine", "1-sqrt", "1-square", "exponential", "geometric", "harmonic")
CALLS = [call for call in EXAMPLE_CALLS if "HalfLife" not in call]  # see test_half_lives.py
CALLS += [f'WarmupStableDecayScheduler("10ba", "40ba", alpha_s=0.2, alpha_f=0.1, decay="{each}")' for each in DECAYS]
CALLS += [f'CooldownScheduler(PowerScheduler("5ba"), "20ba", "30ba", alpha_f=0.1, decay="{each}")' for each in DECAYS]
CALLS += [f'PiecewiseScheduler([["0ba", 0.5], ["30ba", 0.1], ["90ba", 0.4, "{each}"]])' for each in DECAYS]
CALLS += [f'WarmupScheduler(PowerScheduler("5ba"), "20ba", 0.3, "{each}")' for each in ("cosine", "1-sqrt", "square")]
CALLS += [
    'WarmupStableDecayScheduler("0ba", "0ba", t_max="100ba", alpha_f=0.5)',
    'CyclicScheduler("10ba", "20ba", alpha_i=0.2)',
    'OneCycleScheduler(pct_start=0.2, anneal="cosine", three_phase=True)',
    'InverseSquareRootWithWarmupScheduler("10ba", "20ba", "30ba", alpha_f_decay=0.3, alpha_f_cooldown=0.1)',
    'CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.2, alpha_s=0.1)',
    'ConstantWithWarmupScheduler("10ba", alpha=0.5, alpha_s=0.1)',
    'PolynomialWithWarmupScheduler("10ba", alpha_f=0.2, alpha_s=0.1)',
    'LinearWithWarmupScheduler("10ba", alpha_i=0.9, alpha_f=0.2, alpha_s=0.1)',
    'MultiStepWithWarmupScheduler("10ba", ["50ba"], alpha_s=0.1)',
]
KNOWN = {"max": max, "min": min, "sum": sum, "range": range, "__builtins__": {}}
KNOWN |= {name: getattr(math, name) for name in ("ceil", "cos", "floor", "pi", "prod", "sqrt")}


def lines(cls):
    return inspect.cleandoc("\n" + inspect.getdoc(cls).split("Formula:\n")[1].split("\n\n")[0])


def symbol(value):
    """What an argument stands for in a formula: a time is a number of batches, a schedule a function of it."""
    if isinstance(value, Time):
        count = RUN.convert(value, "ba").value
        return int(count) if count == int(count) else count
    if isinstance(value, Schedule):
        alone = timesched.SequenceScheduler([value], [])  # where it may end before the run does
        return lambda t: alone.at(Time(t, "ba"), RUN)
    return [symbol(each) for each in value] if isinstance(value, tuple) else value


def symbols(schedule, t):
    names = {field.name: symbol(getattr(schedule, field.name)) for field in fields(schedule)}
    if isinstance(schedule, timesched.CooldownScheduler) and schedule.t_start is None:
        names["t_start"] = names["t_max"] - names["t_decay"]
    if isinstance(schedule, timesched.PiecewiseScheduler):
        points = [(symbol(time), value, shape) for time, value, shape in schedule.points]
        two = [pair for pair in pairwise(points) if pair[0][0] <= t <= pair[1][0]]
        (names["t0"], names["a"], _), (names["t1"], names["b"], names["shape"]) = two[-1]
    return {**KNOWN, **names, "t": t}


@pytest.mark.parametrize("call", CALLS)
def test_the_formula_gives_the_values(call):
    schedule = eval(call, dict(vars(timesched)))
    code = compile(lines(type(schedule)), call, "exec")
    last = 90 if isinstance(schedule, timesched.PiecewiseScheduler) else 120
    for t in range(last + 1):
        names = symbols(schedule, t)
        exec(code, names)
        assert names["y"] == pytest.approx(schedule.at(Time(t, "ba"), RUN), rel=1e-12, abs=1e-14), t


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_docstring_has_a_formula_that_is_tried_and_all_arguments(cls):
    assert lines(cls) and any(call.startswith(f"{cls.__name__}(") for call in CALLS)
    described = inspect.getdoc(cls).split("\nArgs:\n")[1].split("\n\n")[0]
    assert re.findall(r"^    (\w+): ", described, re.MULTILINE) == list(inspect.signature(cls).parameters)
    for name, parameter in inspect.signature(cls).parameters.items():
        text = re.search(rf"^    {name}: (.*?)(?=^    \w+: |\Z)", described, re.MULTILINE | re.DOTALL)[1]
        has_default = parameter.default is not inspect.Parameter.empty
        assert has_default == bool(re.search(r"Default: |\(the default\)", text)), f"the default of {name}"
