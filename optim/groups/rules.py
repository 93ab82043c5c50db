"""Rules over parameters: what each sets for the parameters that it selects, and what several set for one."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from torch import Tensor, nn

from timesched.binding.groups import FACTOR_KEYS

from ..base.hyperparameters import HYPERPARAMETERS, RATE, as_tags
from .parameters import Named

Selector = str | type[nn.Module]

FACTOR = "adjust_learning_rate"  # the key of a group that ScalePerParamLR multiplies by
RATES = ("lr", "weight_decay", *FACTOR_KEYS)
RULE_KEYS = ("params", "tags", "exclusive")


class Claim(NamedTuple):
    """What one rule asks for the parameters it selects; `what` is how an error calls it."""

    what: str
    selectors: tuple[Selector, ...]
    tags: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = {}
    exclusive: bool = False
    layers: bool = False  # a selector may be a layer type
    hint: str = ""  # the end of the error for a selector that matches nothing


def checked_selectors(given: Any, what: str) -> tuple[Selector, ...]:
    """Globs and layer types, one or several, as a tuple."""
    several = (given,) if isinstance(given, (str, type)) or not isinstance(given, Iterable) else tuple(given)
    for each in several:
        if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, nn.Module)):
            raise TypeError(f"{what} has {each!r:.80}: pass globs over the names of parameters, as '*.bias'.")
    return several


def claims_of_rules(rules: Any, name: str = "rules") -> list[Claim]:
    """The claims that the dicts of `configure_param_groups(rules=...)` make; `name` is how an error calls the list."""
    return [claim_of_rule(rule, f"{name}[{i}]") for i, rule in enumerate(checked_rules(rules, name))]


def checked_rules(rules: Any, name: str) -> list[Any]:
    """A list of rules, which are not looked at."""
    if not isinstance(rules, Iterable) or isinstance(rules, (str, Mapping)):
        raise TypeError(f"{name}={rules!r:.80}: pass a list of dicts, as [{{'params': '*bias', 'tags': 'bias'}}].")
    return list(rules)


def claim_of_rule(rule: Any, where: str) -> Claim:
    """The claim that a dict makes; `where` is how an error calls it."""
    if isinstance(rule, Claim):  # it was read already, from a config
        return rule
    if not isinstance(rule, Mapping) or not all(isinstance(key, str) for key in rule):
        raise TypeError(f"{where}={rule!r:.80}: pass a dict, as {{'params': '*bias', 'tags': 'bias'}}.")
    settings = {key: value for key, value in rule.items() if key not in RULE_KEYS}
    known = sorted({*HYPERPARAMETERS, *RATES})
    for key, value in settings.items():
        # the hyperparameters of an optimizer of somebody's own are not known: a short name is near to many
        near = [] if len(key) < 5 else difflib.get_close_matches(key, known, 1, 0.85)
        near = difflib.get_close_matches(key, RULE_KEYS, 1, 0.7) or near
        if near and key not in known:
            raise ValueError(f"{where} has {key!r}, which is no hyperparameter: write {near[0]!r}.")
        if key in RATES:
            RATE.check(f"{where}: {key}", value)
        if key in FACTOR_KEYS:
            settings[key] = float(value)
    globs = checked_selectors(rule.get("params", ()), f"{where}: params")
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise ValueError(f"{where} has params={list(globs)!r:.80}: give it a glob or a list of them, as '*.bias'.")
    exclusive = rule.get("exclusive", False)
    if not isinstance(exclusive, bool):
        raise TypeError(f"{where}: exclusive={exclusive!r}: it is True or False.")
    tags = frozenset(as_tags(rule.get("tags"), f"{where}: "))
    return Claim(f"{where} ({', '.join(map(repr, globs))})", globs, tags, settings, exclusive)


def claims_of_factors(factors: Any) -> list[Claim]:
    """The claims that `adjust_learning_rate` makes."""
    if not isinstance(factors, Mapping):
        raise TypeError(f"{FACTOR}={factors!r:.80}: pass a dict from globs or layer types to factors.")
    claims = []
    for key, factor in factors.items():
        what = f"{FACTOR}[{key!r}]"
        RATE.check(what, factor)
        selectors = checked_selectors([key], FACTOR)
        claims.append(Claim(what, selectors, settings={FACTOR: float(factor)}, layers=True))
    return claims


def claims_of_selectors(given: Any, what: str, settings: Mapping[str, Any], layers: bool = False) -> list[Claim]:
    """A claim for each of the globs and layer types that the argument `what` is."""
    selectors = checked_selectors(given, what)
    return [Claim(f"{what} ({each!r})", (each,), settings=settings, layers=layers) for each in selectors]


def matched(parameters: Sequence[Named], claims: Sequence[Claim]) -> list[list[Claim]]:
    """For each parameter the claims that select it. The error names all selectors that select none."""
    hits: list[list[Claim]] = [[] for _ in parameters]
    errors = []
    for claim in claims:
        selected: set[int] = set()
        for selector in claim.selectors:
            indices = selection(parameters, selector, claim.layers)
            if not indices:
                errors.append(_no_match(claim, selector, parameters))
            selected |= indices
        for i in selected:
            hits[i].append(claim)
    if errors:
        raise ValueError("\n".join(errors))
    return hits


def selection(parameters: Sequence[Named], selector: Selector, layers: bool = False) -> set[int]:
    """The indices of the parameters that a glob selects, or with `layers` a layer type."""
    selected = set()
    for i, parameter in enumerate(parameters):
        is_layer = layers and any(_is_kind(kind, selector) for kind in parameter.kinds)
        if is_layer or _has_name(parameter, selector):
            selected.add(i)
    return selected


def _has_name(parameter: Named, selector: Selector) -> bool:
    return isinstance(selector, str) and any(fnmatch.fnmatchcase(name, selector) for name in parameter.names)


def _is_kind(kind: type[nn.Module], selector: Selector) -> bool:
    if isinstance(selector, str):
        return any(each.__name__ == selector for each in kind.__mro__ if each not in (nn.Module, object))
    return issubclass(kind, selector)


def _no_match(claim: Claim, selector: Selector, parameters: Sequence[Named]) -> str:
    called = selector if isinstance(selector, str) else selector.__name__
    kinds = dict.fromkeys(chain.from_iterable(parameter.kinds for parameter in parameters))
    layers = [kind.__name__ for kind in kinds] if claim.layers else []
    pieces = dict.fromkeys(layers)  # and, of each name, what it starts with and what it consists of
    for name in chain.from_iterable(each.names for each in parameters):
        parts = name.split(".")
        pieces.update(dict.fromkeys((*accumulate(parts, "{}.{}".format), *parts)))
    near = difflib.get_close_matches(re.sub(r"[*?.]+$|^[*?.]+", "", called), pieces, 3, 0.6)
    there = near or [each.name for each in parameters[:3]]
    owned = " and no layer type" if layers else ""
    hint = " (layer types are known only where the model is given)" if claim.layers and not layers else ""
    start = f"{claim.what}: {called!r} matches no parameter's name{owned}{hint}"
    ends = selection(parameters, f"*{selector}") if selector and isinstance(selector, str) else set()
    if ends:
        return f"{start}, but the ends of {len(ends)}: write {'*' + called!r}.{claim.hint}"
    return (
        f"{start}; {'the nearest there are' if near else 'names are, for instance,'} "
        f"{', '.join(map(repr, there))}.{claim.hint}"
    )


def merged(claims: Sequence[Claim], name: str) -> tuple[frozenset[str], dict[str, Any]]:
    """The tags and settings that claims together make for the parameter `name`."""
    exclusive = [claim.what for claim in claims if claim.exclusive]
    if len(exclusive) > 1:
        raise ValueError(
            f"{exclusive[0]} and {exclusive[1]} both match the parameter {name!r}, and both are exclusive: narrow the "
            f"globs of one, or drop its 'exclusive'."
        )
    found: dict[str, tuple[Any, str]] = {}
    for claim in claims:
        for key, value in claim.settings.items():
            first, source = found.setdefault(key, (value, claim.what))
            if comparable(first) != comparable(value):
                raise ValueError(
                    f"The parameter {name!r} gets {key}={first!r} from {source} and {key}={value!r} from {claim.what}: "
                    f"give it one value, or narrow the globs of one."
                )
    tags: frozenset[str] = frozenset().union(*(claim.tags for claim in claims))
    return tags, {key: value for key, (value, _) in found.items()}


def comparable(value: Any) -> Any:
    """A value that can be compared and hashed: numbers in place of tensors, tuples in place of lists."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(comparable(each) for each in value)
    return value if value.__hash__ is not None else repr(value)
