"""Absolute-value learning-rate schedulers: each sets the learning rate itself, from the number of steps alone.

The same schedulers for the weight decay are in `optim.weight_decay_scheduler`. Their arguments are the same, but are
named after values. For any other hyperparameter, bind a schedule of timesched: `timesched.bind(schedule, optimizer,
clock, key="momentum")`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import Unpack

from timesched.binding.groups import APPLIED_FACTOR, loses_learning_rate_factor
from timesched.binding.owner import Refusal

from .closed_form import formulas
from .closed_form.formulas import ClosedForm, Steps
from .scheduler import Options, Scheduler
from .scheduler_bases import composed, functions

__all__ = [
    "ChainedLR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "InverseExponentialTimeDecayLR",
    "InverseSquareRootDecayLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PiecewiseConstantLR",
    "PolynomialLR",
    "ScalePerParamLR",
    "SequentialLR",
    "StepLR",
    "WarmupStableDecayLR",
]


class LRScheduler(Scheduler):
    """Sets the learning rate of parameter groups to a value that depends on the number of steps alone.

    A subclass computes the learning rate in `_get_closed_form_lr()`, from `last_epoch` by operations of torch, and
    returns a 0-dim tensor.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> class Ramp(LRScheduler):
    ...     def __init__(self, optimizer, rate, total_iters):
    ...         self.rate = rate
    ...         super().__init__(optimizer, total_iters=total_iters)
    ...     def _get_closed_form_lr(self):
    ...         done = torch.clamp(self.last_epoch / self.total_iters, max=1.0)
    ...         return self.rate * done
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> Ramp(optimizer, 0.5, total_iters=2).values(4)
    [0.0, 0.25, 0.5, 0.5]
    """

    param_group_key = "lr"
    hook = "_get_closed_form_lr"
    argument_names = {  # noqa: RUF012 (ClassVar, as in the base)
        "val": "learning_rate", "vals": "learning_rates", "initial_val": "initial_learning_rate",
        "end_val": "end_learning_rate", "base_val": "base_lr", "max_val": "max_lr",
    }  # fmt: skip

    _get_closed_form_lr = Scheduler._get_closed_form

    def _review_groups(self) -> None:
        """Write no more if a group has a factor that nothing uses. A `ScalePerParamLR` may still wrap the scheduler."""
        groups = self.optimizer.param_groups
        losing = [i for i in self.indices if loses_learning_rate_factor(groups[i])]
        if losing and not (self.factor_power or self.refusal):
            key = APPLIED_FACTOR if APPLIED_FACTOR in groups[losing[0]] else "adjust_learning_rate"
            self._target.refuse(Refusal.UNUSED_FACTOR, f"{key} of parameter group {losing[0]}")

    def _construct(self, formula: type[ClosedForm], arguments: Mapping[str, Any]) -> None:
        super()._construct(formula, arguments)
        if self._has_positional_arguments and hasattr(torch.optim.lr_scheduler, type(self).__name__):
            self._warn_of_counts_as_rates()

    def _warn_of_counts_as_rates(self) -> None:
        """Warn if a learning rate that is passed by position may be a count, in torch's order."""
        values = [vars(self).get(name) for name in self.argument_names.values()]
        highest = max([float(value) for value in values if isinstance(value, (int, float))], default=0.0)
        initial = min(float(selected.initial_value) for selected in self._target.selected)
        if highest >= max(1.0, 10 * initial) and highest.is_integer():
            warnings.warn(
                f"{type(self).__name__}: its learning rate reaches {highest:g}, and the optimizer has {initial:g}. "
                f"Pass the arguments by name: they are learning rates, in a different order from torch's.",
                stacklevel=4,
            )

    # Methods of the reference suite, for training scripts that were written for it. `step()` calls none of them.

    def update_last_lr(self) -> None:
        """Do nothing: `get_last_lr()` itself reads the groups."""


class ConstantLR(LRScheduler):
    """The same learning rate throughout.

    Formula:
        lr = learning_rate

    Args:
        learning_rate: the learning rate, finite.
        total_iters: the number of steps that it is meant for. A sequence built from a config uses it for its
            milestones; the value does not depend on it. Default: None.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> ConstantLR(optimizer, learning_rate=0.1).values(3)
    [0.1, 0.1, 0.1]
    """

    def __init__(
        self, optimizer: Optimizer, learning_rate: float, total_iters: Steps | None = None, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.Constant, locals())


class PolynomialLR(LRScheduler):
    """From one learning rate to another, along a power of the remaining fraction of the steps.

    Formula:
        T = total_iters * max(1, ceil(t / total_iters)) if cycle else total_iters
        x = min(t / T, 1)
        lr = end_learning_rate + (initial_learning_rate - end_learning_rate) * (1 - x) ** power

    `t` counts the steps taken; `T` is the length, or its next multiple with `cycle`.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        end_learning_rate: the learning rate at `total_iters` and after it, finite.
        total_iters: the number of steps from one to the other, 0 or more; 0 starts with the last learning rate.
        power: the exponent, 0 or more; 1 is a straight line. Default: 1.0.
        cycle: after `total_iters`, continue as if the length were its next multiple, so that each cycle starts lower.
            Default: False.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> PolynomialLR(optimizer, 0.1, 0.0, total_iters=4, power=2.0).values(4)
    [0.1, 0.05625, 0.025, 0.00625]

    Source: `polynomial_decay` of Keras, and `PolynomialLR` of torch, which ends at 0.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, end_learning_rate: float, total_iters: Steps,
        power: float = 1.0, cycle: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Polynomial, locals())


class LinearLR(LRScheduler):
    """A straight line from one learning rate to another, which then stays.

    Formula:
        T = total_iters * max(1, ceil(t / total_iters)) if cycle else total_iters
        x = min(t / T, 1)
        lr = initial_learning_rate + (end_learning_rate - initial_learning_rate) * x

    `t` counts the steps taken; `T` is the length, or its next multiple with `cycle`.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        end_learning_rate: the learning rate at `total_iters` and after it, finite.
        total_iters: the number of steps from one to the other, 0 or more; 0 starts with the last learning rate.
        cycle: after `total_iters`, continue as if the length were its next multiple, so that each cycle starts lower.
            Default: False.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> LinearLR(
    ...     optimizer, initial_learning_rate=0.0, end_learning_rate=0.1, total_iters=4
    ... ).values(6)
    [0.0, 0.025, 0.05, 0.07500000000000001, 0.1, 0.1]

    Source: `polynomial_decay` of Keras with a power of 1.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, end_learning_rate: float, total_iters: Steps,
        cycle: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Linear, locals())


class ExponentialLR(LRScheduler):
    """The initial learning rate, multiplied by `decay_rate` every `total_iters` steps, smoothly or in stairs.

    Formula:
        x = floor(t / total_iters) if staircase else t / total_iters
        lr = initial_learning_rate * decay_rate ** x

    `t` counts the steps taken, and `x` the decays.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        total_iters: the number of steps for one multiplication by `decay_rate`, 1 or more.
        decay_rate: the factor, 0 or more.
        staircase: decay at multiples of `total_iters` only. Default: False.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> ExponentialLR(
    ...     optimizer, initial_learning_rate=0.1, total_iters=2, decay_rate=0.25
    ... ).values(4)
    [0.1, 0.05, 0.025, 0.0125]

    Source: `ExponentialDecay` of Keras.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, total_iters: Steps, decay_rate: float,
        staircase: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Exponential, locals())


class InverseExponentialTimeDecayLR(LRScheduler):
    """The initial learning rate, divided by one plus a multiple of a power of the step count.

    Formula:
        x = floor(t ** step_exponent / total_iters) if staircase else t ** step_exponent / total_iters
        lr = initial_learning_rate / (1 + decay_rate * x)

    `t` counts the steps taken, in steps even if `total_iters` is a time; `x` is the quotient.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        step_exponent: the exponent of the step count, 0 or more.
        total_iters: the divisor of the power of the step count, 1 or more.
        decay_rate: the factor of the quotient, 0 or more.
        staircase: round the quotient down to a whole number. Default: False.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = InverseExponentialTimeDecayLR(
    ...     optimizer, 0.1, step_exponent=1, total_iters=2, decay_rate=2.0
    ... )
    >>> scheduler.values(3)
    [0.1, 0.05, 0.03333333333333333]

    Source: `InverseTimeDecay` of Keras.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, step_exponent: float, total_iters: Steps,
        decay_rate: float, staircase: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.InverseExponentialTimeDecay, locals())


class InverseSquareRootDecayLR(LRScheduler):
    """Constant at first, then falling with the square root of the step count.

    Formula:
        lr = initial_learning_rate * scale / sqrt(max(t, warmup_steps))

    `t` counts the steps taken, in steps even if `warmup_steps` is a time.

    Args:
        initial_learning_rate: the learning rate if `scale` and the root are 1, finite. Default: 1.0.
        scale: a factor, finite; in the paper, one over the root of the model's dimension. Default: 1.0.
        warmup_steps: the number of steps before the learning rate begins to fall, 1 or more. Default: 1.0.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> InverseSquareRootDecayLR(
    ...     optimizer, initial_learning_rate=0.1, scale=2.0, warmup_steps=4
    ... ).values(6)
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.08944271909999159]

    Source: arXiv:1706.03762, section 5.3, without its linear warmup.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float = 1.0, scale: float = 1.0, warmup_steps: Steps = 1.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.InverseSquareRootDecay, locals())


class CosineDecayLR(LRScheduler):
    """The falling half of a cosine from one learning rate to another, which then stays.

    Formula:
        x = min(t / total_iters, 1)
        lr = end_learning_rate + (initial_learning_rate - end_learning_rate) * (1 + cos(pi * x)) / 2

    `t` counts the steps taken; `x` is the completed fraction of `total_iters`.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        end_learning_rate: the learning rate at `total_iters` and after it, finite.
        total_iters: the number of steps from one to the other, 0 or more; 0 starts with the last learning rate.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> CosineDecayLR(
    ...     optimizer, initial_learning_rate=0.1, end_learning_rate=0.0, total_iters=4
    ... ).values(6)
    [0.1, 0.08535533905932738, 0.05, 0.014644660940672627, 0.0, 0.0]

    Source: `CosineDecay` of Keras; arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, end_learning_rate: float, total_iters: Steps,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.CosineDecay, locals())


class WarmupStableDecayLR(LRScheduler):
    """A warmup to a learning rate, a constant phase, and a decay over the last steps to another learning rate.

    Formula:
        p = min(t / warmup_iters, 1) if warmup_iters else 1
        w = {"linear": p, "cosine": (1 - cos(pi * p)) / 2, "1-sqrt": 1 - (1 - p) ** 0.5, "square": p ** 2}[warmup]
        r = min((t - total_iters + decay_iters) / decay_iters, 1) if decay_iters else 1
        s = (
            1 - r if decay == "linear"
            else (1 + cos(pi * r)) / 2 if decay == "cosine"
            else 1 - r ** 0.5 if decay == "1-sqrt"
            else 1 - r ** 2 if decay == "1-square"
            else (decay_rate ** r - decay_rate) / (1 - decay_rate) if decay == "exponential"
            else None
        )
        a = initial_learning_rate
        b = learning_rate
        c = end_learning_rate
        lr = (
            a + (b - a) * w if t < warmup_iters
            else b if t < total_iters - decay_iters
            else b ** (1 - r) * c ** r if decay == "geometric"
            else 1 / (r / c + (1 - r) / b) if decay == "harmonic"
            else c + (b - c) * s
        )

    `t` counts the steps taken; `p` and `r` are the completed fractions of the warmup and of the decay, `w` and `s`
    their shapes.

    Args:
        learning_rate: the learning rate between the warmup and the decay, finite.
        total_iters: the step at which the decay ends, 0 or more.
        warmup_iters: the number of steps of the warmup, 0 or more; 0 starts at `learning_rate`.
        decay_iters: the number of steps of the decay, 0 or more; 0 jumps to the last learning rate at `total_iters`.
        initial_learning_rate: the learning rate at step 0 of a warmup, finite. Default: 0.0.
        end_learning_rate: the learning rate at `total_iters` and after it, finite. Default: 0.0.
        warmup: "linear", "cosine", "1-sqrt" or "square". Default: "linear".
        decay: "linear", "cosine", "1-sqrt", "1-square", "exponential"; or "geometric" or "harmonic", for which
            `learning_rate` and `end_learning_rate` are above 0. Default: "linear".
        decay_rate: the base of an exponential decay, above 0; 1 is a straight line. Default: 0.5.

    Raises:
        ValueError: the warmup and the decay take longer than `total_iters`.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = WarmupStableDecayLR(
    ...     optimizer, 0.5, total_iters=8, warmup_iters=2, decay_iters=4, decay="1-sqrt"
    ... )
    >>> scheduler.values(9)
    [0.0, 0.25, 0.5, 0.5, 0.5, 0.25, 0.1464466094067262, 0.0669872981077807, 0.0]

    Source: arXiv:2404.06395 (MiniCPM); arXiv:2405.18392 for "1-sqrt".
    """

    def __init__(
        self, optimizer: Optimizer, learning_rate: float, total_iters: Steps, warmup_iters: Steps, decay_iters: Steps,
        initial_learning_rate: float = 0.0, end_learning_rate: float = 0.0, warmup: str = "linear",
        decay: str = "linear", decay_rate: float = 0.5, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.WarmupStableDecay, locals())


class SequentialLR(composed.Sequential, LRScheduler):
    """One scheduler after another: each begins at its milestone, and counts its own steps from there.

    Formula:
        i = sum(t >= milestone for milestone in milestones)
        lr = schedulers[i](t - [0, *milestones][i])

    `t` counts the steps taken, `i` the milestones reached; `schedulers[i](s)` is the learning rate of scheduler `i` at
    its step `s`.

    Args:
        optimizer: the optimizer that the schedulers were made with.
        schedulers: one or more schedulers of the same key. The sequence uses their schedules and controls the key; they
            may not write any more.
        milestones: the steps at which the second scheduler and each later scheduler begins, not falling. If several
            begin at the same step, only the last of them is used.

    Raises:
        ValueError: the schedulers have different optimizers, keys or groups, or have taken steps; the milestones fall,
            or their number is not one less than the number of schedulers.
        TypeError: `schedulers` is not a list of absolute-value schedulers.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> schedulers = [LinearLR(optimizer, 0.0, 0.1, 2), ConstantLR(optimizer, 0.1)]
    >>> SequentialLR(optimizer, schedulers, milestones=[2]).values(4)
    [0.0, 0.05, 0.1, 0.1]
    """


class PiecewiseConstantLR(LRScheduler):
    """One learning rate after another, each starting at its milestone.

    Formula:
        n = sum(t >= milestone for milestone in milestones)
        lr = learning_rates[n]

    `t` counts the steps taken, and `n` the milestones reached.

    Args:
        learning_rates: the learning rates, finite; one more than the milestones.
        milestones: the steps at which the second learning rate and each later one begins, 0 or more, not falling.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> PiecewiseConstantLR(
    ...     optimizer, learning_rates=[0.1, 0.05, 0.01], milestones=[1, 3]
    ... ).values(5)
    [0.1, 0.05, 0.05, 0.01, 0.01]

    Source: `PiecewiseConstantDecay` of Keras, whose values hold up to and including their boundary.
    """

    def __init__(
        self, optimizer: Optimizer, learning_rates: Sequence[float], milestones: Sequence[Steps],
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.PiecewiseConstant, locals())


class MultiStepLR(LRScheduler):
    """The initial learning rate, multiplied by `gamma` at each milestone.

    Formula:
        n = sum(t >= milestone for milestone in milestones)
        lr = initial_learning_rate * gamma ** n

    `t` counts the steps taken, and `n` the milestones reached.

    Args:
        initial_learning_rate: the learning rate before the first milestone, finite.
        gamma: the factor, finite.
        milestones: steps, 0 or more, not falling; a repeated milestone multiplies twice.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> MultiStepLR(
    ...     optimizer, initial_learning_rate=0.1, gamma=0.5, milestones=[1, 3]
    ... ).values(5)
    [0.1, 0.05, 0.05, 0.025, 0.025]

    Source: `MultiStepLR` of torch.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, gamma: float, milestones: Sequence[Steps],
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.MultiStep, locals())


class StepLR(LRScheduler):
    """The initial learning rate, multiplied by `gamma` after every `step_size` steps.

    Formula:
        lr = initial_learning_rate * gamma ** floor(t / step_size)

    `t` counts the steps taken.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        step_size: the number of steps from one decay to the next, 1 or more.
        gamma: the factor, finite.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> StepLR(optimizer, initial_learning_rate=0.1, step_size=2, gamma=0.5).values(5)
    [0.1, 0.1, 0.05, 0.05, 0.025]

    Source: `StepLR` of torch.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, step_size: Steps, gamma: float,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Step, locals())


class CosineAnnealingLR(LRScheduler):
    """A cosine wave from the initial learning rate down to `eta_min` at `T_max`, up again, and so on.

    Formula:
        lr = eta_min + (initial_learning_rate - eta_min) * (1 + cos(pi * t / T_max)) / 2

    `t` counts the steps taken.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        T_max: half of the wave's length in steps, 1 or more.
        eta_min: the learning rate at `T_max`, finite. Default: 0.0.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = CosineAnnealingLR(optimizer, initial_learning_rate=0.1, T_max=2)
    >>> [round(value, 4) for value in scheduler.values(5)]
    [0.1, 0.05, 0.0, 0.05, 0.1]

    Source: `CosineAnnealingLR` of torch; arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, T_max: Steps, eta_min: float = 0.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.CosineAnnealing, locals())


class LambdaLR(functions.Functions, LRScheduler):
    """The initial learning rate times the product of functions of the step tensor.

    Formula:
        lr = initial_learning_rate * prod(function(t) for function in functions)

    `t` counts the steps taken. The method `set_lr_lambda()` returns the `functions`, one or several. A subclass
    overrides it; the default functions are `t / 30` and `0.95 ** t`. A function takes a 0-dim int64 tensor. For a
    result in double precision it computes with `t.double()`. The product is computed in double precision.

    Args:
        initial_learning_rate: the factor of the product, finite.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> class Inverse(LambdaLR):
    ...     def set_lr_lambda(self):
    ...         return lambda t: 1.0 / (1.0 + t.double())
    >>> Inverse(optimizer, initial_learning_rate=0.1).values(3)
    [0.1, 0.05, 0.03333333333333333]

    Source: `LambdaLR` of torch, with functions of a tensor.
    """

    def __init__(self, optimizer: Optimizer, initial_learning_rate: float, **options: Unpack[Options]) -> None:
        self._construct(formulas.Lambda, locals())


class CosineAnnealingWarmRestarts(LRScheduler):
    """Falling halves of a cosine down to `eta_min`, each `T_mult` times as long as the previous one.

    Formula:
        i = max(n for n in range(t + 1) if sum(T_0 * T_mult ** k for k in range(n)) <= t)
        x = (t - sum(T_0 * T_mult ** k for k in range(i))) / (T_0 * T_mult ** i)
        lr = eta_min + (initial_learning_rate - eta_min) * (1 + cos(pi * x)) / 2

    `t` counts the steps taken, and `i` the completed cycles; `x` is the completed fraction of the present cycle.

    Args:
        initial_learning_rate: the learning rate at the start of each cycle, finite.
        T_0: the number of steps of the first cycle, 1 or more.
        T_mult: the growth factor of the cycles, 1 or at least 1.1. Default: 1.
        eta_min: the learning rate towards which each cycle falls, finite. Default: 0.0.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = CosineAnnealingWarmRestarts(
    ...     optimizer, initial_learning_rate=0.1, T_0=2, T_mult=2
    ... )
    >>> [round(value, 4) for value in scheduler.values(6)]
    [0.1, 0.05, 0.1, 0.0854, 0.05, 0.0146]

    Source: `CosineAnnealingWarmRestarts` of torch; arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, T_0: Steps, T_mult: float = 1, eta_min: float = 0.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.CosineAnnealingWarmRestarts, locals())


class MultiplicativeLR(functions.Coefficient, LRScheduler):
    """The initial learning rate, multiplied by `coefficient` at each step.

    Formula:
        lr = initial_learning_rate * coefficient ** t

    `t` counts the steps taken. A subclass may return functions of it in `set_lr_lambda()`: see `LambdaLR`.

    Args:
        initial_learning_rate: the learning rate at step 0, finite.
        coefficient: the factor, finite.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> MultiplicativeLR(optimizer, 0.1, coefficient=0.5).values(3)
    [0.1, 0.05, 0.025]

    Source: `MultiplicativeLR` of torch, with one factor.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, coefficient: float, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.Multiplicative, locals())


class ChainedLR(composed.Chained, LRScheduler):
    """The first of several schedulers, times the ratio of each other scheduler to its own first learning rate.

    Formula:
        lr = schedulers[0](t) * prod(s(t) / s(0) for s in schedulers[1:])

    `t` counts the steps taken; `s(t)` is the learning rate of a scheduler `s` at step `t`.

    Args:
        schedulers: one or more schedulers of the same optimizer and key. The chain uses their schedules and controls
            the key; they may not write any more.

    Raises:
        ValueError: the schedulers have different optimizers, keys or groups, or have taken steps; a scheduler after the
            first starts at 0.
        TypeError: `schedulers` is not a list of absolute-value schedulers.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> steps = [StepLR(optimizer, 0.1, 2, 0.5), MultiStepLR(optimizer, 1.0, 0.5, [1])]
    >>> ChainedLR(steps).values(4)
    [0.1, 0.05, 0.025, 0.025]

    Source: `ChainedScheduler` of torch.
    """


class CyclicLR(functions.ScaleFunction, LRScheduler):
    """Straight lines from the base learning rate up to the highest learning rate and down again, over and over.

    Formula:
        down = step_size_down or step_size_up
        n = floor(t / (step_size_up + down))
        u = t - n * (step_size_up + down)
        height = u / step_size_up if u <= step_size_up else (step_size_up + down - u) / down
        scale = {"triangular": 1, "triangular2": 0.5 ** n, "exp_range": gamma ** t}[mode]
        lr = base_lr + (max_lr - base_lr) * height * scale

    `t` counts the steps taken, `n` the completed cycles, `u` the steps of the present cycle; `scale` is the factor of
    the height of the present cycle. A subclass may return its own function in `set_scale_fn()`.

    Args:
        base_lr: the lowest learning rate, also at step 0, finite.
        max_lr: the highest learning rate of the first cycle, finite.
        step_size_up: the number of steps up, 1 or more. Default: 2000.
        step_size_down: the number of steps down, 1 or more; None for as many as up. Default: None.
        mode: "triangular": all cycles have the same height; "triangular2": each cycle has half the height of the
            previous cycle; "exp_range": the height is multiplied by a power of `gamma`. Default: "triangular".
        gamma: the base of "exp_range", 0 or more. Default: 1.0.
        scale_mode: the argument of the function that a subclass's `set_scale_fn()` returns: the number of the "cycle",
            counted from 1, or the number of "iterations", counted from 0. The modes ignore it. Default: "cycle".

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = CyclicLR(optimizer, base_lr=0.1, max_lr=0.3, step_size_up=2)
    >>> [round(value, 4) for value in scheduler.values(6)]
    [0.1, 0.2, 0.3, 0.2, 0.1, 0.2]

    Source: `CyclicLR` of torch; arXiv:1506.01186.
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float, max_lr: float, step_size_up: Steps = 2000,
        step_size_down: Steps | None = None, mode: str = "triangular", gamma: float = 1.0, scale_mode: str = "cycle",
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Cyclic, locals())


class OneCycleLR(LRScheduler):
    """Up to the highest learning rate, then down to the lowest learning rate at the last step, which stays.

    Formula:
        peak = pct_start * total_steps - 1
        m = 2 * peak if three_phase else peak
        u = min(t, total_steps - 1)
        x = u / peak if u <= peak else (u - peak) / peak if u <= m else (u - m) / (total_steps - 1 - m)
        low = initial_learning_rate / final_div_factor
        a = initial_learning_rate if u <= peak else max_lr if u <= m or not three_phase else initial_learning_rate
        b = max_lr if u <= peak else initial_learning_rate if u <= m else low
        lr = b + (a - b) * ((1 + cos(pi * x)) / 2 if anneal_strategy == "cos" else 1 - x)

    `t` counts the steps taken. Each phase goes from `a` to `b`, and `x` is its completed fraction. The phases are: up
    until step `peak`; with `three_phase`, down again as fast until step `m`; then to `low` at the last step.

    Args:
        initial_learning_rate: the learning rate at step 0, finite; in torch, `max_lr / div_factor`. If
            `pct_start * total_steps` is below 1, step 0 is already on the way down, as in torch.
        max_lr: the highest learning rate, finite.
        total_steps: the number of steps, 1 or more; the last step has the index `total_steps - 1`. Default: 1000.
        pct_start: the fraction of the steps on the way up, from 0 to 1, or to 0.5 with three phases. Default: 0.3.
        final_div_factor: the ratio of the initial to the last learning rate, more than 0. Default: 10,000.
        three_phase: come down to the initial learning rate as fast as up, and then to the last learning rate. Default:
            False.
        anneal_strategy: "cos" or "linear", the shape of each phase. Default: "cos".

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = OneCycleLR(optimizer, 0.1, max_lr=1.0, total_steps=5, pct_start=0.4)
    >>> [round(value, 4) for value in scheduler.values(6)]
    [0.1, 1.0, 0.75, 0.25, 0.0, 0.0]

    Source: `OneCycleLR` of torch; arXiv:1708.07120.
    """

    def __init__(
        self, optimizer: Optimizer, initial_learning_rate: float, max_lr: float, total_steps: Steps = 1000,
        pct_start: float = 0.3, final_div_factor: float = 1e4, three_phase: bool = False,
        anneal_strategy: str = "cos", **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.OneCycle, locals())


class ScalePerParamLR(composed.ScaledPerGroup, LRScheduler):
    """A scheduler, times the factor of each group.

    The factor is the group's `lr_factor`, else its `adjust_learning_rate`, else its `adjust_val`, else 1.

    Formula:
        lr = scheduler(t) * factor

    `t` counts the steps taken; `scheduler(t)` is the learning rate of the scheduler at step `t`, and `factor` is the
    factor of the group.

    Args:
        optimizer: the optimizer that the scheduler was made with.
        scheduler: the scheduler to scale. Its schedule is used, and it may not write any more.

    Raises:
        ValueError: a factor is not a finite number; the scheduler has a different optimizer or key, or has taken steps.
        TypeError: `scheduler` is not an absolute-value scheduler.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> optimizer.param_groups[0]["adjust_learning_rate"] = 0.5
    >>> ScalePerParamLR(optimizer, ConstantLR(optimizer, 0.1)).get_last_value()
    [0.05]
    """


ChainedScheduler = ChainedLR
