"""The families of classes that a config names."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from timesched.reading import SCHEDULE, Classes, Family
from timesched.schedulers.schedule import Schedule

from .. import lr_scheduler, weight_decay_scheduler
from ..scheduler import Scheduler
from ..state.optimizer import Optimizer
from ..step.rule_optimizer import RuleOptimizer


def _public_subclasses(module: ModuleType, base: type) -> Classes:
    """The public subclasses of a class in a module, by their names."""
    members = ((name, getattr(module, name)) for name in sorted(module.__all__))
    return {name: cls for name, cls in members if isinstance(cls, type) and issubclass(cls, base) and cls != base}


_LR = {"LR": _public_subclasses(lr_scheduler, lr_scheduler.LRScheduler)}
_WD = {"WD": _public_subclasses(weight_decay_scheduler, weight_decay_scheduler.WeightDecayScheduler)}
LR = Family("lr scheduler", _LR, (lr_scheduler.LRScheduler,))
# The values of `main_scheduler`: what a list of learning-rate schedulers becomes.
_MAIN = {name: _LR["LR"][name] for name in ("SequentialLR", "ChainedLR", "ChainedScheduler")}
MAIN_LR = Family("main scheduler", {"LR": _MAIN})
CLOSED_FORM = Family("absolute-value scheduler", _LR | _WD, (Scheduler,))
SCHEDULER = Family("scheduler", {**SCHEDULE.by_suffix, **_LR, **_WD}, (Scheduler, Schedule))


@cache
def optimizers() -> Family:
    """The optimizers. They have no short names."""
    import optim  # not above: it imports this package

    return Family("optimizer", {"": _public_subclasses(optim, RuleOptimizer)}, (Optimizer,))
