"""Rules for parameters: read, matched with the names and layers of parameters, and merged.

A rule, and each entry of `adjust_learning_rate`, `no_decay` and `output_head`, is read as a `Claim` (`read_rule`,
`read_factors`, `make_claims`). Then `apply_claims` gives each parameter what the claims say.
"""

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
CHECKED_KEYS = ("lr", "weight_decay", *FACTOR_KEYS)
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
    known = sorted({*HYPERPARAMETERS, *CHECKED_KEYS})
    if key not in known:  # a hyperparameter of a user's optimizer, or a misspelling
        near = nearest_names(key, RULE_KEYS, 1, 0.7)
        if not near and len(key) >= 5:  # a short name is near to many
            near = nearest_names(key, known, 1, 0.85)
        if near:
            raise ValueError(f"{where} has {key!r}, which is no hyperparameter. Write {near[0]!r}.")
    if key in CHECKED_KEYS:
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


def make_claims(selectors: Iterable[Selector], argument: str, settings: dict[str, Any], layers: bool) -> list[Claim]:
    """Make a claim for each of the globs and layer types that were read from `argument`."""
    return [Claim(f"{argument} ({glob!r})", (glob,), settings=settings, layers=layers) for glob in selectors]


def apply_claims(parameters: Sequence[NamedParameter], claims: Sequence[Claim]) -> None:
    """Give each parameter the tags and settings of the claims that select it.

    The error names all selectors without a parameter.
    """
    claims_of: dict[NamedParameter, list[Claim]] = {parameter: [] for parameter in parameters}
    errors = []
    for claim in claims:
        selected: set[NamedParameter] = set()
        for selector in claim.selectors:
            matching = select_parameters(parameters, selector, claim.layers)
            if not matching:
                errors.append(_describe_no_match(claim, selector, parameters))
            selected.update(matching)
        for parameter in selected:
            claims_of[parameter].append(claim)
    if errors:
        raise ValueError("\n".join(errors))
    for parameter in parameters:
        _merge_claims(parameter, claims_of[parameter])


def select_parameters(parameters: Iterable[NamedParameter], selector: Selector, layers: bool) -> list[NamedParameter]:
    """The parameters that a glob selects, or if `layers` is True a layer type."""
    return [parameter for parameter in parameters if _is_selected(parameter, selector, layers)]


def _is_selected(parameter: NamedParameter, selector: Selector, layers: bool) -> bool:
    if isinstance(selector, str) and any(fnmatch.fnmatchcase(name, selector) for name in parameter.names):
        return True
    return layers and any(_is_layer_type(kind, selector) for kind in parameter.kinds)


def _is_layer_type(kind: type[nn.Module], selector: Selector) -> bool:
    if isinstance(selector, str):
        return any(base.__name__ == selector for base in kind.__mro__ if base not in (nn.Module, object))
    return issubclass(kind, selector)


def _merge_claims(parameter: NamedParameter, claims: Sequence[Claim]) -> None:
    """Give a parameter the tags and settings of these claims."""
    name, settings = parameter.name, parameter.settings
    exclusive = [claim.source for claim in claims if claim.exclusive]
    if len(exclusive) > 1:
        raise ValueError(
            f"{exclusive[0]} and {exclusive[1]} are exclusive, but both match the parameter {name!r}. Narrow the globs "
            "of one, or drop its 'exclusive'."
        )
    sources: dict[str, str] = {}  # of the settings
    for claim in claims:
        for key, value in claim.settings.items():
            if key not in sources:
                settings[key], sources[key] = value, claim.source
            elif comparable_value(settings[key]) != comparable_value(value):
                raise ValueError(
                    f"The parameter {name!r} gets {key}={settings[key]!r} from {sources[key]} and {key}={value!r} from "
                    f"{claim.source}. Set one value, or narrow the globs of one."
                )
        parameter.tags |= claim.tags


def _describe_no_match(claim: Claim, selector: Selector, parameters: Sequence[NamedParameter]) -> str:
    """The error for a selector that matches nothing: what to write in its place, or names that are similar."""
    called = selector if isinstance(selector, str) else selector.__name__
    kinds = chain.from_iterable(parameter.kinds for parameter in parameters)
    layer_types = [kind.__name__ for kind in kinds] if claim.layers else []
    nor_type = " and no layer type" if layer_types else ""
    note = " (layer types are known only where the model is given)" if claim.layers and not layer_types else ""
    start = f"{claim.source}: {called!r} matches no parameter's name{nor_type}{note}"
    is_glob = isinstance(selector, str) and selector
    ends = select_parameters(parameters, f"*{selector}", layers=False) if is_glob else []
    if ends:
        return f"{start}, but the ends of {len(ends)}. Write {'*' + called!r}.{claim.hint}"
    near = nearest_names(re.sub(r"[*?.]+$|^[*?.]+", "", called), _name_parts(parameters, layer_types))
    names = near or [parameter.name for parameter in parameters[:3]]
    introduction = "The nearest names are" if near else "Names are, for instance,"
    return f"{start}. {introduction} {', '.join(map(repr, names))}.{claim.hint}"


def _name_parts(parameters: Iterable[NamedParameter], layer_types: Iterable[str]) -> dict[str, None]:
    """The names of layer types, then of each parameter's name its beginnings and its parts: a set in this order."""
    pieces = dict.fromkeys(layer_types)
    for name in chain.from_iterable(parameter.names for parameter in parameters):
        parts = name.split(".")
        pieces.update(dict.fromkeys((*accumulate(parts, "{}.{}".format), *parts)))
    return pieces


# The factors of a config, which may name groups of parameters that the model defines


def read_factor_claims(model: object, parameters: Sequence[NamedParameter], factors: Any) -> list[Claim]:
    """Read the factors in a config, and the `scale` of the model's own groups that the config does not name.

    A key is the name of a group in the model's `lr_adjustment_groups`, or a glob or layer type. A model without this
    attribute has the default groups. Groups of the model that no key names keep their own `scale`.
    """
    groups, scales = _model_groups(model)
    factors = {} if factors is None else factors
    claims = []
    for claim in read_factors(scales | factors if isinstance(factors, dict) else factors):
        (key,) = claim.selectors
        named = claim._replace(hint=f" The groups with a name are {', '.join(map(repr, groups))}.")
        # A glob or layer type wins against the name of a default group.
        if key in groups and (groups is not DEFAULT_GROUPS or not select_parameters(parameters, key, layers=True)):
            globs = read_selectors(groups[key], claim.source)
            matching = tuple(glob for glob in globs if select_parameters(parameters, glob, layers=False))
            if not matching and key in factors:  # the config names the group, so that no match is an error
                matching = globs
            named = named._replace(selectors=matching, layers=False)
        claims.append(named)
    return claims


def _model_groups(model: Any) -> tuple[Mapping[Any, Any], dict[Any, float]]:
    """The globs of the groups that a model names, or of the default groups, and the factors that the model gives."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    groups = getattr(model, "lr_adjustment_groups", None)
    if groups is None:
        return DEFAULT_GROUPS, {}
    globs = {name: group.param_filter_patterns for name, group in groups.items()}
    return globs, {name: group.scale for name, group in groups.items() if group.scale != 1.0}
