"""Which parameters a glob or a layer type selects, and what several rules together ask of one parameter."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

from timesched.time.units import exact

from ..hyper import KNOWN, RATE, as_tags

Selector = str | type[nn.Module]

FACTOR = "adjust_learning_rate"  # the key of a group that ScalePerParamLR multiplies by
FACTORS = (FACTOR, "adjust_val")
RATES = ("lr", "weight_decay", *FACTORS)
RULE_KEYS = ("params", "tags", "exclusive")

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)  # the last: BatchNorm, SyncBatchNorm, InstanceNorm
NORM_NAME = re.compile(r".*(Layer|RMS|Batch|Group|Instance)Norm([123]d)?")
# `bias`, `in_proj_bias`; `bias_k` of an attention, `bias_ih_l0_reverse` of a recurrent layer; never `bias_proj`.
BIAS_NAME = re.compile(r"(.*_)?bias(_[kv]|_[ih]h(_l\d+(_reverse)?)?)?")

# The parts of names that come from torch.compile, FSDP and activation checkpointing.
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
ENOUGH = 20_000  # names to look through for the nearest one


Owner = tuple[type[nn.Module], str]
Arrows = tuple[list[int], list[str], list[int]]  # in columns: from where, with what text, and where to


class Parameters(NamedTuple):
    """Parameters in columns: garbage collections would take longer than all else if each were an object.

    Modules that share modules make a number of names which is exponential in how deep they do. So names are not
    listed but the graph that spells them: a name is the texts on a path from node 0, the model, to a parameter.
    """

    tensors: list[Tensor]
    names: list[str]  # the first of each, without what wrappers put into it
    owners: list[tuple[Owner, ...]]  # types of modules, and its name in each
    arrows: Arrows  # from a module to a module in it; those of one module stand before those of the modules in it
    ends: Arrows  # from a module to the index of its parameter


class Claim(NamedTuple):
    """What one rule asks for the parameters it selects; `what` is how an error calls it."""

    what: str
    selectors: tuple[Selector, ...]
    tags: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = {}
    exclusive: bool = False
    layers: bool = False  # a selector may be a layer type


# The parameters there are


def of_model(model: nn.Module) -> Parameters:
    """The parameters of a model, in the order of its `named_parameters()`."""
    listed = Parameters([], [], [], ([], [], []), ([], [], []))
    tensors, names, owners, (starts, texts, followings), (holders, lasts, indices) = listed
    known: dict[int, int] = {}
    nodes = {id(model): 0}
    visited: set[int] = set()
    alone: dict[Owner, tuple[Owner, ...]] = {}  # one object for all that have the same owner
    path: list[nn.Module] = []

    def visit(module: nn.Module, clean: str, key: str) -> None:
        path.append(module)
        visited.add(id(module))
        node = nodes[id(module)]
        # A parametrized tensor is owned by the module two levels up, under the name of the tensor.
        original = isinstance(module, ParametrizationList) and len(path) > 2
        kind = type(path[-3] if original else module)
        for name, tensor in module._parameters.items():
            if tensor is not None:
                owner = (kind, key if original else name)
                i = known.setdefault(id(tensor), len(tensors))
                if i == len(tensors):
                    tensors.append(tensor)
                    names.append(clean + name)
                    owners.append(alone.setdefault(owner, (owner,)))
                else:
                    owners[i] += (owner,)
                holders.append(node)
                lasts.append(name)
                indices.append(i)
        hides = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inside: list[tuple[str, nn.Module, str]] = []
        for name, child in module._modules.items():
            if child is not None:
                hidden = name in WRAPPERS or (hides and name == "module")
                following = nodes.setdefault(id(child), len(nodes))
                for text in (f"{name}.", "") if hidden else (f"{name}.",):
                    starts.append(node)
                    texts.append(text)
                    followings.append(following)
                inside.append((name, child, clean if hidden else f"{clean}{name}."))
        for name, child, prefix in inside:
            if id(child) not in visited:
                visit(child, prefix, name)
        path.pop()

    visit(model, "", "")
    return listed


def of_pairs(pairs: Any) -> Parameters:
    """The parameters of `named_parameters()`, whose owners nobody knows."""
    if isinstance(pairs, (str, Tensor)) or not isinstance(pairs, Iterable):
        raise TypeError(f"model={pairs!r:.80}: pass a torch.nn.Module, or its named_parameters().")
    listed = Parameters([], [], [], ([], [], []), ([], [], []))
    starts, texts, followings = listed.arrows
    holders, lasts, indices = listed.ends
    known: dict[int, int] = {}
    places: dict[tuple[int, str], int] = {}
    for pair in pairs.items() if isinstance(pairs, Mapping) else pairs:
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Tensor)
        ):
            raise TypeError(f"model holds {pair!r:.80}, no pair (name, tensor): pass the model or named_parameters().")
        raw, tensor = pair
        clean = ".".join(part for part in raw.split(".") if part not in WRAPPERS)
        i = known.setdefault(id(tensor), len(listed.tensors))
        if i == len(listed.tensors):
            listed.tensors.append(tensor)
            listed.names.append(clean)
            listed.owners.append(())
        for name in dict.fromkeys((raw, clean)):
            *above, last = name.split(".")
            node = 0
            for part in above:
                if (node, part) not in places:
                    places[node, part] = len(places) + 1
                    starts.append(node)
                    texts.append(f"{part}.")
                    followings.append(places[node, part])
                node = places[node, part]
            holders.append(node)
            lasts.append(last)
            indices.append(i)
    return listed


def is_spared(kind: type[nn.Module], name: str) -> bool:
    """Whether a parameter of that name in a module of that type is a norm's or a bias."""
    return bool(issubclass(kind, NORMS) or NORM_NAME.fullmatch(kind.__name__) or BIAS_NAME.fullmatch(name))


# What is asked of them


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


def claims_of_rules(rules: Any) -> list[Claim]:
    """The claims that the dicts of `configure_param_groups(rules=...)` make."""
    if not isinstance(rules, Iterable) or isinstance(rules, (str, Mapping)):
        raise TypeError(f"rules={rules!r:.80}: pass a list of dicts, as [{{'params': '*bias', 'tags': 'bias'}}].")
    claims = []
    for i, rule in enumerate(rules):
        where = f"rules[{i}]"
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


class Glob(dict[int, "Reading"]):
    """A glob of `fnmatch` that reads a text in pieces: `glob[state][text]` is the state after some more text.

    A state is a set of places in the glob, as the bits of a number; 0 is where nothing can match any more.
    """

    TOKEN = re.compile(r"\[(?:!|(?!!))(?:\][^\]]*|[^\]]+)\]|.", re.DOTALL)  # [...] or one character

    def __init__(self, glob: str) -> None:
        super().__init__()
        tokens = self.TOKEN.findall(glob)
        self.tokens = [token for i, token in enumerate(tokens) if tokens[i : i + 2] != ["*", "*"]]
        self.stars = sum(1 << i for i, token in enumerate(self.tokens) if token == "*")
        self.masks: dict[str, int] = {}  # for each character the places of what matches it
        self.start = 1 | (1 & self.stars) << 1
        self.end = 1 << len(self.tokens)

    def __missing__(self, state: int) -> Reading:
        return self.setdefault(state, Reading(self, state))

    def mask(self, char: str) -> int:
        if char not in self.masks:
            places = (i for i, token in enumerate(self.tokens) if token != "*" and fnmatch.fnmatchcase(char, token))
            self.masks[char] = sum(1 << i for i in places)
        return self.masks[char]


class Reading(dict[str, int]):
    """What follows one state of a glob after each text, computed once."""

    def __init__(self, glob: Glob, state: int) -> None:
        super().__init__()
        self.glob, self.state = glob, state

    def __missing__(self, text: str) -> int:
        state, stars = self.state, self.glob.stars
        for char in text:
            state = state & stars | (state & self.glob.mask(char)) << 1
            state |= (state & stars) << 1  # a star may stand for nothing
        return self.setdefault(text, state)


def named_like(pattern: str, parameters: Parameters) -> list[int]:
    """The indices of the parameters that have a name which matches a glob."""
    glob = Glob(pattern)
    arrows, ends = parameters.arrows, parameters.ends
    reached = [0] * (1 + max(arrows[2], default=0))  # the states after all the texts that lead to a node, together
    reached[0] = glob.start
    shared = len(arrows[2]) >= len(reached)  # otherwise all that leads to a node stands before what starts there
    changed = True
    while changed:
        changed = False
        for node, text, following in zip(*arrows):
            state = reached[following] | glob[reached[node]][text]
            if state != reached[following]:
                reached[following] = state
                changed = shared
    return [i for node, text, i in zip(*ends) if glob[reached[node]][text] & glob.end]


def _is_kind(kind: type[nn.Module], selector: Selector) -> bool:
    if isinstance(selector, str):
        return any(each.__name__ == selector for each in kind.__mro__ if each not in (nn.Module, object))
    return issubclass(kind, selector)


def _no_match(claim: Claim, selector: Selector, parameters: Parameters, kinds: Iterable[Any]) -> str:
    called = selector if isinstance(selector, str) else selector.__name__
    layers = dict.fromkeys(kind.__name__ for kind in kinds) if claim.layers else {}
    pieces: dict[str, None] = dict(layers)  # and, of each name, what it starts with and what it consists of
    for name in islice(parameters.names, ENOUGH):
        parts = name.split(".")
        pieces.update(dict.fromkeys((*accumulate(parts, lambda a, b: f"{a}.{b}"), *parts)))
    texts = islice(chain(parameters.arrows[1], parameters.ends[1]), ENOUGH)  # those of other names, too
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
            if key in settings and plain(settings[key]) != plain(value):
                raise ValueError(
                    f"The parameter {name!r} gets {key}={settings[key]!r} from {source[key]} and {key}={value!r} from "
                    f"{claim.what}: give it one value, or narrow the globs of one."
                )
            settings.setdefault(key, value)
            source.setdefault(key, claim.what)
    return frozenset().union(*(claim.tags for claim in claims)), settings


def plain(value: Any) -> Any:
    """A value that can be compared and hashed: numbers in place of tensors, tuples in place of lists."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and not value.is_meta else f"tensor {id(value)}"
    if isinstance(value, (list, tuple)):
        return tuple(plain(each) for each in value)
    return value if value.__hash__ is not None else repr(value)
