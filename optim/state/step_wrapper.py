"""The wrapper of every `step`: it disables gradients, runs torch's hooks, and refuses state that the step created.

torch wraps `step` itself, which breaks the graph of a compiled step. The attribute `hooked` tells torch not to do so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.optim.optimizer as torch_optimizer

if TYPE_CHECKING:
    from .optimizer import Optimizer

StepMethod = TypeVar("StepMethod", bound=Callable[..., Any])


def makes_no_state(step: StepMethod) -> StepMethod:
    """Mark a `step` that cannot create state, so that the wrapper does not look for new state."""
    step.makes_no_state = True  # type: ignore[attr-defined]  # a mark on the function, as torch's `hooked`
    return step


def wrap_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `step` to run without gradients (its closure with them), between torch's hooks, and to refuse new state."""
    if getattr(step, "hooked", False):  # inherited: each class gets its own wrapper
        step = step.__wrapped__  # type: ignore[attr-defined]  # what functools.wraps leaves there

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling() or self._is_stepping:  # in a graph, or called by the step of a subclass
            with torch.no_grad():
                return step(self, *args, **kwargs)
        self._is_stepping = True
        try:
            if not torch.autograd.profiler._is_profiler_enabled:  # the label takes as long as a fused step
                return _step_between_hooks(self, step, args, kwargs)
            with torch.autograd.profiler.record_function(f"Optimizer.step#{type(self).__name__}.step"):
                return _step_between_hooks(self, step, args, kwargs)
        finally:
            self._is_stepping = False

    # Dynamo counts recompilations for each code object: one class must not use up the limit of another class.
    wrapper.__code__ = wrapper.__code__.replace()  # type: ignore[attr-defined]  # it is a function
    wrapper.hooked = True  # type: ignore[attr-defined]  # what torch looks for
    return wrapper


def _step_between_hooks(optimizer: Optimizer, step: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """A step between the hooks of torch's optimizers. A hook before the step may replace its arguments."""
    for hook in (*torch_optimizer._global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values()):
        result = hook(optimizer, (optimizer, *args), kwargs)
        if result is not None:
            if not isinstance(result, tuple) or len(result) != 2:
                raise RuntimeError(f"A step pre-hook returned {result!r}. Return None or (args, kwargs).")
            args, kwargs = tuple(result[0])[1:], result[1]
    with torch.no_grad():
        step_args, step_kwargs = _enable_gradients(args, kwargs) if args or kwargs else (args, kwargs)
        if getattr(step, "makes_no_state", False):
            loss = step(optimizer, *step_args, **step_kwargs)
        else:
            optimizer._keeper.follow(optimizer)
            loss = step(optimizer, *step_args, **step_kwargs)
            optimizer._keeper.check_no_new_state(optimizer)
    optimizer._optimizer_step_code()
    hooks = (*optimizer._optimizer_step_post_hooks.values(), *torch_optimizer._global_optimizer_post_hooks.values())
    for hook in hooks:
        hook(optimizer, (optimizer, *args), kwargs)
    return loss


def _enable_gradients(args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args and callable(args[0]):
        args = (torch.enable_grad()(args[0]), *args[1:])
    if callable(kwargs.get("closure")):
        kwargs = {**kwargs, "closure": torch.enable_grad()(kwargs["closure"])}
    return args, kwargs
