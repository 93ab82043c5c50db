"""The parameters of a model: their names, the modules that own them, and which of them a glob selects."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)  # the last: BatchNorm, SyncBatchNorm, InstanceNorm
NORM_NAME = re.compile(r".*(Layer|RMS|Batch|Group|Instance)Norm([123]d)?")
# `bias`, `in_proj_bias`; `bias_k` of an attention, `bias_ih_l0_reverse` of a recurrent layer; never `bias_proj`.
BIAS_NAME = re.compile(r"(.*_)?bias(_[kv]|_[ih]h(_l\d+(_reverse)?)?)?")

# The parts of names that come from torch.compile, FSDP and activation checkpointing.
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))

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


def is_norm_or_bias(kind: type[nn.Module], name: str) -> bool:
    """Whether a parameter of that name in a module of that type is a norm's or a bias."""
    return bool(issubclass(kind, NORMS) or NORM_NAME.fullmatch(kind.__name__) or BIAS_NAME.fullmatch(name))


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
