"""Steps that several update rules share, each with its formula."""

from __future__ import annotations

import torch

from ..base.tensor_lists import Factor, Tensors, add, addcdiv_, addcmul_, is_zero, lerp_, mul_, neg, shift_, sqrt
from ..step.work import Factors


def penalized_gradient(h: Factors, p: Tensors, g: Tensors) -> Tensors:
    """The gradient to descend: with its sign turned to maximize, and with the gradient of an L2 penalty added."""
    g = neg(g) if h["maximize"] else g
    return g if is_zero(h["weight_decay"]) else add(g, p, h["weight_decay"])


def apply_weight_decay(h: Factors, f: Factors, p: Tensors, g: Tensors) -> Tensors:
    """Apply the weight decay in either form, and return the gradient to descend.

    An L2 penalty is part of this gradient. Decoupled weight decay shrinks the parameters now, except for cautious
    weight decay, which the update applies later with `decay_cautiously_`.
    """
    if not h["decoupled_weight_decay"]:
        return penalized_gradient(h, p, g)
    if not is_zero(h["weight_decay"]) and not h.get("cautious_weight_decay"):
        mul_(p, f["decay_factor"])
    return neg(g) if h["maximize"] else g


def moment_factors(h: Factors) -> Factors:
    """The factors that `update_moments` needs."""
    beta1, beta2 = h["betas"]
    return {"one_minus_beta1": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2}


def update_moments(f: Factors, g: Tensors, m: Tensors, v: Tensors) -> None:
    """m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g."""
    lerp_(m, g, f["one_minus_beta1"])
    square_average_(v, g, f["beta2"], f["one_minus_beta2"])


def square_average_(v: Tensors, g: Tensors, beta: Factor, one_minus_beta: Factor) -> None:
    """v = beta * v + (1 - beta) * g * g."""
    mul_(v, beta)
    addcmul_(v, g, g, one_minus_beta)


def widen_float16(xs: Tensors) -> Tensors:
    """Copies in float32 of tensors in float16, for a divisor: in float16, an eps of 1e-8 is 0. Others as they are."""
    return [x.float() for x in xs] if xs[0].dtype is torch.float16 else xs


def root_plus_eps(v: Tensors, eps: Factor) -> Tensors:
    """sqrt(v) + eps, as a divisor."""
    root = sqrt(widen_float16(v))
    shift_(root, eps)
    return root


def add_over_root_(p: Tensors, x: Tensors, v: Tensors, factor: Factor, eps: Factor) -> None:
    """p += factor * x / (sqrt(v) + eps)."""
    addcdiv_(p, x, root_plus_eps(v, eps), factor)
