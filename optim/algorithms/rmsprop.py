"""RMSprop."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, Number, is_switched_off
from ..base.tensor_lists import Tensors, add_, addcdiv_, addcmul, lerp_, mul_
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import penalized_gradient, root_plus_eps, square_average_


class RMSprop(RuleOptimizer):
    """RMSprop: steps relative to the size of recent gradients.

        g = -g                                      if maximize
        g = g + λ*θ
        t = t + 1
        v = α*v + (1 - α)*g*g
        a = α*a + (1 - α)*g                         if centered
        d = g / (sqrt(v) + ε)                       if not centered
        d = g / (sqrt(v - a*a) + ε)                 if centered
        b = μ*b + d                                 if μ
        θ = θ - γ*(b if μ else d)

    where θ is a parameter, g its gradient, γ is `lr`, α is `alpha`, ε is `eps`, μ is `momentum`, and
    λ is `weight_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        square_avg: S, v = 0
        momentum_buffer: S, b = 0, if μ
        grad_avg: S, a = 0, if centered

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        alpha: decay rate of the average square, in [0, 1].
        eps: added to the root, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        momentum: the share of the buffer that is kept, at least 0. With 0 there is no buffer.
        centered: divide by the estimated deviation instead of the root of the square. If the gradient of an element
            hardly changes for thousands of steps, the number under the root may round below 0, and the element becomes
            NaN, as in torch.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = RMSprop([weight], lr=0.25, alpha=0.75)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Source: https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf, page 29, in torch's form;
    `centered`: https://arxiv.org/abs/1308.0850, equations 38 to 45.
    """

    hyper = dict(
        COMMON,
        alpha=Number(least=0, most=1),
        eps=NON_NEGATIVE,
        momentum=Number(least=0, zero_is_off=True),
        centered=SWITCH,
    )
    structural = ("centered",)
    reads = ()

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        alpha: float | Tensor = 0.99,
        eps: float = 1e-8,
        weight_decay: float | Tensor = 0,
        momentum: float | Tensor = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        momentum = None if is_switched_off(group["momentum"]) else "momentum_buffer"
        return ("square_avg", momentum, "grad_avg" if group["centered"] else None)

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {"one_minus_alpha": 1 - h["alpha"], "minus_lr": -h["lr"]}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, **states: Tensors) -> None:
        v = states["square_avg"]
        g = penalized_gradient(h, p, g)
        square_average_(v, g, h["alpha"], f["one_minus_alpha"])
        if h["centered"]:
            a = states["grad_avg"]
            lerp_(a, g, f["one_minus_alpha"])
            v = addcmul(v, a, a, value=-1.0)
        root = root_plus_eps(v, h["eps"])
        if "momentum_buffer" in states:
            b = states["momentum_buffer"]
            mul_(b, h["momentum"])
            addcdiv_(b, g, root, 1.0)
            add_(p, b, f["minus_lr"])
        else:
            addcdiv_(p, g, root, f["minus_lr"])
