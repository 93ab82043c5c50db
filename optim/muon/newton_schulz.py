"""Newton-Schulz iterations, which approximate the nearest orthogonal matrix, and their published polynomials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from timesched.rules import Rule

from ..base.hyperparameters import Choice, Number, NumberTuple
from ..base.tensor_lists import STACK_LIMIT, is_zero
from ..precision.bits import bitcast
from ..precision.options import resolve_dtype
from ..step.work import Factors

# The most elements that are made orthogonal in one call: a small part of the memory on the CPU. On other devices, where
# a launch takes longer than the product of two small matrices, STACK_LIMIT counts, as for the stacks of a step.
TOGETHER = 1 << 22

JORDAN = (3.4445, -4.775, 2.0315)  # https://kellerjordan.github.io/posts/muon/

# The polynomials of the iterations by name, and the factor that multiplies the norm before the first iteration.
# "quintic" and "polar_express" are in microsoft/dion (newton_schulz_triton.py, polar_express.py). "polar_express" is
# from https://arxiv.org/abs/2505.16932, for five iterations from a norm of 1/1.02. "deepseek" is from DeepSeek-V4 in
# NVIDIA-NeMo/Emerging-Optimizers: eight polynomials that converge quickly, and two that end at singular values of 1.
QUINTIC = (
    (4.0848, -6.8946, 2.927),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
TABLES: Mapping[str, tuple[tuple[tuple[float, float, float], ...], float]] = {
    "quintic": (QUINTIC, 1.0),
    "polar_express": (POLAR_EXPRESS, 1.02),
    "deepseek": ((*(JORDAN,) * 8, *((2.0, -1.5, 0.5),) * 2), 1.0),
}

EXPONENT_BITS = {torch.bfloat16: 0xFF << 7, torch.float32: 0xFF << 23, torch.float64: 0x7FF << 52}
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element

TRIPLE = NumberTuple((Number(scheduled=False),) * 3)


class Coefficients(Rule):
    """The rule for `ns_coefficients`: a triple, a list of triples, or the name of one of `TABLES`."""

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return Choice(tuple(TABLES)).read(name, value)
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], (tuple, list)):
            for i, triple in enumerate(value):
                TRIPLE.read(f"{name}={value!r}, triple {i}", triple)
            return value
        return TRIPLE.read(name, value)


def iteration_count(coefficients: Any, default: int | None) -> int | None:
    """The number of iterations. It is `default` where the coefficients are a single triple."""
    if isinstance(coefficients, str):
        return len(TABLES[coefficients][0])
    return len(coefficients) if isinstance(coefficients[0], (tuple, list)) else default


def iteration_dtype(x: Tensor, h: Factors) -> torch.dtype:
    """The dtype of the iterations for the matrices in `x`."""
    return resolve_dtype(h["ns_dtype"]) or (torch.float32 if x.is_cpu else torch.bfloat16)


def matrices_at_once(x: Tensor, size: int) -> int:
    """The number of matrices of `size` elements that are made orthogonal in one call on the device of `x`."""
    return max(1, (TOGETHER if x.is_cpu else STACK_LIMIT) // max(1, size))


def orthogonalize(x: Tensor, h: Factors) -> Tensor:
    """Approximate the nearest orthogonal matrix of each matrix in the last two dimensions: singular values near 1."""
    matrices = x.flatten(0, -3).to(iteration_dtype(x, h))
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    if is_tall:
        matrices = matrices.mT  # of the two products, X @ X.T is then the smaller one
    at_once = matrices_at_once(matrices, matrices.shape[1] * matrices.shape[2])  # limits the memory of the iterations
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):  # the caller's dtype differs
        results = [_newton_schulz(piece, h) for piece in torch.split(matrices, at_once)]
    matrices = torch.cat(results) if len(results) > 1 else results[0]
    if is_tall:
        matrices = matrices.mT
    # Contiguous, since torch rounds differently when it adds transposed bfloat16 tensors.
    return matrices.to(x.dtype, memory_format=torch.contiguous_format).reshape(x.shape)


def _newton_schulz(x: Tensor, h: Factors) -> Tensor:
    """Run the iterations on a tensor of three dimensions whose matrices have at most as many rows as columns."""
    triples, norm_factor = h["ns_coefficients"], 1.0
    if isinstance(triples, str):
        triples, norm_factor = TABLES[triples]
    elif not isinstance(triples[0], tuple):
        triples = [triples] * h["ns_steps"]
    if x.numel() == 0:
        return x
    is_single = len(x) == 1  # a single matrix uses the product of two matrices, not of batches
    x = _normalize(x[0] if is_single else x, h, norm_factor)
    for a, b, c in triples:
        gram = x @ x.mT
        polynomial = _addmm(gram, gram, gram, b, c)  # b*A + c*A@A
        x = _addmm(x, polynomial, x, a)  # a*X + (b*A + c*A@A) @ X
    return x[None] if is_single else x


def _normalize(x: Tensor, h: Factors, norm_factor: float) -> Tensor:
    """Divide each matrix by `norm_factor` times its norm, or by `eps` if `eps` is larger."""
    least_norm = h["eps"]
    if is_zero(least_norm):  # after this division the norm is 0, or at least 1
        x, least_norm = x / _powers_of_two(x), 1.0
    norm: Tensor = x.norm() if x.dim() == 2 else torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    return x / (norm if norm_factor == 1.0 else norm * norm_factor).clamp(min=least_norm)


def _powers_of_two(x: Tensor) -> Tensor:
    """The power of two at or below the largest absolute element of each matrix.

    Dividing by this power is exact. Afterwards no square in the norm overflows, and no square that matters underflows.
    For a matrix of zeros or subnormal numbers the result is infinity, so that the quotient is 0. A momentum that has
    underflowed keeps its subnormal numbers forever, and must not change the parameter.
    """
    largest = x.abs().amax((-2, -1), keepdim=True)  # on the CPU, ten times as fast as the norm of order infinity
    powers = bitcast(bitcast(largest, INTEGERS[x.itemsize]) & EXPONENT_BITS[x.dtype], x.dtype)
    return torch.nn.functional.threshold(powers, 0.0, math.inf)  # infinity in place of 0


def _addmm(x: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float = 1.0) -> Tensor:
    """`beta * x + alpha * left @ right`."""
    if x.device.type == "xla":  # torch_xla computes addmm with factors on the host, which splits the graph
        return (beta * x.float() + alpha * (left @ right).float()).to(x.dtype)
    product = torch.addmm if x.dim() == 2 else torch.baddbmm
    return product(x, left, right, beta=beta, alpha=alpha)
