"""The wrapper of every `step`: it disables gradients, runs torch's hooks, and refuses state that the step created.

torch wraps `step` itself, which breaks the graph of a compiled step. The attribute `hooked` tells torch not to do so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
import torch.optim.optimizer as torch_optimizer

Step = TypeVar("Step", bound=Callable[..., Any])


def makes_no_state(step: Step) -> Step:
    """Mark a `step` that cannot create state, so that the wrapper does not look for new state."""
    step.makes_no_state = True  # type: ignore[attr-defined]  # a mark on the function, as torch's `hooked`
    return step


def wrap_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `step` to run without gradients (its closure with them), between torch's hooks, and to refuse new state."""
    if getattr(step, "hooked", False):  # inherited: each class gets its own wrapper
        step = step.__wrapped__  # type: ignore[attr-defined]  # what functools.wraps leaves there
    trusted = getattr(step, "makes_no_state", False)

    @functools.wraps(step)
    def wrapper(self: Any, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling() or self._is_stepping:  # in a graph, or called by the step of a subclass
            with torch.no_grad():
                return step(self, *args, **kwargs)
        self._is_stepping = True
        try:
            call: list[Any] = [args, kwargs]
            with _run_hooks(self, call), torch.no_grad():
                args, kwargs = _enable_gradients(call[0], call[1])
                if not trusted:
                    self._keeper.follow(self)
                result = step(self, *args, **kwargs)
                if not trusted:
                    self._keeper.check_no_new_state(self)
            return result
        finally:
            self._is_stepping = False

    # Dynamo counts recompilations for each code object: one class must not use up the limit of another class.
    wrapper.__code__ = wrapper.__code__.replace()  # type: ignore[attr-defined]  # it is a function
    wrapper.hooked = True  # type: ignore[attr-defined]  # what torch looks for
    return wrapper


def _enable_gradients(args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args and callable(args[0]):
        args = (torch.enable_grad()(args[0]), *args[1:])
    if callable(kwargs.get("closure")):
        kwargs = {**kwargs, "closure": torch.enable_grad()(kwargs["closure"])}
    return args, kwargs


@contextmanager
def _run_hooks(optimizer: Any, call: list[Any]) -> Iterator[None]:
    """Run the hooks of torch's optimizers. A hook before the step may replace the arguments in `call`."""
    with torch.autograd.profiler.record_function(f"Optimizer.step#{type(optimizer).__name__}.step"):
        before = (torch_optimizer._global_optimizer_pre_hooks, optimizer._optimizer_step_pre_hooks)
        for hook in list(chain.from_iterable(hooks.values() for hooks in before)):
            result = hook(optimizer, (optimizer, *call[0]), call[1])
            if result is not None:
                if not isinstance(result, tuple) or len(result) != 2:
                    raise RuntimeError(f"A step pre-hook returned {result!r}. Return None or (args, kwargs).")
                call[:] = [tuple(result[0])[1:], result[1]]
        yield
        optimizer._optimizer_step_code()
        after = (optimizer._optimizer_step_post_hooks, torch_optimizer._global_optimizer_post_hooks)
        for hook in list(chain.from_iterable(hooks.values() for hooks in after)):
            hook(optimizer, (optimizer, *call[0]), call[1])
