"""Learning rates of groups that contain the factors of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timesched.binding.groups import APPLIED_FACTOR, FACTOR_KEYS

from .parameters import NamedParameter


def factor_key(settings: Mapping[str, Any]) -> str:
    """The key of the factor among a parameter's settings, or for a new factor."""
    return next((key for key in FACTOR_KEYS if key in settings), FACTOR_KEYS[0])


def set_learning_rate(parameters: Sequence[NamedParameter], lr: Any) -> None:
    """Set the learning rate of each parameter: the argument `lr`.

    The learning rate is the `lr` of a rule, or else the argument, times the factor of the parameter. The group keeps
    the factor as `lr_factor`, and has no `adjust_learning_rate`. The factor comes from `adjust_learning_rate`, or else
    from `layer_decay`, and is multiplied by the factor of `base_model`.

    With `matrices`, `lr` may be a dict by algorithm, such as `{"muon": 0.02, "adamw": 3e-4}`.

    Raises ValueError if this dict lacks an algorithm.
    """
    for parameter in parameters:
        settings = parameter.settings
        factor = settings.get(factor_key(settings))
        for key in FACTOR_KEYS:
            settings.pop(key, None)
        settings["lr"] = _choose_rate(parameter, lr)
        if factor is not None:
            settings["lr"] = settings["lr"] * factor
            settings[APPLIED_FACTOR] = factor


def _choose_rate(parameter: NamedParameter, lr: Any) -> Any:
    """The learning rate of a rule, or of the parameter's algorithm, before the factor."""
    if "lr" in parameter.settings or not isinstance(lr, Mapping):
        return parameter.settings.get("lr", lr)
    algorithm = parameter.settings["algorithm"]
    if algorithm not in lr:
        raise ValueError(
            f"lr={dict(lr)!r:.80}: it has no learning rate for {algorithm!r}, which is the algorithm of "
            f"{parameter.name!r}. Add one."
        )
    return lr[algorithm]
