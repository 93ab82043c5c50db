"""Rules for parameters: the settings of the parameters that a rule selects, and how several rules are merged."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from torch import nn

from timesched.binding.groups import FACTOR_KEYS
from timesched.hints import nearest_names

from ..base.hyperparameters import HYPERPARAMETERS, NON_NEGATIVE, SWITCH, comparable_value, read_tags
from .parameters import NamedParameter

Selector = str | type[nn.Module]

FACTOR = "adjust_learning_rate"  # the key of a group that ScalePerParamLR multiplies by
RATES = ("lr", "weight_decay", *FACTOR_KEYS)
RULE_KEYS = ("params", "tags", "exclusive")
# The groups of a model that does not name its own, and their globs.
DEFAULT_GROUPS = {
    "embedding": "*embedding*weight",
    "decoder_kernel": ("*decoder*dense*weight", "*decoder*linear*weight"),
}


class Claim(NamedTuple):
    """The tags and settings of one rule, for the parameters that it selects. Errors call the rule `source`."""

    source: str
    selectors: tuple[Selector, ...]
    tags: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = {}
    exclusive: bool = False
    layers: bool = False  # a selector may be a layer type
    hint: str = ""  # the end of the error for a selector that matches nothing


def read_selectors(value: object, source: str) -> tuple[Selector, ...]:
    """Read globs and layer types, one or several, as a tuple."""
    selectors = (value,) if isinstance(value, (str, type)) or not isinstance(value, Iterable) else tuple(value)
    for selector in selectors:
        if not isinstance(selector, str) and not (isinstance(selector, type) and issubclass(selector, nn.Module)):
            raise TypeError(f"{source} has {selector!r:.80}, which is no glob. Pass globs for parameters, as '*.bias'.")
    return selectors


def require_rules(rules: object, name: str) -> list[Any]:
    """Check that the rules are a list. The rules themselves are not read."""
    if not isinstance(rules, Iterable) or isinstance(rules, (str, Mapping)):
        raise TypeError(f"{name}={rules!r:.80}: this is no list. Pass one, as [{{'params': '*bias', 'tags': 'bias'}}].")
    return list(rules)


def read_rule(rule: object, where: str) -> Claim:
    """Read a rule as a claim. Errors call the rule `where`."""
    if isinstance(rule, Claim):  # a config has read it already
        return rule
    if not isinstance(rule, Mapping) or not all(isinstance(key, str) for key in rule):
        raise TypeError(f"{where}={rule!r:.80}: this is no dict. Pass one, as {{'params': '*bias', 'tags': 'bias'}}.")
    settings = {key: value for key, value in rule.items() if key not in RULE_KEYS}
    for key, value in settings.items():
        _check_key(key, value, where)
        if key in FACTOR_KEYS:
            settings[key] = float(value)
    globs = read_selectors(rule.get("params", ()), f"{where}: params")
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise ValueError(f"{where}.params={list(globs)!r:.80}: this is no glob. Pass one or several, as '*.bias'.")
    exclusive = rule.get("exclusive", False)
    SWITCH.read(f"{where}.exclusive", exclusive)
    tags = frozenset(read_tags(rule.get("tags"), f"{where}: "))
    return Claim(f"{where} ({', '.join(map(repr, globs))})", globs, tags, settings, exclusive)


def _check_key(key: str, value: object, where: str) -> None:
    """Check the name of a hyperparameter in a rule, and its value if that is a learning rate, a decay or a factor."""
    # A user's optimizer may have any hyperparameter, and a short name is near to many.
    known = sorted({*HYPERPARAMETERS, *RATES})
    near = [] if len(key) < 5 else nearest_names(key, known, 1, 0.85)
    near = nearest_names(key, RULE_KEYS, 1, 0.7) or near
    if near and key not in known:
        raise ValueError(f"{where} has {key!r}, which is no hyperparameter. Write {near[0]!r}.")
    if key in RATES:
        NON_NEGATIVE.read(f"{where}: {key}", value)


def read_factors(factors: object) -> list[Claim]:
    """Read `adjust_learning_rate` as claims."""
    if not isinstance(factors, Mapping):
        raise TypeError(f"{FACTOR}={factors!r:.80}: this is no dict. Pass a dict from globs or layer types to factors.")
    claims = []
    for key, factor in factors.items():
        source = f"{FACTOR}[{key!r}]"
        NON_NEGATIVE.read(source, factor)
        claims.append(Claim(source, read_selectors([key], FACTOR), settings={FACTOR: float(factor)}, layers=True))
    return claims


def read_factor_claims(model: object, parameters: Sequence[NamedParameter], factors: Any) -> list[Claim]:
    """Read the factors in a config, and the `scale` of the model's own groups that the config does not name.

    A key is the name of a group in the model's `lr_adjustment_groups`, or a glob or layer type. A model without this
    attribute has the default groups. Groups of the model that no key names keep their own `scale`.
    """
    globs, scales = _model_groups(model)
    factors = {} if factors is None else factors
    claims = []
    for claim in read_factors(scales | factors if isinstance(factors, dict) else factors):
        (key,) = claim.selectors
        named = claim._replace(hint=f" The groups with a name are {', '.join(map(repr, globs))}.")
        if key in globs and (globs is not DEFAULT_GROUPS or not matching_indices(parameters, key, layers=True)):
            selectors = _select_group_globs(parameters, read_selectors(globs[key], claim.source), key in factors)
            named = named._replace(selectors=selectors, layers=False)
        claims.append(named)
    return claims


def _select_group_globs(parameters: Sequence[NamedParameter], globs: Any, must_match: bool) -> tuple[Selector, ...]:
    """The globs of a model's group that match a parameter.

    With `must_match`, all globs if none matches: then they are an error.
    """
    matching = tuple(glob for glob in globs if matching_indices(parameters, glob))
    return globs if must_match and not matching else matching


def _model_groups(model: Any) -> tuple[Mapping[Any, Any], dict[Any, float]]:
    """The globs of the groups that a model names, or of the default groups, and the factors that the model gives."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    groups = getattr(model, "lr_adjustment_groups", None)
    if groups is None:
        return DEFAULT_GROUPS, {}
    globs = {name: group.param_filter_patterns for name, group in groups.items()}
    return globs, {name: group.scale for name, group in groups.items() if group.scale != 1.0}


def make_claims(selectors: Iterable[Selector], argument: str, settings: dict[str, Any], layers: bool) -> list[Claim]:
    """Make a claim for each of the globs and layer types that were read from `argument`."""
    return [Claim(f"{argument} ({glob!r})", (glob,), settings=settings, layers=layers) for glob in selectors]


def apply_claims(parameters: Sequence[NamedParameter], claims: Sequence[Claim]) -> None:
    """Give each parameter the tags and settings of the claims that select it.

    The error names all selectors without a parameter.
    """
    hits: list[list[Claim]] = [[] for _ in parameters]
    errors = []
    for claim in claims:
        selected: set[int] = set()
        for selector in claim.selectors:
            indices = matching_indices(parameters, selector, claim.layers)
            if not indices:
                errors.append(_describe_no_match(claim, selector, parameters))
            selected |= indices
        for i in selected:
            hits[i].append(claim)
    if errors:
        raise ValueError("\n".join(errors))
    for parameter, own_claims in zip(parameters, hits):
        _merge_claims(parameter, own_claims)


def matching_indices(parameters: Sequence[NamedParameter], selector: Selector, layers: bool = False) -> set[int]:
    """The indices of the parameters that a glob selects, or if `layers` is True a layer type."""
    return {i for i, parameter in enumerate(parameters) if _is_selected(parameter, selector, layers)}


def _is_selected(parameter: NamedParameter, selector: Selector, layers: bool) -> bool:
    if isinstance(selector, str) and any(fnmatch.fnmatchcase(name, selector) for name in parameter.names):
        return True
    return layers and any(_is_layer_type(kind, selector) for kind in parameter.kinds)


def _is_layer_type(kind: type[nn.Module], selector: Selector) -> bool:
    if isinstance(selector, str):
        return any(base.__name__ == selector for base in kind.__mro__ if base not in (nn.Module, object))
    return issubclass(kind, selector)


def _describe_no_match(claim: Claim, selector: Selector, parameters: Sequence[NamedParameter]) -> str:
    called = selector if isinstance(selector, str) else selector.__name__
    kinds = dict.fromkeys(chain.from_iterable(parameter.kinds for parameter in parameters))
    layers = [kind.__name__ for kind in kinds] if claim.layers else []
    pieces = dict.fromkeys(layers)  # and of each name its beginnings and its parts
    for name in chain.from_iterable(parameter.names for parameter in parameters):
        parts = name.split(".")
        pieces.update(dict.fromkeys((*accumulate(parts, "{}.{}".format), *parts)))
    near = nearest_names(re.sub(r"[*?.]+$|^[*?.]+", "", called), pieces)
    known_names = near or [parameter.name for parameter in parameters[:3]]
    owned = " and no layer type" if layers else ""
    hint = " (layer types are known only where the model is given)" if claim.layers and not layers else ""
    start = f"{claim.source}: {called!r} matches no parameter's name{owned}{hint}"
    ends = matching_indices(parameters, f"*{selector}") if selector and isinstance(selector, str) else set()
    if ends:
        return f"{start}, but the ends of {len(ends)}. Write {'*' + called!r}.{claim.hint}"
    return (
        f"{start}. {'The nearest names are' if near else 'Names are, for instance,'} "
        f"{', '.join(map(repr, known_names))}.{claim.hint}"
    )


def _merge_claims(parameter: NamedParameter, claims: Sequence[Claim]) -> None:
    """Give a parameter the tags and settings of these claims."""
    name = parameter.name
    exclusive = [claim.source for claim in claims if claim.exclusive]
    if len(exclusive) > 1:
        raise ValueError(
            f"{exclusive[0]} and {exclusive[1]} are exclusive, but both match the parameter {name!r}. Narrow the globs "
            "of one, or drop its 'exclusive'."
        )
    values: dict[str, tuple[Any, str]] = {}
    for claim in claims:
        for key, value in claim.settings.items():
            first, source = values.setdefault(key, (value, claim.source))
            if comparable_value(first) != comparable_value(value):
                raise ValueError(
                    f"The parameter {name!r} gets {key}={first!r} from {source} and {key}={value!r} from "
                    f"{claim.source}. Set one value, or narrow the globs of one."
                )
        parameter.tags |= claim.tags
    parameter.settings = {key: value for key, (value, _) in values.items()}
