"""Adam and AdamW."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.types import ParamGroup

from ..base.hyperparameters import BETAS, NON_NEGATIVE, SWITCH
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, decay_cautiously_, maximum_
from ..step.fused import FUSED_ADAM
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import add_over_root_, apply_weight_decay, moment_factors, update_moments


class AdamBase(RuleOptimizer):
    """The base class of `Adam` and `AdamW`: steps along the first moment, over the root of the second.

        g = -g                                      if maximize
        g = g + λ*θ                                 if not decoupled_weight_decay
        θ = θ - α*λ*θ                               if decoupled_weight_decay
        t = t + 1
        m = β1*m + (1 - β1)*g
        v = β2*v + (1 - β2)*g*g
        v_max = max(v_max, v)                       if amsgrad
        u = v_max if amsgrad else v
        m_hat = m / (1 - β1**t) if correct_bias else m
        v_hat = u / (1 - β2**t) if correct_bias else u
        θ = θ - α*m_hat / (sqrt(v_hat) + ε)

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0
        max_exp_avg_sq: S, v_max = 0, if amsgrad

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: the decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: at least 0.
        correct_bias: whether the moments are divided by one minus the power of their decay rate.
        amsgrad: whether the largest second moment so far is used (https://arxiv.org/abs/1904.09237).
        maximize: ascend.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdamBase([weight], lr=0.5, decoupled_weight_decay=True)
    >>> weight.grad = torch.tensor([4.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Sources: see `Adam` and `AdamW`.
    """

    hyper = dict(
        COMMON, betas=BETAS, eps=NON_NEGATIVE, amsgrad=SWITCH, correct_bias=SWITCH, decoupled_weight_decay=SWITCH
    )
    structural = ("amsgrad", "decoupled_weight_decay")
    may_be_missing = frozenset(("maximize", "correct_bias", "decoupled_weight_decay"))
    fused = FUSED_ADAM

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if group["amsgrad"] else None)

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        # The bias corrections are folded into the step size and eps. Let root = sqrt(1 - beta2**t). Then
        # sqrt(v_hat) = sqrt(v) / root, and the paper's form equals the form that is computed here:
        #     p -= lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)
        #     p -= (lr * root / (1 - beta1**t)) * m / (sqrt(v) + eps * root)
        # The second form needs two numbers for each parameter. The first form needs two more passes over the moments.
        correct = h["correct_bias"]
        root = (1 - beta2**t) ** 0.5 if correct else 1.0
        return {
            **moment_factors(h),
            "eps": h["eps"] * root,
            "minus_step_size": -lr * root / (1 - beta1**t) if correct else -lr,
            "decay_factor": 1 - lr * h["weight_decay"],
        }

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, **states: Tensors) -> None:
        m, v = states["exp_avg"], states["exp_avg_sq"]
        g = apply_weight_decay(h, f, p, g)
        update_moments(f, g, m, v)
        if h.get("cautious_weight_decay"):
            decay_cautiously_(p, f["decay_factor"], m)
        if h["amsgrad"]:
            maximum_(states["max_exp_avg_sq"], v)
            v = states["max_exp_avg_sq"]
        add_over_root_(p, m, v, f["minus_step_size"], f["eps"])


class Adam(AdamBase):
    """Adam: steps along the first moment of the gradient, over the root of the second.

        g = -g                                      if maximize
        g = g + λ*θ                                 if not decoupled_weight_decay
        θ = θ - α*λ*θ                               if decoupled_weight_decay
        t = t + 1
        m = β1*m + (1 - β1)*g
        v = β2*v + (1 - β2)*g*g
        v_max = max(v_max, v)                       if amsgrad
        m_hat = m / (1 - β1**t)
        v_hat = (v_max if amsgrad else v) / (1 - β2**t)
        θ = θ - α*m_hat / (sqrt(v_hat) + ε)

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0
        max_exp_avg_sq: S, v_max = 0, if amsgrad

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0. Default: 0.001.
        betas: the decay rates of the two moments, each in [0, 1). Default: (0.9, 0.999).
        eps: added to the root of the second moment, at least 0. Default: 1e-6; torch's default: 1e-8.
        weight_decay: at least 0. Default: 0.
        amsgrad: whether the largest second moment so far is used (https://arxiv.org/abs/1904.09237). Default: False.
        maximize: ascend. Default: False.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient. Default:
            False.
        enable_global_step: no effect, since `step` always exists. Default: False.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([-3.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    1.25

    Source: https://arxiv.org/abs/1412.6980, algorithm 1; the L2 penalty and amsgrad as in torch.optim.Adam.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        RuleOptimizer.__init__(self, params, {**locals(), "correct_bias": True})


class AdamW(AdamBase):
    """AdamW: Adam with decoupled weight decay.

        g = -g                                      if maximize
        θ = θ - α*λ*θ                               if not cautious_weight_decay
        t = t + 1
        m = β1*m + (1 - β1)*g
        θ = θ - α*λ*θ*(m*θ >= 0)                    if cautious_weight_decay
        v = β2*v + (1 - β2)*g*g
        v_max = max(v_max, v)                       if amsgrad
        u = v_max if amsgrad else v
        m_hat = m / (1 - β1**t) if correct_bias else m
        v_hat = u / (1 - β2**t) if correct_bias else u
        θ = θ - α*m_hat / (sqrt(v_hat) + ε)

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0
        max_exp_avg_sq: S, v_max = 0, if amsgrad

    You can also load state dicts of Hugging Face's former AdamW.

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0. Default: 0.001.
        betas: the decay rates of the two moments, each in [0, 1). Default: (0.9, 0.999).
        eps: added to the root of the second moment, at least 0. Default: 1e-6; torch's default: 1e-8.
        weight_decay: at least 0. Default: 0; torch's default: 0.01.
        correct_bias: whether the moments are divided by one minus the power of their decay rate. Default: True.
        amsgrad: whether the largest second moment so far is used (https://arxiv.org/abs/1904.09237). Default: False.
        maximize: ascend. Default: False.
        cautious_weight_decay: whether an element decays only if the first moment does not move it away from 0
            (https://arxiv.org/abs/2510.12402). Default: False.
        enable_global_step: no effect, since `step` always exists. Default: False.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdamW([weight], lr=0.5, weight_decay=0.1)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.45

    Source: https://arxiv.org/abs/1711.05101, algorithm 2, where only the schedule multiplies the weight decay;
    here, as in torch, the whole learning rate does.
    """

    hyper = dict(AdamBase.hyper, cautious_weight_decay=SWITCH)
    may_be_missing = AdamBase.may_be_missing | {"amsgrad", "cautious_weight_decay"}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        cautious_weight_decay: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        RuleOptimizer.__init__(self, params, {**locals(), "decoupled_weight_decay": True})
