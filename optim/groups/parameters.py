"""A record for each parameter of a model: its names, the modules that own it, and what its group gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)  # the last: BatchNorm, SyncBatchNorm, InstanceNorm
NORM_NAME = re.compile(r".*(Layer|RMS|Rms|Batch|Group|Instance|Simple)Norm([123]d|Gated|Act|Fp32)*")
# `bias`, `in_proj_bias`, `expert_biases`; `bias_k` of an attention, `bias_ih_l0_reverse` of a recurrent layer; never
# `bias_proj`.
BIAS_NAME = re.compile(r"(.*_)?bias(es|_[kv]|_[ih]h(_l\d+(_reverse)?)?)?")

# The parts of names that torch.compile, FSDP and activation checkpointing add.
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))

Owner = tuple[type[nn.Module], str]
# A parameter, its name in the model (`raw`), the same without the parts that wrappers add (`clean`), the modules down
# to the owner, and its name in the owner. A shared parameter has several uses.
Use = tuple[Tensor, str, str, list[nn.Module], str]


@dataclass(slots=True, eq=False)
class NamedParameter:
    """A parameter: the names and layers by which globs and layer types select it, and what its group gets.

    The steps of `configure_param_groups` write `tags`, `settings` and `reason`, one after the other.
    """

    tensor: Tensor
    name: str  # the first name, without the parts that wrappers add
    names: dict[str, None]  # all names, with and without these parts
    owners: dict[Owner, None]  # the types of the modules that own it, each with the parameter's name in the module
    path: list[nn.Module]  # of the first name: the model, and the modules down to the owner, without wrappers
    tags: frozenset[str] = frozenset()
    settings: dict[str, Any] = field(default_factory=dict)  # hyperparameters, by name
    reason: str | None = None  # for the choice between Muon and AdamW

    @property
    def kinds(self) -> list[type[nn.Module]]:
        """The types of its owners."""
        return [kind for kind, _ in self.owners]

    @property
    def decays(self) -> bool:
        """Whether the parameter is no bias and no parameter of a norm, in one owner at least. True without owners."""
        return not self.owners or not all(map(is_norm_or_bias, self.owners))

    @property
    def modules(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """For each module of the path except the model: its parent, its name in the parent, and the module."""
        return list(zip(self.path, self.name.split("."), self.path[1:]))


def remove_wrappers(name: str) -> str:
    """A parameter's name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


@cache
def is_norm_or_bias(owner: Owner) -> bool:
    """Whether a parameter of this name, in a module of this type, is a bias or a parameter of a norm."""
    kind, name = owner
    return bool(issubclass(kind, NORMS) or NORM_NAME.fullmatch(kind.__name__) or BIAS_NAME.fullmatch(name))


def find_parameters(model: object) -> list[NamedParameter]:
    """Find the parameters of a model, or of its `named_parameters()`, in their order."""
    uses: list[Use] = []
    if isinstance(model, nn.Module):
        _collect_uses(uses, [model], "", "", "")
    elif isinstance(model, (str, Tensor)) or not isinstance(model, Iterable):
        raise TypeError(f"model={model!r:.80}: this is no module. Pass a torch.nn.Module, or its named_parameters().")
    else:
        for pair in model.items() if isinstance(model, Mapping) else model:
            name, tensor = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise TypeError(f"model has {pair!r:.80}, no pair (name, tensor). Pass a module or named_parameters().")
            uses.append((tensor, name, remove_wrappers(name), [], ""))
    by_id: dict[int, NamedParameter] = {}
    for tensor, raw, clean, path, name in uses:
        parameter = by_id.setdefault(id(tensor), NamedParameter(tensor, clean, {}, {}, path))
        parameter.names.update({raw: None, clean: None})
        if path:
            parameter.owners[type(path[-1]), name] = None
    return list(by_id.values())


def _collect_uses(uses: list[Use], path: list[nn.Module], key: str, raw: str, clean: str) -> None:
    """Collect the parameters of the last module of `path`, whose name is `key`, and of the modules inside it.

    `raw` and `clean` are the prefixes of their names.
    """
    module = path[-1]
    # A parametrized tensor is owned by the module two levels up, under the name of the tensor.
    is_original = isinstance(module, ParametrizationList) and len(path) > 2
    for name, tensor in module._parameters.items():
        if tensor is not None:
            owner_path, own_name = (path[:-2], key) if is_original else (path, name)
            uses.append((tensor, raw + name, clean + name, owner_path, own_name))
    is_wrapper = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    for name, child in module._modules.items():
        if child is not None and not any(child is ancestor for ancestor in path):  # some modules contain themselves
            is_hidden = name in WRAPPERS or (is_wrapper and name == "module")
            above = path[:-1] if is_hidden else path
            _collect_uses(uses, [*above, child], name, f"{raw}{name}.", clean if is_hidden else f"{clean}{name}.")
