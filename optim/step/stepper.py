"""The steps of one optimizer outside of graphs: as prepared by an earlier step, or planned from the start.

A planned step is gathered (gather.py), and its works get routes (routes.py). If `compile` was called, the compiled step
does all work. Steps after planned steps are prepared (prepared.py), and skip the planning until the kind of a tensor or
hyperparameter changes.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.hyperparameters import all_parameters
from .execution import step_on_route, step_on_tensors
from .gather import gather
from .known_counts import KnownCounts
from .prepared import PreparedStep, prepare_step
from .routes import choose_routes
from .work import Work

if TYPE_CHECKING:
    from .rule_optimizer import RuleOptimizer

# On the CPU, inductor looks for fewer pairs of loops to fuse. All tensors share small arrays of factors, so it would
# compare every loop with every other. The loops of one tensor are still fused, and 150 tensors compile in 0.6 of the
# time.
INDUCTOR_ON_CPU = {"max_fusion_buffer_group_pairwise_attempts": 2}


class Stepper:
    """Runs the steps of an optimizer, and keeps what later steps use.

    The optimizer has a reference to its stepper, so the stepper has none to the optimizer: its methods take it as
    argument. A copy of an optimizer gets a new stepper.
    """

    def __init__(self) -> None:
        self.known_counts = KnownCounts()
        self._prepared: PreparedStep | None = None
        self._unprepared_steps = 0  # in a row, up to now
        self._compiled: Callable[..., None] | None = None

    def step(self, optimizer: RuleOptimizer) -> None:
        """Let the state follow its parameters, and do a step."""
        states = optimizer._keeper.follow(optimizer)
        parts = None if self._prepared is None else self._prepared.make_works(optimizer, states)
        if parts is None:
            params = self._step_unprepared(optimizer)
        else:
            self._unprepared_steps = 0
            params = [p for work, _ in parts for p in work.columns["p"]]
            for work, route in parts:
                step_on_route(work, route, self.known_counts)
        # Torch's kernels do not change the versions of some tensors. Autograd needs them to notice that a tensor that
        # it kept for a backward pass has changed.
        torch.autograd.graph.increment_version(params)

    def _step_unprepared(self, optimizer: RuleOptimizer) -> list[Tensor]:
        """Plan a step and do it. Prepares the steps after it, and returns the parameters that were stepped."""
        params = all_parameters(optimizer.param_groups)
        active = [p for p in params if p.grad is not None]
        if not active:
            optimizer.check_not_all_on_meta(params)
        if self._compiled is not None:
            optimizer.hold_tensors()  # if the user has replaced a tensor by a number
        works = optimizer.step_shared(gather(optimizer))
        if not works or self._step_compiled(optimizer, works):
            return active
        parts = list(chain.from_iterable(map(choose_routes, works)))
        for work, route in parts:
            step_on_route(work, route, self.known_counts)
        self._unprepared_steps += 1
        # The steps 2, 4, 8, ... in a row prepare the next one: kinds that change in every step are prepared rarely.
        if optimizer.prepares_steps and self._unprepared_steps > 1 and self._unprepared_steps.bit_count() == 1:
            self._prepared = prepare_step(optimizer, parts)
        return active

    def compile(self, optimizer: RuleOptimizer, options: dict[str, Any]) -> None:
        """Compile the update of later steps with the options of `torch.compile`."""
        # Dynamo counts recompilations for each code object: one optimizer must not use up the limit of another.
        function = types.FunctionType(step_on_tensors.__code__.replace(), step_on_tensors.__globals__)
        on_cpu = all(p.is_cpu for p in all_parameters(optimizer.param_groups))
        if on_cpu and options.get("backend", "inductor") == "inductor" and not {"mode", "options"} & options.keys():
            options = {**options, "options": INDUCTOR_ON_CPU}
        self._compiled = torch.compile(function, **{"fullgraph": True, "dynamic": False, **options})
        self._prepared = None

    def _step_compiled(self, optimizer: RuleOptimizer, works: list[Work]) -> bool:
        """Do the work in the compiled step. Returns False if there is none, or if torch compiles no more graphs."""
        if self._compiled is None:
            return False
        try:
            self._compiled(works)
            return True
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            self._compiled = None
            warnings.warn(
                f"{type(optimizer).__name__}: torch compiles no more graphs of the step (recompile_limit), so later "
                "steps are not compiled. Compile only if the same parameters have gradients in every step.",
                stacklevel=7,
            )
            return False
