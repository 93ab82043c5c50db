"""The schedules that go up and down: once, or over and over."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from timesched import shapes
from timesched.curves import decay
from timesched.fields import choice, flag, number, time
from timesched.positions import Frame, Mark, Period, Resolved, Span
from timesched.schedule import Schedule
from timesched.time.units import TimeError, exact
from timesched.time.value import TimeLike


@dataclass(frozen=True, eq=False, repr=False)
class OneCycleScheduler(Schedule):
    """From a low value up to 1, and down to a much lower one.

    It starts at `1 / div_factor`, is 1 at `pct_start * t_max`, and `1 / (div_factor * final_div_factor)` at `t_max`.
    With `three_phase` it comes down as fast as it went up, to `1 / div_factor` at `2 * pct_start * t_max`, and from
    there to the last value. After `t_max` it stays there. The optimizer's own learning rate is the highest one.

    `pct_start`: from 0 to 1, or to 0.5 with three phases. `div_factor`, `final_div_factor`: above 0. `anneal`: the
    shape of each phase, "cosine" or "linear". Called with a run, raises `ValueError` when `t_max`, stretched or not,
    ends before the run (but not in a `SequenceScheduler`).

    >>> from timesched import Horizon
    >>> schedule = OneCycleScheduler(pct_start=0.25, div_factor=2.0, final_div_factor=5.0)
    >>> [schedule.at(t, Horizon("100ba")) for t in ("0ba", "25ba", "100ba")]
    [0.5, 1.0, 0.1]

    Source: arXiv:1708.07120; `cosine_onecycle_schedule` of optax. torch's `OneCycleLR` has its peak and its end one
    step earlier.
    """

    t_max: TimeLike = time("1dur")
    pct_start: float = number(0.3, least=0)
    div_factor: float = number(25.0, above=0)
    final_div_factor: float = number(1e4, above=0)
    anneal: str = choice("cosine", "cosine", "linear")
    three_phase: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pct_start > (0.5 if self.three_phase else 1.0):
            raise TimeError(f"OneCycleScheduler.pct_start={self.pct_start}: it is at most 1, or 0.5 with three phases.")

    def resolve(self, frame: Frame) -> Resolved:
        frame.refuse_short(self.t_max, self)
        end, share, shape = frame.mark(self.t_max, note="end"), exact(self.pct_start), shapes.WARMUPS[self.anneal]
        first, last = 1.0 / self.div_factor, 1.0 / (self.div_factor * self.final_div_factor)
        turns = [(share, 1.0), (2 * share, first)] if self.three_phase else [(share, 1.0)]
        places = [(Mark(end.counter, end.unit, at * end.count), value) for at, value in (*turns, (1, last))]
        start = (Mark(end.counter, end.unit, 0), first)
        frame.note("peak", places[0][0])
        return shapes.through(frame, [(mark, value, shape) for mark, value in (start, *places)])


@dataclass(frozen=True, eq=False, repr=False)
class CyclicScheduler(Schedule):
    """Straight lines from `alpha_i` up to `alpha_f` over `t_up`, and back over `t_down`, again and again.

    The height of the lines is multiplied by 1 for the `mode` "triangular"; by 1/2 for each cycle that is complete, for
    "triangular2"; and by `gamma ** (t / (t_up + t_down))` for "exp_range".

    `t_up`, `t_down`: above 0; None for a `t_down` as long as `t_up`. `gamma`: 0 or more; a factor for each cycle, not
    for each step, so that it means the same in every unit: of torch's `gamma`, take the power of the steps in a cycle.
    Called with a run, raises `ValueError` when `t_down` does not convert to the unit of `t_up`.

    >>> from timesched import Horizon
    >>> schedule = CyclicScheduler("10ba", alpha_i=0.0, mode="triangular2")
    >>> [schedule.at(t, Horizon("100ba")) for t in ("5ba", "10ba", "20ba", "30ba")]
    [0.5, 1.0, 0.0, 0.5]

    Source: arXiv:1506.01186; `CyclicLR` of torch.
    """

    t_up: TimeLike = time(above=0)
    t_down: TimeLike | None = time(None, above=0, optional=True)
    alpha_i: float = number(0.1)
    alpha_f: float = number(1.0)
    mode: str = choice("triangular", "triangular", "triangular2", "exp_range")
    gamma: float = number(1.0, least=0)

    def resolve(self, frame: Frame) -> Resolved:
        up = frame.mark(self.t_up)
        length = up.count + (up.count if self.t_down is None else frame.length(self.t_down, up.unit))
        frame.note("period", Mark(up.counter, up.unit, length))
        cycles, peak, gamma = Period(up.counter, length), float(up.count / Fraction(length)), self.gamma
        complete, done = cycles.complete, Span(up.counter, 0, length).done
        scale: Resolved = {
            "triangular": lambda counts: 1.0,
            "triangular2": lambda counts: decay(complete(counts), 0.5),
            "exp_range": lambda counts: decay(done(counts, False), gamma),
        }[self.mode]
        shrinks = self.mode != "exp_range" or gamma <= 1.0
        return shapes.triangles(cycles, peak, self.alpha_i, self.alpha_f, scale, shrinks)
