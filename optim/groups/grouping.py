"""Parameter groups by rules over names and layers: tags, hyperparameters, weight decay, learning-rate factors.

`configure_param_groups` checks its arguments, and reads what rules say as claims (rules.py). It finds the parameters, a
record for each (parameters.py). Each pass then writes into the records; the docstring of `NamedParameter` says which
pass writes what. At the end, parameters with equal tags and settings are a group.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, comparable_value, read_tags
from .decay import set_weight_decay
from .depth import scale_by_depth
from .learning_rate import set_learning_rate
from .matrices import choose_algorithms
from .parameters import NamedParameter, find_parameters
from .rules import Claim, Selector, apply_claims, make_claims, read_factors, read_rule, read_selectors, require_rules
from .width import scale_by_width


def configure_param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    rules: Iterable[Mapping[str, object]] = (),
    *,
    weight_decay: float | Tensor | None = None,
    no_decay: bool | Selector | Iterable[Selector] = True,
    adjust_learning_rate: Mapping[Any, float] | None = None,
    lr: float | Tensor | Mapping[str, float | Tensor] | None = None,
    layer_decay: float | None = None,
    layers: str | Iterable[str] | None = None,
    base_model: nn.Module | None = None,
    base_rule: str = "adam",
    decay_tag: str | None = None,
    matrices: str | None = None,
    output_head: object = None,
    frozen: bool = True,
    names: bool = True,
) -> list[ParamGroup]:
    """Sort the parameters of a model into groups for any torch optimizer: one for each combination of tags and values.

    Every parameter is in exactly one group. Groups and their parameters are in the order of the model, so that all
    ranks and all runs have the same order. A group without tags has no key `tags`.

    Globs follow `fnmatch`. They match the whole name and are case-sensitive; `*` also matches dots. A parameter may
    have several names (tied weights, shared modules), each with and without the prefixes of DistributedDataParallel,
    FSDP and torch.compile. One of the names must match. A layer type is a module class or its name. It selects the
    parameters that modules of this type, or of a subclass, own directly.

    Args:
        model: the model, or its `named_parameters()`. These do not know the layers, so they need `no_decay=False`.
        rules: dicts with `params`, a glob or a list of globs; `tags`, a tag or a list of tags; and any hyperparameters
            of these parameters. A parameter gets the tags of all rules that match it. No two rules with
            `exclusive: True` may match the same parameter.
        weight_decay: for parameters that decay; None leaves it to the optimizer. See
            `groups.decay.set_weight_decay`.
        no_decay: True gives `weight_decay` 0 to norms and biases. Globs and layer types are added to these. False: no
            parameter is excluded.
        adjust_learning_rate: a dict from globs or layer types to factors. The groups get the factors under this name,
            as floats. Without `lr` they are not yet applied: `ScalePerParamLR`, `ScalePerParamWD` and schedules of `lr`
            multiply by them.
        lr: the learning rate, for groups whose `lr` contains the factors. See
            `groups.learning_rate.set_learning_rate`.
        layer_decay: multiplies the learning rate once for each layer from the end of its stack. It needs `layers` and
            `lr`. See `groups.depth.scale_by_depth`.
        layers: a glob for each stack of layers, such as `blocks.*` or `stages.*.blocks.*`.
        base_model: the model at the width at which the hyperparameters were tuned (maximal update parametrization). It
            needs `lr` and `weight_decay` (0.0 for none), and excludes `matrices`. See `groups.width.scale_by_width`.
        base_rule: "adam" or "sgd", the rule for the width factor.
        decay_tag: a tag for all groups whose weight decay is not 0, which a weight-decay schedule can select.
        matrices: "muon": give each group an `algorithm` for `optim.Muon`, and a tag of the same name. See
            `groups.matrices.choose_algorithms`.
        output_head: one or several globs for the output head, or () for none. None searches. It needs `matrices`.
        frozen: False leaves out parameters that do not require a gradient. By default they are kept, as torch keeps
            them, and can be unfrozen later. The optimizers of this package make state for them.
        names: True returns parameters as `(name, tensor)`, so that the optimizer has `param_names`, which
            `param_group_table` needs. Pass False for an optimizer that accepts only tensors.

    Raises:
        ValueError: a glob or layer type matches nothing, two exclusive rules match one parameter, or a hyperparameter
            gets two values for one parameter. Or a number is out of range, an argument lacks another one that it needs,
            or there are no parameters. The functions named above have further errors.
        TypeError: an argument has the wrong type.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
    >>> rules = [{"params": "linear*", "tags": ["mlp"], "lr": 0.01}]
    >>> for group in configure_param_groups(model, rules, weight_decay=0.1):
    ...     print(len(group["params"]), group.get("tags"), group["weight_decay"])
    2 None 0.1
    6 None 0.0
    2 ['mlp'] 0.1
    2 ['mlp'] 0.0
    """
    SWITCH.read("frozen", frozen)
    SWITCH.read("names", names)
    claims = _read_claims(model, rules, adjust_learning_rate, weight_decay, no_decay)
    _check_matrices(model, matrices, output_head)
    _check_learning_rate(lr, layer_decay, layers, matrices)
    _check_base_model(base_model, base_rule, lr, weight_decay, matrices)
    heads = None if output_head is None else read_selectors(output_head, "output_head")
    claims += make_claims(heads or (), "output_head", {"algorithm": "adamw"}, layers=False)
    decay_tags = read_tags(decay_tag, "decay_tag: ")

    # The passes. The order counts: a rule wins, and the learning rate needs all factors.
    parameters = find_parameters(model)
    apply_claims(parameters, claims)
    if not parameters:
        raise ValueError(f"model={type(model).__name__}: it has no parameters. Pass a model with parameters.")
    if matrices:
        choose_algorithms(parameters, heads)
    set_weight_decay(parameters, model, weight_decay, no_decay, decay_tags)
    if layer_decay is not None:
        scale_by_depth(parameters, layer_decay, layers)
    if base_model is not None:
        scale_by_width(parameters, base_model, base_rule)
    if not frozen:
        parameters = [parameter for parameter in parameters if parameter.tensor.requires_grad]
        if not parameters:
            raise ValueError("frozen=False: no parameter of the model requires a gradient. Leave frozen out.")
    if lr is not None:
        set_learning_rate(parameters, lr)
    return _make_groups(parameters, names)


def _read_claims(model: object, rules: object, factors: object, weight_decay: object, no_decay: object) -> list[Claim]:
    """Read the claims of `rules`, `adjust_learning_rate` and `no_decay`."""
    claims = [read_rule(rule, f"rules[{i}]") for i, rule in enumerate(require_rules(rules, "rules"))]
    claims += read_factors({} if factors is None else factors)
    if weight_decay is not None:
        NON_NEGATIVE.read("weight_decay", weight_decay)
    if not isinstance(no_decay, bool):
        claims += make_claims(read_selectors(no_decay, "no_decay"), "no_decay", {"weight_decay": 0.0}, layers=True)
    if no_decay is not False and not isinstance(model, nn.Module):
        raise ValueError(f"no_decay={no_decay!r}: the norm layers are not known. Pass the model, or no_decay=False.")
    return claims


def _check_matrices(model: object, matrices: object, output_head: object) -> None:
    if matrices not in (None, "muon"):
        raise ValueError(f"matrices={matrices!r}: there is no such option. Pass 'muon' or None.")
    if matrices and not isinstance(model, nn.Module):
        raise ValueError(
            f"matrices={matrices!r}: the layers of a {type(model).__name__} are not known. Pass the model."
        )
    if output_head is not None and not matrices:
        raise ValueError(
            f"output_head={output_head!r:.80}: only matrices uses it. Pass matrices='muon', or leave out output_head."
        )


def _check_learning_rate(lr: object, layer_decay: object, layers: object, matrices: object) -> None:
    """Check the arguments from which groups get a learning rate."""
    if isinstance(lr, Mapping):
        if not matrices:
            raise ValueError(f"lr={dict(lr)!r:.80}: without matrices='muon' there are no algorithms. Pass a number.")
        for algorithm, value in lr.items():
            NON_NEGATIVE.read(f"lr[{algorithm!r}]", value)
    elif lr is not None:
        NON_NEGATIVE.read("lr", lr)
    if layer_decay is None and layers is not None:
        raise ValueError(f"layers={layers!r:.80}: only layer_decay uses it. Pass layer_decay, or leave out layers.")
    for argument, value in (("layers", layers), ("lr", lr)):
        if layer_decay is not None and value is None:
            raise ValueError(f"layer_decay={layer_decay!r}: it needs {argument!r}. Pass both.")


def _check_base_model(base_model: object, base_rule: str, lr: object, weight_decay: object, matrices: object) -> None:
    """Check the arguments that a base model needs and excludes."""
    if base_model is None:
        if base_rule != "adam":
            raise ValueError(
                f"base_rule={base_rule!r}: only base_model uses it. Pass base_model, or leave out base_rule."
            )
        return
    for argument, value in (("lr", lr), ("weight_decay", weight_decay)):
        if value is None:
            raise ValueError(f"base_model: it needs {argument!r}, which its factors change. Pass both.")
    if matrices:
        raise ValueError(
            f"matrices={matrices!r}: base_model has no factors for it. Leave out base_model, and pass "
            f"adjust_lr_fn='spectral_unclamped' to Muon."
        )


def _make_groups(parameters: Iterable[NamedParameter], has_names: bool) -> list[ParamGroup]:
    """A group for each combination of tags and settings, in the order of their first parameters."""
    groups: dict[Any, ParamGroup] = {}
    for parameter in parameters:
        settings = dict(sorted(parameter.settings.items()))
        key = (parameter.tags, tuple((name, comparable_value(value)) for name, value in settings.items()))
        if key not in groups:
            tags = {"tags": sorted(parameter.tags)} if parameter.tags else {}
            groups[key] = {"params": [], **tags, **copy.deepcopy(settings)}
        groups[key]["params"].append((parameter.name, parameter.tensor) if has_names else parameter.tensor)
        if parameter.reason is not None:
            groups[key].setdefault("reasons", []).append(parameter.reason)
    return list(groups.values())
