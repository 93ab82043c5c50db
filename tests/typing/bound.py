"""What a type checker knows of `bind`: checked by `make lint`, never run.

A line with `type: ignore` has to be an error: mypy refuses an ignore that nothing needs.
"""

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from timesched import Clock, CosineAnnealingScheduler, LinearScheduler, bind
from timesched.binding import Bound, BoundLR
from timesched.run.horizon import State


def what_it_takes_and_returns(optimizer: Optimizer, clock: Clock, state: State) -> None:
    rate: BoundLR = bind(CosineAnnealingScheduler(), optimizer, clock)
    scheduler: LRScheduler = bind([LinearScheduler(), lambda state: 0.5], optimizer, state, on_change="new")
    decay: Bound = bind(lambda state, ssr: ssr, optimizer, clock, "weight_decay", tags=["head"])
    first: Bound = bind(LinearScheduler(), optimizer, clock, key="betas[0]")
    print(rate, scheduler, decay.indices, first)


def mistakes(optimizer: Optimizer, clock: Clock, model: Module) -> None:
    bind(LinearScheduler(), model, clock, key="0.p")  # type: ignore[call-overload]  # a value of a model is no key
    bind("cosine", optimizer, clock)  # type: ignore[arg-type]
    bind(LinearScheduler, optimizer, clock)  # type: ignore[arg-type]
    bind(LinearScheduler(), optimizer, clock, on_change="force")  # type: ignore[call-overload]
    bind(LinearScheduler(), clock, optimizer)  # type: ignore[call-overload]
    print(bind(LinearScheduler(), optimizer, clock, "weight_decay").lr_lambdas)  # type: ignore[attr-defined]
