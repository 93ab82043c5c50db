"""Helpers that many tests share: small optimizers and models, their training, and the values of their groups."""

import io
import sys
from collections import Counter
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import torch

from timesched import BatchSizeSampler

_ROOT = Path(__file__).parents[1]


def parameters(n=1):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3)) for _ in range(n)]


def sgd(*groups, kind=torch.optim.SGD, lr=1.0, **arguments):
    """SGD of torch, or an optimizer of class `kind`, with one parameter in each group: one group, or these groups."""
    return kind([{"params": parameters(), **group} for group in groups or ({},)], lr=lr, **arguments)


def values(optimizer, key="lr"):
    """The values of a key in the groups."""
    return [float(group[key]) for group in optimizer.param_groups]


def batches_of_loop(sampler, sizes, clock):
    """The batches that a plain loop gets from a `BatchSizeSampler`, until the run of the clock ends."""
    batches, rows = BatchSizeSampler(sampler, sizes, clock), []
    while not clock.done:
        for batch in batches:
            rows.append(batch)
            clock.tick(samples=len(batch))
            if clock.done:
                return rows
        clock.next_epoch()
    return rows


def tick(clock, batches, *schedulers, **amounts):
    """Run some batches of a loop whose schedulers follow a clock; `amounts`: the samples and tokens of a batch."""
    for _ in range(batches):
        clock.tick(**amounts)
        for scheduler in schedulers:
            scheduler.step()


def counts(clock, batches_per_epoch):
    """Where a clock is in each unit, as rational numbers, from its counters alone."""
    stamp, end = clock.timestamp, clock.max_duration
    found = {
        "ba": Fraction(stamp.batch.value),
        "sp": Fraction(stamp.sample.value),
        "tok": Fraction(stamp.token.value),
        "ep": stamp.epoch.value + Fraction(stamp.batch_in_epoch.value, batches_per_epoch),
        "sec": Fraction(stamp.total_wct // timedelta(microseconds=1), 10**6),
    }
    return found | {"dur": found[end.unit.value] / end.exact}


def update(*optimizers):
    """One step of each optimizer, with gradients of 1."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()


def run(steps, clock, optimizer, scheduler, **amounts):
    """The first group's learning rate after each step of a loop; `clock`: None if the scheduler counts its steps."""
    learning_rates = []
    for _ in range(steps):
        optimizer.step()
        if clock is not None:
            clock.tick(**amounts)
        scheduler.step()
        learning_rates.append(values(optimizer)[0])
    return learning_rates


def network(seed=0):
    """A model that every optimizer takes, and the loss of a batch."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 1, bias=False))
    inputs = torch.randn(16, 4)
    return model, lambda one: (one(inputs) - inputs.sum(1, keepdim=True)).square().mean()


def train(model, optimizer, loss_of, steps=3, schedulers=(), clock=None):
    """Train with the loop of the README, and return the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        if clock is not None:
            clock.tick()
        for scheduler in schedulers:
            scheduler.step()
        losses.append(loss.item())
    return losses


def count_calls(function, packages=None):
    """The number of calls of Python functions while a function runs: of all, or of those in some packages."""
    calls = 0

    def profile(frame, event, argument):
        nonlocal calls
        if packages is None or str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
            calls += event == "call"

    _run_profiled(function, profile)
    return calls


def calls_by_file(function):
    """The number of calls of functions of timesched and optim while a function runs, by file.

    A comprehension is no call, because Python 3.12 runs it without one. Methods that a dataclass generates are in no
    file.
    """
    calls = Counter()

    def profile(frame, event, argument):
        file, name = frame.f_code.co_filename.removeprefix(f"{_ROOT}/"), frame.f_code.co_name
        is_function = event == "call" and not name.endswith("comp>") and name != "<genexpr>"
        if is_function and file.startswith(("timesched/", "optim/")):
            calls[file] += 1

    _run_profiled(function, profile)
    return calls


def _run_profiled(function, profile):
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)


def save_and_load(value):
    """A copy of a value that was saved and loaded."""
    torch.save(value, buffer := io.BytesIO())
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def bits(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(parameters, other_parameters):
    return all(torch.equal(p, q) for p, q in zip(parameters, other_parameters, strict=True))
