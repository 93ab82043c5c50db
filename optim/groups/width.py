"""Learning-rate factors by width: maximal update parametrization, with the rules of microsoft/mup."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .matrices import is_transposed
from .parameters import NamedParameter, find_parameters

BASE_RULES = ("adam", "sgd")


def width_factors(parameters: Sequence[NamedParameter], base_model: object, base_rule: object) -> list[float]:
    """The factor of each parameter, for a model that is wider than `base_model`. The errors name the argument."""
    if base_rule not in BASE_RULES:
        raise ValueError(f"base_rule={base_rule!r}: there is no such rule. Pass 'adam' or 'sgd'.")
    if not isinstance(base_model, nn.Module):
        raise TypeError(f"base_model={base_model!r:.80}: this is no module. Pass the model at the base width.")
    base_parameters = {parameter.name: parameter for parameter in find_parameters(base_model)}
    different = sorted(base_parameters.keys() ^ {parameter.name for parameter in parameters})
    if different:
        raise ValueError(
            f"base_model: only one of the models has the parameter {different[0]!r}. Pass the same model at another "
            f"width."
        )
    return [_width_factor(parameter, base_parameters[parameter.name], base_rule) for parameter in parameters]


def _width_factor(parameter: NamedParameter, base_parameter: NamedParameter, base_rule: object) -> float:
    shape, base_shape = parameter.tensor.shape, base_parameter.tensor.shape
    ratios = [size / base_size for size, base_size in zip(shape, base_shape) if size != base_size]
    if len(shape) != len(base_shape) or len(ratios) > 2:
        raise ValueError(
            f"base_model: the parameter {parameter.name!r} has the shape {tuple(base_shape)}, and here {tuple(shape)}. "
            f"At most two dimensions of the same number may differ."
        )
    if len(ratios) < 2:
        return ratios[0] if ratios and base_rule == "sgd" else 1.0
    outputs, inputs = reversed(ratios) if is_transposed(base_parameter) else ratios  # it knows its modules
    return 1.0 / inputs if base_rule == "adam" else outputs / inputs
