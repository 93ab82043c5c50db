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


@dataclass(slots=True, eq=False)
class NamedParameter:
    """A parameter: the names and layers by which globs and layer types select it, and what its group gets.

    The passes of `configure_param_groups` fill `tags`, `settings` and `reason`, in this order. A value that a rule has
    set stays.

        pass               writes into `settings`                          and
        apply_claims       what the rules say                              tags of the rules
        choose_algorithms  `algorithm`, and what it needs for its module   a tag of the same name, and `reason`
        set_weight_decay   `weight_decay`                                  the `decay_tag`
        scale_by_depth     a learning-rate factor, if there is none
        scale_by_width     the factor multiplied, the weight decay divided, and `base_rule`
        set_learning_rate  `lr` with the factor, by `algorithm`; `lr_factor` in place of the factor
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
    by_id: dict[int, NamedParameter] = {}
    if isinstance(model, nn.Module):
        _find_in_module(by_id, [model], "", "", "")
    elif isinstance(model, (str, Tensor)) or not isinstance(model, Iterable):
        raise TypeError(f"model={model!r:.80}: this is no module. Pass a torch.nn.Module, or its named_parameters().")
    else:
        for pair in model.items() if isinstance(model, Mapping) else model:
            name, tensor = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise TypeError(f"model has {pair!r:.80}, no pair (name, tensor). Pass a module or named_parameters().")
            clean_name = remove_wrappers(name)
            parameter = by_id.setdefault(id(tensor), NamedParameter(tensor, clean_name, {}, {}, []))
            parameter.names.update({name: None, clean_name: None})
    return list(by_id.values())


def _find_in_module(by_id: dict[int, NamedParameter], path: list[nn.Module], key: str, raw: str, clean: str) -> None:
    """Find the parameters of the last module of `path`, whose name is `key`, and of the modules inside it.

    `raw` and `clean` are the prefixes of their names, with and without the parts that wrappers add.
    """
    module = path[-1]
    # A parametrized tensor is owned by the module two levels up, under the name of the tensor.
    is_original = isinstance(module, ParametrizationList) and len(path) > 2
    for name, tensor in module._parameters.items():
        if tensor is not None:
            owner_path, own_name = (path[:-2], key) if is_original else (path, name)
            # A shared parameter has its record already, and gets further names and owners.
            parameter = by_id.setdefault(id(tensor), NamedParameter(tensor, clean + name, {}, {}, owner_path))
            parameter.names.update({raw + name: None, clean + name: None})
            parameter.owners[type(owner_path[-1]), own_name] = None
    is_wrapper = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    for name, child in module._modules.items():
        if child is not None and not any(child is ancestor for ancestor in path):  # some modules contain themselves
            is_hidden = name in WRAPPERS or (is_wrapper and name == "module")
            above, child_clean = (path[:-1], clean) if is_hidden else (path, f"{clean}{name}.")
            _find_in_module(by_id, [*above, child], name, f"{raw}{name}.", child_clean)
