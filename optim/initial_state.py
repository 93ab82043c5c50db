"""The state of torch's optimizers before their first step: `optim.preinitialize`, and its size: `optim.state_bytes`."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from timesched.types import ParamGroup

from .algorithms import adadelta, adagrad, adam, adamax, asgd, nadam, radam, rmsprop, rprop, sgd
from .base.hyperparameters import is_switched_off
from .base.scalar_states import STEP
from .base.sharding import local_shard, remember_dtensor
from .muon import muon
from .state.optimizer import Optimizer, State
from .step.rule_optimizer import RuleOptimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

# Our class with the same state as a class of torch or Composer, except for the device of some numbers.
_AS_IN_TORCH: tuple[type[RuleOptimizer], ...] = (
    adadelta.Adadelta, adagrad.Adagrad, adam.Adam, adam.AdamW, adamax.Adamax, asgd.ASGD, muon.Muon, nadam.NAdam,
    radam.RAdam, rmsprop.RMSprop, rprop.Rprop, sgd.SGD,
)  # fmt: skip
SAME_STATE: dict[str, type[RuleOptimizer]] = {
    **{f"torch.optim.{kind.__name__}": kind for kind in _AS_IN_TORCH},
    "composer.optim.DecoupledSGDW": sgd.SGD,
    "composer.optim.DecoupledAdamW": adam.AdamW,
}
# Why the initial state of a class is not known, and what to do instead.
UNKNOWN = {
    "torch.optim.Adafactor": "its state differs from optim.Adafactor. Use optim.Adafactor",
    "torch.optim.LBFGS": "its history grows with each step. Let it make its state in its first step",
    "torch.optim.SparseAdam": "its gradients are sparse. Let it make its state in its first step, or use optim.Adam",
}
OTHER_CLASS = (
    "its class has a step or an _init_group of its own. Write a subclass of optim.Optimizer with a preinitialize(), or "
    "load a checkpoint with torch.distributed.checkpoint.state_dict, which makes the state itself"
)


def preinitialize(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Create all state of an optimizer of torch before its first step, and return the optimizer.

    No step is made. Training is bit-identical with and without this call. Every parameter gets its state, also a
    parameter that does not require a gradient. Existing state is kept, so you can complete a run in progress after
    add_param_group(). These classes are known:

    * The optimizers of this package, which are returned unchanged.
    * The optimizers of `torch.optim` with the same state as our class of the same name: ASGD, Adadelta, Adagrad, Adam,
      AdamW, Adamax, Muon, NAdam, RAdam, RMSprop, Rprop and SGD. (There are two differences. With SGD the sign of zeros
      differs, since the first buffer is then 0 plus the gradient. In bfloat16 with `foreach=True`, its last bits differ
      if a parameter has its first gradient later than others.)
    * `DecoupledSGDW` and `DecoupledAdamW` of Composer.
    * Subclasses of these classes of torch and Composer that override neither `step` nor `_init_group`.

    Step counts are on the device where the class makes them. For a parameter on the meta device, all state is there.

    Call it when hyperparameters have their final values, so after you make schedulers: the step size of Rprop and the
    eta of ASGD start with the lr.

    Raises TypeError if `optimizer` is no optimizer. Raises ValueError, with nothing changed, for any other class, also
    for torch's Adafactor, LBFGS and SparseAdam. Also for SGD with momentum and dampening, whose first gradient enters
    the buffer undampened.

    >>> import torch
    >>> from optim import preinitialize
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = preinitialize(torch.optim.Adam(model.parameters()))
    >>> {
    ...     key: tuple(value.shape)
    ...     for key, value in optimizer.state[model.weight].items()
    ... }
    {'step': (), 'exp_avg': (2, 3), 'exp_avg_sq': (2, 3)}
    >>> optimizer.state[model.bias]["step"].item()
    0.0
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"preinitialize.optimizer={optimizer!r:.80}: this is no optimizer. Pass an instance.")
    optimizer.state.update(missing_state(optimizer, "preinitialize"))
    return optimizer


def state_bytes(target: torch.optim.Optimizer | tuple[object, ...]) -> int:
    """The bytes of all state tensors of an optimizer, once every parameter has had a gradient.

    target is an optimizer, or (class, parameters) or (class, parameters, arguments), with the keyword arguments as a
    dict. Then the optimizer is built without allocating memory, and the parameters may be on the meta device. State
    that does not exist yet, as in any torch optimizer before its first step, is counted in advance. Nothing changes.

    Each tensor of the state counts as its number of elements times the bytes of an element; a DTensor counts as its
    local part. Parameters that do not require a gradient count like the others.

    Raises TypeError if target is something else. Raises ValueError for an optimizer that `preinitialize` rejects.

    >>> import torch
    >>> from optim import state_bytes
    >>> weight = torch.nn.Parameter(torch.zeros(1000, 1000))
    >>> # two moments, and four bytes of a step counter:
    >>> state_bytes(torch.optim.AdamW([weight]))
    8000004
    >>> ten_billion = [
    ...     torch.empty(100_000, 100_000, dtype=torch.bfloat16, device="meta")
    ... ]
    >>> state_bytes((torch.optim.SGD, ten_billion, {"lr": 0.1, "momentum": 0.9}))
    20000000000
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that are made in this mode take no memory
    optimizer = target if isinstance(target, torch.optim.Optimizer) else make_optimizer(target, fake)
    with fake:
        missing = missing_state(optimizer, "state_bytes")
        values = tree_leaves(list({**optimizer.state, **missing}.values()))
        return sum(local_shard(x, x).nbytes for x in values if isinstance(x, Tensor))


def make_optimizer(target: object, fake: FakeTensorMode) -> torch.optim.Optimizer:
    """Make an optimizer from its class, parameters and arguments."""
    kind, params, *rest = target if isinstance(target, tuple) and len(target) in (2, 3) else (None, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise TypeError(f"state_bytes.target={target!r:.80}: no optimizer. Pass one, or (class, params, arguments).")
    arguments: dict[str, Any] = dict(*rest)
    # The class may read the value of a tensor, which a fake tensor does not have.
    values: dict[str, Any] = {key: x.item() if isinstance(x, Tensor) else x for key, x in arguments.items()}
    with fake:
        return kind(params, **values)


# The initial state of a known class


def missing_state(optimizer: torch.optim.Optimizer, function_name: str) -> dict[Tensor, State]:
    """The initial state of each parameter without state.

    Raises ValueError for an optimizer without a known initial state. The error names `function_name`.
    """
    if isinstance(optimizer, Optimizer):
        return {}
    class_name = require_known_class(type(optimizer), function_name)
    kind = SAME_STATE[class_name]
    ours = kind.__new__(kind)  # only used for its initial states
    missing: dict[Tensor, State] = {}
    for group in optimizer.param_groups:
        remember_dtensor(group["params"])
        if kind is sgd.SGD and not (is_switched_off(group["momentum"]) or is_switched_off(group["dampening"])):
            raise ValueError(
                f"{function_name}: dampening={group['dampening']!r}: the first gradient enters the buffer undampened, "
                "which no initial buffer can do. Pass dampening=0, or use optim.SGD in place of torch's SGD."
            )
        hyperparameters = dict(group)
        if kind is adagrad.Adagrad:  # torch's class reads it from the constructor's arguments, not from the group
            hyperparameters["initial_accumulator_value"] = optimizer.defaults["initial_accumulator_value"]
        for p in group["params"]:
            if not optimizer.state.get(p) and (p.is_floating_point() or p.is_complex()):
                missing[p] = convert_state(ours.initial_state(p, hyperparameters), class_name, p, group)
    return missing


def convert_state(state: State, class_name: str, p: Tensor, group: ParamGroup) -> State:
    """A parameter's initial state in the form of a class of torch or Composer."""
    if class_name == "composer.optim.DecoupledSGDW":
        return {"momentum_buffer": None, **state}  # it has the key also without momentum
    if (group.get("fused") or class_name == "composer.optim.DecoupledAdamW") and STEP in state:
        return {**state, STEP: state[STEP].float()}
    if group.get("capturable") or class_name == "torch.optim.ASGD" or p.is_meta:
        return state
    return {key: x.cpu() if key in (STEP, "mu_product") else x for key, x in state.items()}


# Which class is known


def require_known_class(kind: type, function_name: str) -> str:
    """The name of the class whose state an optimizer class has, as `"torch.optim.Adam"`.

    It is the class itself, or a base whose `step` and `_init_group` it does not override. Raises ValueError if there is
    none. The error names `function_name`.
    """
    why = OTHER_CLASS
    for base in kind.__mro__:
        name = public_name(base)
        if name in SAME_STATE and has_step_of(kind, base):
            return name
        why = UNKNOWN.get(name, why)
    raise ValueError(f"{function_name}: the initial state of {kind.__name__} is not known: {why}.")


def public_name(kind: type) -> str:
    """The name of a class with its package, as `"torch.optim.Adam"` for a class of the module `torch.optim.adam`."""
    return ".".join([*kind.__module__.split(".")[:2], kind.__name__])


def has_step_of(kind: Any, base: Any) -> bool:
    """Whether a class overrides neither of the methods of its base that make state."""
    names = ("step", "_init_group")
    return all(unwrap_method(getattr(kind, name)) is unwrap_method(getattr(base, name)) for name in names)


def unwrap_method(method: Any) -> Any:
    """A method without torch's wrappers. (torch wraps the step of a class when its first object is made.)"""
    while hasattr(method, "__wrapped__") and method.__globals__.get("__name__", "").startswith("torch."):
        method = method.__wrapped__
    return method
