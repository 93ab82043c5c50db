"""Learning-rate factors by width: maximal update parametrization, with the rules of microsoft/mup."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .learning_rate import factor_key
from .matrices import is_transposed
from .parameters import NamedParameter, find_parameters


def scale_by_width(parameters: Sequence[NamedParameter], base_model: object, base_rule: object) -> None:
    """Apply a factor for the width to each parameter: the arguments `base_model` and `base_rule`.

    `base_model` is the model at the width at which the hyperparameters were tuned (maximal update parametrization);
    the meta device is enough. The width factor multiplies the learning rate, together with the other factor, and
    divides the weight decay. With r = size here / size in `base_model`, it is:

    * 1 if no dimension differs.
    * For a matrix whose inputs and outputs differ: 1 / r_inputs with `base_rule="adam"`, and r_outputs / r_inputs with
      "sgd".
    * For a parameter with one dimension that differs: 1 with "adam", and r with "sgd".

    For transposed convolutions, the first dimension counts as the outputs, as in mup, although it has the inputs.

    With "adam", the weight decay must be decoupled, as in AdamW: the share of an L2 penalty would grow with the width.
    The optimizers of this package warn of such a penalty.

    Raises ValueError if the models have parameters of different names, or if more than two dimensions of a parameter
    differ.
    """
    if base_rule not in ("adam", "sgd"):
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
    for parameter in parameters:
        factor = _width_factor(parameter, base_parameters[parameter.name], base_rule)
        settings = parameter.settings
        key = factor_key(settings)
        settings[key] = settings.get(key, 1.0) * factor
        settings["weight_decay"] = settings["weight_decay"] / factor  # it may be a tensor, which stays
        settings["base_rule"] = base_rule


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
