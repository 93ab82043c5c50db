"""Parameter groups by rules over names and layers: tags, hyperparameters, weight decay, learning-rate factors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from timesched.binding.groups import APPLIED_FACTOR, FACTOR_KEYS
from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, comparable_value, read_tags
from .depth import depth_factors
from .matrices import Decision, decide_algorithms
from .parameters import find_excluded, find_parameters
from .rules import Claim, Claimed, Selector, claims_by_parameter, make_claims, merge_claims, read_factors, read_rules
from .width import width_factors


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
        weight_decay: for parameters that decay; None leaves it to the optimizer. A value in a rule wins.
        no_decay: True gives `weight_decay` 0 to biases and to the parameters of norm layers: torch's classes, and
            classes with similar names (`LlamaRMSNorm`, `MambaRMSNormGated`). Also to parameters with the attribute
            `_no_weight_decay`, and to the names in a module's `no_weight_decay()`, as in timm. Globs and layer types
            are added to these. False: no parameter is excluded. A tied parameter is a norm or bias if it is one in all
            of its modules. A glob or a layer type selects it by any of its names and modules.
        adjust_learning_rate: a dict from globs or layer types to factors. The groups get the factors under this name,
            as floats. Without `lr` they are not yet applied: `ScalePerParamLR`, `ScalePerParamWD` and schedules of `lr`
            multiply by them.
        lr: the learning rate, for groups whose `lr` contains the factors. Each group gets a rule's `lr`, or this one,
            times its factor, and has no `adjust_learning_rate`. The factor is the one of `adjust_learning_rate`, or the
            one of `layer_decay`. The group notes it as `lr_factor`. With `matrices`, `lr` may be a dict by algorithm,
            such as `{"muon": 0.02, "adamw": 3e-4}`.
        layer_decay: multiplies the learning rate once for each layer from the end of its stack. Layer i of L has the
            factor `layer_decay ** (L - i)`; what comes before the first layer, such as embeddings, has
            `layer_decay ** (L + 1)`; what comes after the last layer, such as the head, has 1; what comes between two
            layers has the factor of the next one. It needs `layers` and `lr`.
        layers: a glob for each stack of layers, such as `blocks.*` or `stages.*.blocks.*`. It matches the first parts
            of names, and each `*` stands for digits. Several stacks have their own numbers. A parameter outside them
            belongs to the glob with which its name shares the most leading parts. If several globs share equally many,
            it has the embedding factor of the first stack before all layers, and 1 elsewhere.
        base_model: the model at the width at which the hyperparameters were tuned (maximal update parametrization);
            the meta device is enough. A width factor multiplies the learning rate, together with the other factor, and
            divides the weight decay. It needs `lr` and `weight_decay` (0.0 for none). With `base_rule="adam"`, the
            weight decay must be decoupled, as in AdamW: the share of an L2 penalty would grow with the width. The
            optimizers of this package warn of such a penalty.
        base_rule: "adam" or "sgd", the rule for the width factor. With r = size here / size in `base_model`, a matrix
            whose inputs and outputs differ has 1 / r_inputs for "adam", and r_outputs / r_inputs for "sgd". A parameter
            with one dimension that differs has 1 for "adam", and r for "sgd".
        decay_tag: a tag for all groups whose weight decay is not 0, which a weight-decay schedule can select.
        matrices: "muon": give each group an `algorithm` for `optim.Muon`, and a tag of the same name. "muon" is for
            hidden matrices; "adamw" is for embeddings, the output head, norms, biases, routers and vectors. The module
            that owns a parameter decides. Muon gets Linear, transformers' Conv1D (`transposed`), MultiheadAttention
            (with `split_sizes` for `in_proj_weight`), convolutions (with `flatten`), and parameters of 3 dimensions in
            a class called Experts (with `transposed` if the class says so). All parameters in a router count as the
            router's. An `algorithm` in a rule wins. The key `reasons` has the reason for each parameter.
            `param_group_table` shows it, with a note for fused projections that no rule splits.
        output_head: one or several globs for the output head, or () for none. None searches. If the weight of a linear
            layer is also an embedding, this layer is the head. So are layers in a module called `head` or `*_head` with
            as many rows as an embedding. Otherwise the head is the linear layer with the shape of the largest
            embedding, if no linear layer as near to the top of the model comes after it.
        frozen: False leaves out parameters that do not require a gradient. By default they are kept, as torch keeps
            them, and can be unfrozen later. The optimizers of this package make state for them.
        names: True returns parameters as `(name, tensor)`, so that the optimizer has `param_names`, which
            `param_group_table` needs. Pass False for an optimizer that accepts only tensors.

    Raises:
        ValueError: a glob or layer type matches nothing, two exclusive rules match one parameter, or a hyperparameter
            gets two values for one parameter. Or a number is out of range, or there are no parameters. Or `matrices`
            cannot tell the kind of a parameter, or find the output head. Or `lr` lacks an algorithm. Or `layer_decay`
            is outside (0, 1], or lacks `layers` or `lr`. Or a glob of `layers` matches nothing or has no `*`, or two
            match one parameter. Or `base_model` lacks `lr` or `weight_decay`, has parameters of other names, or differs
            in more than two dimensions of a parameter; or `matrices` is given with it.
        TypeError: an argument has the wrong type.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
    >>> rules = [
    ...     {"params": "*bias", "tags": "bias"},
    ...     {"params": "linear*", "tags": ["mlp"], "lr": 0.01},
    ... ]
    >>> for group in configure_param_groups(model, rules, weight_decay=0.1):
    ...     print(
    ...         len(group["params"]),
    ...         {key: value for key, value in group.items() if key != "params"},
    ...     )
    2 {'weight_decay': 0.1}
    4 {'tags': ['bias'], 'weight_decay': 0.0}
    2 {'tags': ['mlp'], 'lr': 0.01, 'weight_decay': 0.1}
    2 {'tags': ['bias', 'mlp'], 'lr': 0.01, 'weight_decay': 0.0}
    2 {'weight_decay': 0.0}

    >>> model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
    >>> for group in configure_param_groups(model, lr=0.1, layer_decay=0.5, layers="*"):
    ...     print([name for name, _ in group["params"]], group["lr"], group["lr_factor"])
    ['0.weight'] 0.0125 0.125
    ['1.weight'] 0.025 0.25
    ['2.weight'] 0.05 0.5

    >>> from optim import param_group_table
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 9)
    ... )
    >>> print(param_group_table(configure_param_groups(model, matrices="muon")))
    group  tags   tensors  elements  algorithm  weight_decay  names
    0      adamw        2        72      adamw             -  embedding: 0.weight; output head: 2.weight
    1      muon         1        16       muon             -  Linear: 1.weight
    2      adamw        2        13      adamw             0  norm or bias: 1.bias, 2.bias
    total               5       101
    """
    for argument, switch in (("frozen", frozen), ("names", names)):
        if not isinstance(switch, bool):
            raise TypeError(f"{argument}={switch!r}: this is of type {type(switch).__name__}. Pass True or False.")
    claims = _read_claims(model, rules, adjust_learning_rate, weight_decay, no_decay)
    _check_matrices(model, matrices)
    _check_learning_rate(lr, layer_decay, layers, matrices)
    _check_base_model(base_model, base_rule, lr, weight_decay, matrices)
    has_head = matrices is not None and output_head is not None
    head_claims = make_claims(output_head, "output_head", {"algorithm": "adamw"}) if has_head else []
    decay_tags = read_tags(decay_tag, "decay_tag: ")
    parameters = find_parameters(model)
    # First the tags and settings that claims give to each parameter; then the algorithms; then the groups.
    claims_of_parameters = claims_by_parameter(parameters, claims + head_claims)
    merged = [merge_claims(own, parameter.name) for own, parameter in zip(claims_of_parameters, parameters)]
    decisions: Sequence[Decision | None] = [None] * len(parameters)
    if matrices:
        settings_by_rules = [settings for _, settings in merged]
        heads = None if output_head is None else list(map(bool, claims_by_parameter(parameters, head_claims)))
        decisions = decide_algorithms(parameters, settings_by_rules, heads)
    factors: Sequence[float | None] = [None] * len(parameters)
    if layer_decay is not None and parameters:
        factors = depth_factors([parameter.name for parameter in parameters], layer_decay, layers)
    widths: Sequence[float | None] = [None] * len(parameters)
    if base_model is not None:
        widths = width_factors(parameters, base_model, base_rule)
    excluded = find_excluded(model)
    groups: dict[Any, dict[str, Any]] = {}
    for parameter, claimed, decision, factor, width in zip(parameters, merged, decisions, factors, widths):
        if not (frozen or parameter.tensor.requires_grad):
            continue
        decays = no_decay is False or (parameter.decays and id(parameter.tensor) not in excluded)
        parameter_decay = weight_decay if decays else 0.0
        tags, settings = _complete_settings(claimed, decision, parameter_decay, decay_tags)
        if lr is not None:
            settings = _apply_factor(settings, lr, factor, width, parameter.name)
        if base_model is not None:
            settings["base_rule"] = base_rule
        group = _require_group(tags, settings, groups)
        group["params"].append((parameter.name, parameter.tensor) if names else parameter.tensor)
        if decision is not None:
            group.setdefault("reasons", []).append(decision.reason)
    if not groups:
        if frozen or not parameters:
            raise ValueError(f"model={type(model).__name__}: it has no parameters. Pass a model with parameters.")
        raise ValueError("frozen=False: no parameter of the model requires a gradient. Leave frozen out.")
    return list(groups.values())


def _read_claims(model: object, rules: object, factors: object, weight_decay: object, no_decay: object) -> list[Claim]:
    """Read the claims of `rules`, `adjust_learning_rate` and `no_decay`."""
    claims = read_rules(rules)
    claims += read_factors({} if factors is None else factors)
    if weight_decay is not None:
        NON_NEGATIVE.check("weight_decay", weight_decay)
    if not isinstance(no_decay, bool):
        claims += make_claims(no_decay, "no_decay", {"weight_decay": 0.0}, layers=True)
    if no_decay is not False and not isinstance(model, nn.Module):
        raise ValueError(f"no_decay={no_decay!r}: the norm layers are not known. Pass the model, or no_decay=False.")
    return claims


def _check_matrices(model: object, matrices: object) -> None:
    if matrices not in (None, "muon"):
        raise ValueError(f"matrices={matrices!r}: there is no such option. Pass 'muon' or None.")
    if matrices and not isinstance(model, nn.Module):
        raise ValueError(
            f"matrices={matrices!r}: the layers of a {type(model).__name__} are not known. Pass the model."
        )


def _check_learning_rate(lr: object, layer_decay: object, layers: object, matrices: object) -> None:
    """Check the arguments from which groups get a learning rate."""
    if isinstance(lr, Mapping):
        if not matrices:
            raise ValueError(f"lr={dict(lr)!r:.80}: without matrices='muon' there are no algorithms. Pass a number.")
        for algorithm, value in lr.items():
            NON_NEGATIVE.check(f"lr[{algorithm!r}]", value)
    elif lr is not None:
        NON_NEGATIVE.check("lr", lr)
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


def _apply_factor(
    settings: Mapping[str, Any], lr: object, depth_factor: float | None, width_factor: float | None, name: str
) -> dict[str, Any]:
    """The settings of the parameter `name` with a learning rate that contains the factors.

    The factor by width divides the weight decay. An `adjust_learning_rate` among the settings replaces the factor by
    depth, and is left out.
    """
    factors = [settings[key] for key in FACTOR_KEYS if key in settings]
    factor = factors[0] if factors else depth_factor
    settings = {key: value for key, value in settings.items() if key not in FACTOR_KEYS}
    if width_factor is not None:
        settings["weight_decay"] = settings["weight_decay"] / width_factor
        factor = width_factor if factor is None else factor * width_factor
    if "lr" not in settings and isinstance(lr, Mapping):
        algorithm = settings["algorithm"]
        if algorithm not in lr:
            raise ValueError(
                f"lr={dict(lr)!r:.80}: it has no learning rate for {algorithm!r}, which is the algorithm of {name!r}. "
                f"Add one."
            )
        lr = lr[algorithm]
    value: Any = settings.get("lr", lr)
    return {**settings, "lr": value} if factor is None else {**settings, "lr": value * factor, APPLIED_FACTOR: factor}


def _complete_settings(
    claimed: Claimed, decision: Decision | None, weight_decay: object, decay_tags: set[str]
) -> Claimed:
    """Complete the tags and settings of a parameter, which come from claims, by its algorithm and weight decay.

    A setting of a claim wins. `decay_tags` are for a parameter whose weight decay is not 0, or is the optimizer's.
    """
    tags, settings = claimed
    if decision is not None:
        tags |= {str(decision.algorithm)}
        settings = {"algorithm": decision.algorithm, **decision.settings, **settings}
    if weight_decay is not None:
        settings = {"weight_decay": weight_decay, **settings}
    if comparable_value(settings.get("weight_decay")) != 0:
        tags |= decay_tags
    return tags, settings


def _require_group(
    tags: frozenset[str], settings: dict[str, object], groups: dict[object, dict[str, object]]
) -> dict[str, Any]:
    """The group with these tags and settings. If `groups` does not have it, it is made and added."""
    settings = dict(sorted(settings.items()))
    key = (tags, comparable_value(list(settings.items())))
    if key not in groups:
        groups[key] = {"params": [], **({"tags": sorted(tags)} if tags else {}), **copy.deepcopy(settings)}
    return groups[key]
