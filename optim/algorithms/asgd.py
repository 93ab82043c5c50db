"""Averaged stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.maths.ops import clamp_min, where
from timesched.types import ParamGroup

from ..base.hyperparameters import Number
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, add_, copy_, is_zero, lerp_, mul_, neg
from ..state.optimizer import State
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors, RoundAsState


class ASGD(RuleOptimizer):
    """Averaged stochastic gradient descent, whose average is the state `ax`.

        g = -g                                      if maximize
        t = t + 1
        η = γ                                       if t == 1
        θ = θ - η*(g + w*θ) - η*λ*θ
        a = a + μ*(θ - a)
        η = γ / (1 + λ*γ*t)**α
        μ = 1 / max(1, t - t0)

    where θ is a parameter, g its gradient, and a the average of the parameter. γ is `lr`, λ is `lambd`, α is `alpha`,
    w is `weight_decay`, and `t0` is the argument. η and μ are the values for the next step.

    State of a parameter of shape S:
        step: (), t = 0
        eta: (), η = lr
        mu: (), μ = 1
        ax: S, a = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0. A change takes effect one step late, since `eta` is computed ahead.
        lambd: decay of the parameter, and of the learning rate.
        alpha: power of the learning rate's decay.
        t0: the step count at which averaging starts.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = ASGD([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Source: https://doi.org/10.1137/0330046; the decays follow torch.
    """

    hyper = dict(COMMON, lambd=Number(), alpha=Number(), t0=Number())
    reads = (STEP, "eta", "mu")
    states = ("ax",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        lambd: float | Tensor = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float | Tensor = 0,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def scalar_states(self, group: ParamGroup) -> dict[str, Any]:
        return {STEP: 0.0, "eta": group["lr"], "mu": 1.0}

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        # XLA, a lazy device, keeps equal numbers in one buffer. After the second step the etas differ. Each parameter
        # gets its own buffer at the first step; otherwise the second step would be a different graph.
        state = super().initial_state(p, group)
        return {**state, "eta": state["eta"].clone()}

    @staticmethod
    def factors_and_scalars(h: Factors, s: Factors, round_as_state: RoundAsState) -> tuple[Factors, Factors]:
        mu, t = s["mu"], s[STEP]
        eta = where(t == 1, round_as_state(h["lr"]), s["eta"])  # the learning rate of the first step, as in torch
        new_eta = h["lr"] / (1 + h["lambd"] * h["lr"] * t) ** h["alpha"]
        new_mu = 1 / clamp_min(t - h["t0"], 1.0)
        # The decay and the penalty's gradient have the same effect, so they are combined into one weight decay:
        #     p -= eta * (g + weight_decay * p); p -= eta * lambd * p_before
        #     p = (1 - eta * (lambd + weight_decay)) * p - eta * g
        decay = h["lambd"] + h["weight_decay"]
        factors = {"decays": decay, "decay_factor": 1 - decay * eta, "minus_eta": -eta, "mu": mu}
        return factors, {"eta": new_eta, "mu": new_mu}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, ax: Tensors) -> None:
        if not is_zero(f["decays"]):
            mul_(p, f["decay_factor"])
        add_(p, neg(g) if h["maximize"] else g, f["minus_eta"])
        if isinstance(f["mu"], float) and f["mu"] == 1.0:
            copy_(ax, p)
        else:
            lerp_(ax, p, f["mu"])
