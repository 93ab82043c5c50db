"""Plain references, one parameter at a time, for what torch.optim lacks: as near to the papers as code can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor


def rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def lion(p: Tensor, g: Tensor, state: dict[str, Any], h: Mapping[str, Any]) -> Tensor:
    """https://arxiv.org/abs/2302.06675, algorithm 2."""
    beta1, beta2 = h["betas"]
    m = state.setdefault("exp_avg", torch.zeros_like(p))
    direction = torch.sign(beta1 * m + (1 - beta1) * g)
    state["exp_avg"] = beta2 * m + (1 - beta2) * g
    return p - h["lr"] * (direction + h["weight_decay"] * p)


def _moments(p: Tensor, g: Tensor, state: dict[str, Any], h: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    beta1, beta2 = h["betas"]
    state["exp_avg"] = beta1 * state.get("exp_avg", torch.zeros_like(p)) + (1 - beta1) * g
    state["exp_avg_sq"] = beta2 * state.get("exp_avg_sq", torch.zeros_like(p)) + (1 - beta2) * g * g
    return state["exp_avg"], state["exp_avg_sq"]


def lamb(p: Tensor, g: Tensor, state: dict[str, Any], h: Mapping[str, Any]) -> Tensor:
    """https://arxiv.org/abs/1904.00962 without bias correction, the weight norm clamped to [0, 10]."""
    m, v = _moments(p, g, state, h)
    update = m / (v.sqrt() + h["eps"]) + h["weight_decay"] * p
    weight_norm, update_norm = float(p.norm().clamp(0, 10)), float(update.norm())
    trust = 1.0 if h["adam"] or weight_norm == 0 or update_norm == 0 else weight_norm / update_norm
    return p - h["lr"] * trust * update


def adamw(p: Tensor, g: Tensor, state: dict[str, Any], h: Mapping[str, Any]) -> Tensor:
    """https://arxiv.org/abs/1711.05101, where the bias correction may be off."""
    g = -g if h["maximize"] else g
    state["step"] = state.get("step", 0) + 1
    m, v = _moments(p, g, state, h)
    if h["amsgrad"]:
        v = state["max_exp_avg_sq"] = torch.maximum(state.get("max_exp_avg_sq", torch.zeros_like(v)), v)
    if h["correct_bias"]:
        beta1, beta2 = h["betas"]
        m, v = m / (1 - beta1 ** state["step"]), v / (1 - beta2 ** state["step"])
    return p * (1 - h["lr"] * h["weight_decay"]) - h["lr"] * m / (v.sqrt() + h["eps"])


def adafactor(p: Tensor, g: Tensor, state: dict[str, Any], h: Mapping[str, Any]) -> Tensor:
    """https://arxiv.org/abs/1804.04235, with the arguments of Hugging Face transformers' class."""
    step = state["step"] = state.get("step", 0) + 1
    size = h["lr"]
    if h["relative_step"]:
        size = min(1e-6 * step if h["warmup_init"] else 1e-2, 1 / sqrt(step))
    if h["scale_parameter"]:
        size = size * max(h["eps"][1], float(rms(p)))
    keep = 1 - step ** h["decay_rate"]
    square = g * g + h["eps"][0]

    def average(key: str, new: Tensor) -> Tensor:
        state[key] = keep * state.get(key, torch.zeros_like(new)) + (1 - keep) * new
        return state[key]

    if p.ndim < 2:
        update = g / average("exp_avg_sq", square).sqrt()
    else:
        rows = average("exp_avg_sq_row", square.mean(-1))
        columns = average("exp_avg_sq_col", square.mean(-2))
        rank_one = (rows / rows.mean(-1, keepdim=True)).unsqueeze(-1) * columns.unsqueeze(-2)
        update = g / rank_one.sqrt()
    update = size * update / max(1.0, float(rms(update)) / h["clip_threshold"])
    if h["beta1"] is not None:
        update = average_of = h["beta1"] * state.get("exp_avg", torch.zeros_like(p)) + (1 - h["beta1"]) * update
        state["exp_avg"] = average_of
    return p - h["weight_decay"] * size * p - update


def exactly_orthogonal(x: Tensor, h: Mapping[str, Any]) -> Tensor:
    """The iterations of https://kellerjordan.github.io/posts/muon, in the dtype of `x` instead of bfloat16."""
    a, b, c = h["ns_coefficients"]
    x = x / x.norm().clamp(min=h["eps"])
    for _ in range(h["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def torchs_orthogonal(x: Tensor, h: Mapping[str, Any]) -> Tensor:
    """The same in bfloat16, by torch.optim.Muon: what it takes off a matrix of zeros without momentum."""
    p = torch.zeros_like(x, dtype=torch.float64).requires_grad_()
    p.grad = x.double()
    kept = {key: h[key] for key in ("ns_coefficients", "eps", "ns_steps")}
    torch.optim.Muon([p], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, **kept).step()
    return (-p.detach() / sqrt(max(1, p.shape[0] / p.shape[1]))).to(x.dtype)


def muon(
    p: Tensor,
    g: Tensor,
    state: dict[str, Any],
    h: Mapping[str, Any],
    orthogonal: Callable[[Tensor, Mapping[str, Any]], Tensor] = exactly_orthogonal,
) -> Tensor:
    """torch's form, and that of the Cerebras suite: the gradient is not weighed, the adjusted rate decays too."""
    cerebras, momentum = h["adjust_lr_fn"] == "cerebras", h["momentum"]
    buffer = momentum * state.get("momentum_buffer", torch.zeros_like(p)) + (1 - momentum) * g
    state["momentum_buffer"] = buffer
    update = (1 if cerebras else 1 - momentum) * g + momentum * buffer if h["nesterov"] else buffer
    rate = h["lr"] * muon_scale(p, h)
    kept = 1 - (rate if cerebras else h["lr"]) * h["weight_decay"]
    return kept * p - rate * orthogonal(update.reshape(p.shape[0], -1), h).reshape(p.shape)


def muon_scale(p: Tensor, h: Mapping[str, Any]) -> float:
    """What the learning rate is multiplied by: the first two dimensions of the parameter count."""
    height, width = p.shape[:2]
    like_adam = h["adjust_lr_fn"] in ("cerebras", "match_rms_adamw")
    return 0.2 * sqrt(max(height, width)) if like_adam else sqrt(max(1, height / width))


RULES = {
    **{"Lion": lion, "Lamb": lamb, "AdamW": adamw, "Adafactor": adafactor},
    "Muon": partial(muon, orthogonal=torchs_orthogonal) if hasattr(torch.optim, "Muon") else muon,
}


class Reference(torch.optim.Optimizer):
    """A reference with the interface of an optimizer."""

    def __init__(self, name: str, params: Any, defaults: dict[str, Any]) -> None:
        self.rule = RULES[name]
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # a reference takes no closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.rule(p, p.grad, self.state[p], group))
