"""Steps that several update rules share, each with its formula; in eager steps on the CPU by torch's fused kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import eager
from .tensor_lists import Factor, Tensors, add, add_, addcdiv_, addcmul_, is_zero, lerp_, mul_, neg, shift_, sqrt
from .work import Factors


def penalized_gradient(h: Mapping[str, Any], k: Factors, p: Tensors, g: Tensors) -> Tensors:
    """What is descended: the gradient, with its sign turned to maximize, plus the weight decay of an L2 penalty."""
    if h["maximize"]:
        g = neg(g)
        if not is_zero(k["weight_decay"]):
            add_(g, p, k["weight_decay"])
        return g
    return g if is_zero(k["weight_decay"]) else add(g, p, k["weight_decay"])


def apply_weight_decay(h: Mapping[str, Any], k: Factors, p: Tensors, g: Tensors) -> Tensors:
    """`penalized_gradient`; with decoupled weight decay the parameters shrink now instead, and it is the gradient."""
    if not h["decoupled_weight_decay"]:
        return penalized_gradient(h, k, p, g)
    if not is_zero(k["weight_decay"]):
        mul_(p, k["decay_factor"])
    return neg(g) if h["maximize"] else g


def sgd_step_(p: Tensors, g: Tensors, minus_lr: Any, weight_decay: Factor, decay_factor: Factor) -> None:
    """p = decay_factor * p - lr * g, where decay_factor = 1 - lr * weight_decay."""
    if eager.sgd_kernel(p, g, minus_lr, weight_decay):
        return
    if not is_zero(weight_decay):
        mul_(p, decay_factor)
    add_(p, g, minus_lr)


def adam_step_(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    minus_step_size: Any,
    eps: Any,
) -> None:
    """m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g; p -= step_size * m / (sqrt(v) + eps)."""
    if eager.adam_kernel(p, g, m, v, one_minus_beta1, beta2, minus_step_size, eps):
        return
    lerp_(m, g, one_minus_beta1)
    square_average_(v, g, beta2, one_minus_beta2)
    if not is_zero(minus_step_size):
        add_over_root_(p, m, v, minus_step_size, eps)


def rmsprop_step_(
    p: Tensors, g: Tensors, v: Tensors, alpha: Any, one_minus_alpha: Any, minus_lr: Any, eps: Any
) -> None:
    """v = alpha * v + (1 - alpha) * g * g; p -= lr * g / (sqrt(v) + eps)."""
    if eager.rmsprop_kernel(p, g, v, alpha, minus_lr, eps):
        return
    square_average_(v, g, alpha, one_minus_alpha)
    add_over_root_(p, g, v, minus_lr, eps)


def square_average_(v: Tensors, g: Tensors, beta: Factor, one_minus_beta: Factor) -> None:
    """v = beta * v + (1 - beta) * g * g."""
    mul_(v, beta)
    addcmul_(v, g, g, one_minus_beta)


def add_over_root_(p: Tensors, x: Tensors, v: Tensors, factor: Any, eps: Any) -> None:
    """p += factor * x / (sqrt(v) + eps)."""
    root = sqrt(v)
    if not is_zero(eps):
        shift_(root, eps)
    addcdiv_(p, x, root, factor)
