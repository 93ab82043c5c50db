"""Half-lives: betas and weight decays that follow from a time, not from a number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from timesched import fields
from timesched.maths import Frame, shapes
from timesched.maths.counts import Milestones, Resolved
from timesched.maths.curves import decay
from timesched.maths.ops import Value
from timesched.rules import NonNegativeTime, read_positive
from timesched.run.horizon import BatchSizes, Horizon, State
from timesched.schedulers.schedule import Schedule
from timesched.time.units import Exact, TimeUnit, unit_of
from timesched.time.value import TimeLike


@dataclass(frozen=True, eq=False, repr=False)
class HalfLife(Schedule):
    """A beta for any batch size: the fraction of an average that a step keeps, if `time` is the average's half-life.

    Formula:
        y = beta ** (step / time)

    `step` is the length of this step, in the unit of `time`, and `y` the value; with `beta` 0.5, `time` is the
    half-life. The exponent is exact, from the conversion factors of the horizon, and is rounded once. Under a
    `BatchSizeSchedule`, each step has the length of its own batch.

    It is a value, not a multiplier: `bind(HalfLife("2e9tok"), optimizer, clock, key="betas[1]")` writes the beta
    itself. Other keys are `betas[0]`, `momentum` and `alpha`. The ratio of a run does not stretch `time`, as it does
    not stretch a batch. A `dur` is a fraction of the scaled run. Epochs have their present length.

    Args:
        time: above 0, in any unit that the run converts to batches.
        beta: the fraction that is kept after each `time`, more than 0 and less than 1. For a beta that is known, use
            `HalfLife.of`. Default: 0.5, a half.

    Raises:
        ValueError: an argument is outside its range. On a run, the conversion factor between batches and the unit of
            `time` is missing, as between batches and seconds.
        TypeError: it is used as a multiplier: called, in a product, in a list of `bind`, or bound to "lr".

    >>> runs = [Horizon("100ba", samples_per_batch=n, tokens_per_sample=1000) for n in (64, 128)]
    >>> [round(HalfLife("2e6tok").at("0ba", run), 4) for run in runs]
    [0.9781, 0.9566]

    Source: arXiv:2507.07101, which keeps the half-life of the second moment in tokens. In arXiv:2205.10287, 1 - beta
    grows in proportion to the batch, which is the same while it is small.
    """

    relative = False
    time: TimeLike = fields.time(above=0)
    beta: float = fields.number(0.5, above=0, below=1, keyword=True)

    @classmethod
    def of(cls, beta: float, batch: TimeLike) -> HalfLife:
        """The half-life of a beta that was tuned with steps of a known length: `beta` is kept after each `batch`.

        Args:
            beta: more than 0 and less than 1.
            batch: the length of a step, such as "0.5Mtok" or "256sp". A run with steps of this length gets exactly
                `beta`.

        Raises:
            ValueError: an argument is outside its range.

        >>> known = HalfLife.of(0.95, batch="0.5Mtok")
        >>> known, known.at("0ba", Horizon("1e9tok", samples_per_batch=1000, tokens_per_sample=1000))  # twice the batch
        (HalfLife.of(0.95, batch='500000tok'), 0.9025)
        """
        return cls(batch, beta=beta)

    def resolve(self, frame: Frame) -> Resolved:
        horizon = frame.horizon
        half_life, counter = horizon.place(self.time, scale=False)

        def value_of_step(count: Exact, unit: TimeUnit) -> Value:
            # On a run of length 0, a half-life in `dur` is 1, as the length of a period.
            return decay(half_lives(horizon.change(count, unit, counter), half_life or 1), self.beta)

        factors = horizon.conversion_factors
        if factors.batch_sizes is None or factors.is_fixed(TimeUnit.BATCH, unit_of(counter)):
            value = value_of_step(1, TimeUnit.BATCH)
            return lambda counts: value
        sizes = factors.batch_sizes.entries
        points = Milestones([frame.run_mark(threshold) for threshold, _ in sizes[1:]])
        return shapes.levels(points, [value_of_step(size, TimeUnit.SAMPLE) for _, size in sizes])

    def __repr__(self) -> str:
        time = repr(str(self.time))
        return f"HalfLife({time})" if self.beta == 0.5 else f"HalfLife.of({self.beta!r}, batch={time})"


def half_lives(elapsed: Exact, half_life: Exact) -> float:
    """The number of half-lives in a time, both as counts of one unit. The quotient is exact, and rounded once.

    >>> half_lives(3, Fraction(3, 2))
    2.0
    """
    return float(elapsed / half_life)


def weight_decay_for(time: TimeLike, lr: float, horizon: Horizon | State) -> float:
    """The weight decay with a timescale of `time`: without gradients, a weight shrinks to 1 / e of itself in `time`.

        weight_decay = 1 / (lr * steps)

    where `steps` is the number of steps in `time`. It is for decoupled weight decay, which subtracts
    `lr * weight_decay` times the weight in each step: AdamW, Lion, Muon. It has no meaning for an optimizer that adds
    the decay to the gradient.

    Args:
        time: above 0, in any unit. The ratio does not stretch it.
        lr: the learning rate, above 0. For a schedule, use its peak.
        horizon: a `Horizon`, a `Clock` or another state, with the conversion factors between `time` and batches.

    Raises:
        ValueError: `time` or `lr` is not above 0. A conversion factor is missing. There is a batch-size schedule, under
            which steps differ in length.

    >>> weight_decay_for("2e9tok", 1e-3, Horizon("1e11tok", samples_per_batch=500, tokens_per_sample=2000))
    0.5

    Source: arXiv:2405.13698, which calls 1 / (lr * weight_decay) the timescale of AdamW.
    """
    horizon = Horizon.of(horizon)
    if isinstance(horizon.samples_per_batch, BatchSizes):
        problem = f"under a batch-size schedule, {time} has no single number of steps"
        raise ValueError(f"weight_decay_for.horizon: {problem}. Pass a horizon with one batch size.")
    length: Any = NonNegativeTime(above=0).read("weight_decay_for.time", time)
    steps = horizon.change(*horizon.place(length, scale=False), TimeUnit.BATCH)
    return float(1 / (read_positive("weight_decay_for.lr", lr) * Fraction(steps)))
