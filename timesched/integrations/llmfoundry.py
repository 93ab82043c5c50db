"""Schedules and optimizers by name in a YAML of llm-foundry, as `timesched.LinearScheduler` and `optim.AdamW`.

llm-foundry finds them by the entry points of this package. It accepts a scheduler only if its class derives from
Composer's `ComposerScheduler`, so this module has such a class for each schedule that takes no other schedule. The
classes have the names, arguments and values of those in `timesched`. An optimizer is the class of `optim` itself.

>>> from timesched.integrations.llmfoundry import LinearScheduler
>>> LinearScheduler(alpha_f=0.1)
LinearScheduler(alpha_i=1.0, alpha_f=0.1, t_max='1.0dur')
"""

from __future__ import annotations

from types import new_class

from composer.optim.scheduler import ComposerScheduler

from timesched import schedulers
from timesched.packages import check_optim
from timesched.schedulers.schedule import Schedule


def _derive_class(cls: type[Schedule]) -> type[Schedule]:
    """A subclass of a schedule and of Composer's class. Copies and pickles find it in this module by its name."""
    attributes = {"__doc__": cls.__doc__, "__module__": __name__, "__qualname__": cls.__qualname__}
    return new_class(cls.__name__, (cls, ComposerScheduler), exec_body=lambda namespace: namespace.update(attributes))


globals().update({name: _derive_class(getattr(schedulers, name)) for name in schedulers.__all__})


def __getattr__(name: str) -> type:
    """An optimizer, by the name of its class in `optim`. Raises `ImportError` if another `optim` hides ours."""
    if name.startswith("__"):
        raise AttributeError(name)
    check_optim()
    from optim.config.names import optimizers

    if name not in optimizers().public_classes:
        raise AttributeError(f"{__name__} has no class {name!r}. It has the schedules and optimizers by their names.")
    return optimizers().public_classes[name]
