"""Rules over parameters: what each asks of the parameters that it selects, and what several together ask of one."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from timesched.time.units import exact

from ..core.hyperparameters import KNOWN, RATE, as_tags
from .parameters import Parameters, named_like

Selector = str | type[nn.Module]

FACTOR = "adjust_learning_rate"  # the key of a group that ScalePerParamLR multiplies by
FACTORS = (FACTOR, "adjust_val")
RATES = ("lr", "weight_decay", *FACTORS)
RULE_KEYS = ("params", "tags", "exclusive")
_ENOUGH = 20_000  # names to look through for the nearest one


class Claim(NamedTuple):
    """What one rule asks for the parameters it selects; `what` is how an error calls it."""

    what: str
    selectors: tuple[Selector, ...]
    tags: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = {}
    exclusive: bool = False
    layers: bool = False  # a selector may be a layer type


def checked_selectors(given: Any, what: str) -> tuple[Selector, ...]:
    """Globs and layer types, one or several, as a tuple."""
    several = (given,) if isinstance(given, (str, type)) else given
    if not isinstance(several, Iterable) or isinstance(several, (Mapping, Tensor)):
        raise TypeError(f"{what}={given!r:.80}: pass a glob over the names of parameters, or a list of them.")
    selectors = tuple(several)
    for selector in selectors:
        if not isinstance(selector, str) and not (isinstance(selector, type) and issubclass(selector, nn.Module)):
            raise TypeError(f"{what} holds {selector!r:.80}: pass globs over the names of parameters, as '*.bias'.")
    return selectors


def claims_of_rules(rules: Any, name: str = "rules") -> list[Claim]:
    """The claims that the dicts of `configure_param_groups(rules=...)` make; `name` is how an error calls the list."""
    if not isinstance(rules, Iterable) or isinstance(rules, (str, Mapping)):
        raise TypeError(f"{name}={rules!r:.80}: pass a list of dicts, as [{{'params': '*bias', 'tags': 'bias'}}].")
    claims = []
    for i, rule in enumerate(rules):
        where = f"{name}[{i}]"
        if not isinstance(rule, Mapping) or not all(isinstance(key, str) for key in rule):
            raise TypeError(f"{where}={rule!r:.80}: pass a dict, as {{'params': '*bias', 'tags': 'bias'}}.")
        settings = {key: value for key, value in rule.items() if key not in RULE_KEYS}
        for key, value in settings.items():
            meant = [] if key in KNOWN or key in RATES else difflib.get_close_matches(key, RULE_KEYS, 1, 0.7)
            if not meant and key not in KNOWN and key not in RATES and len(key) > 4:
                meant = difflib.get_close_matches(key, sorted({*KNOWN, *RATES}), 1, 0.85)
            if meant:
                raise ValueError(f"{where} has {key!r}, which is no hyperparameter: write {meant[0]!r}.")
            if key in FACTORS:
                settings[key] = as_factor(f"{where}: {key}", value)
            elif key in RATES:
                RATE.check(f"{where}: {key}", value)
        globs = checked_selectors(rule.get("params", ()), f"{where}: params")
        if not globs or not all(isinstance(glob, str) for glob in globs):
            raise ValueError(f"{where} has params={list(globs)!r:.80}: give it a glob or a list of them, as '*.bias'.")
        exclusive = rule.get("exclusive", False)
        if not isinstance(exclusive, bool):
            raise TypeError(f"{where}: exclusive={exclusive!r}: it is True or False.")
        tags = frozenset(as_tags(rule.get("tags"), f"{where}: "))
        what = f"{where} ({', '.join(map(repr, globs))})"
        claims.append(Claim(what, globs, tags, settings, exclusive))
    return claims


def claims_of_factors(factors: Any) -> list[Claim]:
    """The claims that `adjust_learning_rate` makes."""
    if not isinstance(factors, Mapping):
        raise TypeError(f"{FACTOR}={factors!r:.80}: pass a dict from globs or layer types to factors.")
    claims = []
    for key, factor in factors.items():
        what = f"{FACTOR}[{key!r}]"
        selectors = checked_selectors([key], FACTOR)
        claims.append(Claim(what, selectors, settings={FACTOR: as_factor(what, factor)}, layers=True))
    return claims


def as_factor(what: str, value: Any) -> float:
    """A factor as a float. A number of another precision stands for its shortest decimal, as 0.1 in float32 does."""
    RATE.check(what, value)
    if not isinstance(value, Tensor):
        return float(exact(value, what))
    if value.is_meta:
        raise ValueError(f"{what}={value!r} is on the meta device, and has no value: pass a number.")
    number = value.item()
    decimals = (float(f"{number:.{digits}g}") for digits in range(1, 18))
    return next(each for each in decimals if torch.tensor(each, dtype=value.dtype, device="cpu").item() == number)


def matched(parameters: Parameters, claims: Sequence[Claim]) -> list[tuple[int, ...]]:
    """For each parameter the indices of the claims that select it. Every selector has to select one."""
    hits: list[tuple[int, ...]] = [()] * len(parameters.names)
    kinds: dict[type[nn.Module], list[int]] = {}
    for i, owners in enumerate(parameters.owners):
        for kind, _ in owners:
            kinds.setdefault(kind, []).append(i)
    for number, claim in enumerate(claims):
        longer: dict[tuple[int, ...], tuple[int, ...]] = {}
        for selector in claim.selectors:
            found: list[int] = []
            if isinstance(selector, str):
                found = named_like(selector, parameters)
            if claim.layers:
                found += chain.from_iterable(kinds[kind] for kind in kinds if _is_kind(kind, selector))
            if not found:
                raise ValueError(_no_match(claim, selector, parameters, kinds))
            for i in found:
                before = hits[i]
                if not before or before[-1] != number:
                    hits[i] = longer.setdefault(before, (*before, number))
    return hits


def _is_kind(kind: type[nn.Module], selector: Selector) -> bool:
    if isinstance(selector, str):
        return any(each.__name__ == selector for each in kind.__mro__ if each not in (nn.Module, object))
    return issubclass(kind, selector)


def _no_match(claim: Claim, selector: Selector, parameters: Parameters, kinds: Iterable[Any]) -> str:
    called = selector if isinstance(selector, str) else selector.__name__
    layers = dict.fromkeys(kind.__name__ for kind in kinds) if claim.layers else {}
    pieces: dict[str, None] = dict(layers)  # and, of each name, what it starts with and what it consists of
    for name in islice(parameters.names, _ENOUGH):
        parts = name.split(".")
        pieces.update(dict.fromkeys((*accumulate(parts, lambda a, b: f"{a}.{b}"), *parts)))
    texts = islice(chain(parameters.arrows[1], parameters.ends[1]), _ENOUGH)  # those of other names, too
    pieces.update(dict.fromkeys(text.rstrip(".") for text in texts))
    near = difflib.get_close_matches(re.sub(r"[*?.]+$|^[*?.]+", "", called), pieces, 3, 0.6)
    there = near or parameters.names[:3]
    owned = " and no layer type" if claim.layers and layers else ""
    hint = "" if layers or not claim.layers else " (layer types are known only where the model is given)"
    return (
        f"{claim.what}: {called!r} matches no parameter's name{owned}{hint}; "
        f"{'the nearest there are' if near else 'names are, for instance,'} {', '.join(map(repr, there))}."
    )


def merged(claims: Sequence[Claim], name: str) -> tuple[frozenset[str], dict[str, Any]]:
    """The tags and settings that claims together make for the parameter `name`."""
    exclusive = [claim.what for claim in claims if claim.exclusive]
    if len(exclusive) > 1:
        raise ValueError(
            f"{exclusive[0]} and {exclusive[1]} both match the parameter {name!r}, and both are exclusive: narrow the "
            f"globs of one, or drop its 'exclusive'."
        )
    settings: dict[str, Any] = {}
    source: dict[str, str] = {}
    for claim in claims:
        for key, value in claim.settings.items():
            if key in settings and comparable(settings[key]) != comparable(value):
                raise ValueError(
                    f"The parameter {name!r} gets {key}={settings[key]!r} from {source[key]} and {key}={value!r} from "
                    f"{claim.what}: give it one value, or narrow the globs of one."
                )
            settings.setdefault(key, value)
            source.setdefault(key, claim.what)
    return frozenset().union(*(claim.tags for claim in claims)), settings


def comparable(value: Any) -> Any:
    """A value that can be compared and hashed: numbers in place of tensors, tuples in place of lists."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and not value.is_meta else f"tensor {id(value)}"
    if isinstance(value, (list, tuple)):
        return tuple(comparable(each) for each in value)
    return value if value.__hash__ is not None else repr(value)


def copied(value: Any) -> Any:
    """A value for one more group: a tensor of its own."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
