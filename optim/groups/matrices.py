"""Selects the parameters for Muon: the hidden matrices, by the modules that own them. AdamW gets the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .parameters import NamedParameter
from .rules import Selector, select_parameters

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
EXPERTS = re.compile(r".*Experts?")  # names of classes
INPUTS_FIRST = re.compile(r".*Llama4TextExperts")  # (experts, inputs, outputs), without the attribute `is_transposed`
FUSED = re.compile(r".*qkv.*|query_key_value|c_attn|gate_up_proj|w1[23]")  # names of layers, and of stacks of experts
ATTENTION = re.compile(r".*(Attention|Attn|MHA).*")


class Decision(NamedTuple):
    """The algorithm of a parameter, the reason, and further settings of the group. Without an algorithm: undecided."""

    algorithm: str | None
    reason: str
    settings: dict[str, Any] = {}  # noqa: RUF012  # it is never changed


def choose_algorithms(parameters: Sequence[NamedParameter], output_head: Sequence[Selector] | None) -> None:
    """Give each parameter an algorithm for `optim.Muon`: the arguments `matrices` and `output_head`.

    The key `algorithm` and a tag of the same name are "muon" for hidden matrices. They are "adamw" for embeddings, the
    output head, norms, biases, routers, vectors and depthwise convolutions. The module that owns a parameter decides.
    Muon gets these parameters:

    * Linear, transformers' Conv1D (with `transposed`), and MultiheadAttention (with `split_sizes` for
      `in_proj_weight`, unless a rule has `num_heads`).
    * Convolutions (with `flatten`), except transposed and depthwise ones.
    * Parameters of 3 dimensions in a class `*Expert` or `*Experts` (with `transposed` if the class says so).

    All parameters in a router count as the router's. An `algorithm` in a rule wins. The key `reasons` of a group has
    the reason for each parameter. `param_group_table` shows it, with a note for fused projections that no rule splits.

    `output_head` has one or several globs for the output head, or is () for none. None searches. If the weight of a
    linear layer is also an embedding, this layer is the head. So are layers in a module called `head` or `*_head` with
    as many rows as an embedding. Otherwise the head is the linear layer with the shape of the largest embedding, if no
    linear layer as near to the top of the model comes after it.

    Raises ValueError if the kind of a parameter is not known, or if the output head is not clear.

    >>> import torch
    >>> from optim import configure_param_groups, param_group_table
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
    heads = _find_output_heads(parameters) if output_head is None else _select_heads(parameters, output_head)
    decisions = [_decide(parameter, parameter.name in heads) for parameter in parameters]
    unknown = [parameter for parameter, decision in zip(parameters, decisions) if decision.algorithm is None]
    if unknown:
        others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        name, shape = unknown[0].name, tuple(unknown[0].tensor.shape)
        raise ValueError(
            f"matrices='muon': the parameter {name!r}{others} of shape {shape} belongs to a "
            f"{type(unknown[0].path[-1]).__name__}, whose kind is not known. Pass the rule {{'params': {name!r}, "
            "'algorithm': 'adamw'} in the list after the model, or 'muon' for a matrix or a stack of matrices."
        )
    for parameter, decision in zip(parameters, decisions):
        parameter.settings = {"algorithm": decision.algorithm, **decision.settings, **parameter.settings}
        parameter.tags |= {str(decision.algorithm)}
        parameter.reason = decision.reason


def _select_heads(parameters: Sequence[NamedParameter], globs: Sequence[Selector]) -> set[str]:
    """The names of the parameters that the globs of `output_head` select."""
    return {p.name for glob in globs for p in select_parameters(parameters, glob, layers=False)}


def _decide(parameter: NamedParameter, is_head: bool) -> Decision:
    """The algorithm of a parameter, by its rules, by its place as output head, or by its module."""
    decision = _decide_by_module(parameter)
    algorithm = parameter.settings.get("algorithm")
    if is_head and algorithm in (None, "adamw"):
        return Decision("adamw", "output head")
    if algorithm is not None:
        decision = Decision(algorithm, "chosen", decision.settings if algorithm == "muon" else {})
    is_split = not parameter.settings.keys().isdisjoint(("split_sizes", "num_heads"))
    if decision.algorithm == "muon" and _is_fused(parameter) and not is_split:
        return decision._replace(reason=f"{decision.reason}, fused without split_sizes")
    return decision


def _decide_by_module(parameter: NamedParameter) -> Decision:
    shape = parameter.tensor.shape
    owner, attribute = next(iter(parameter.owners))
    if not parameter.decays:
        return Decision("adamw", "norm or bias")
    if parameter.tensor.numel() <= max(shape, default=1):
        return Decision("adamw", "vector")
    if _has_owner(parameter, EMBEDDINGS):
        return Decision("adamw", "embedding")
    if _is_in_router(parameter):
        return Decision("adamw", "router")
    if issubclass(owner, nn.MultiheadAttention):
        is_split_here = attribute == "in_proj_weight" and parameter.settings.get("num_heads") is None
        return Decision("muon", owner.__name__, {"split_sizes": (shape[0] // 3,) * 3} if is_split_here else {})
    if _is_depthwise(parameter):
        return Decision("adamw", "depthwise convolution")
    if issubclass(owner, _ConvNd) and not issubclass(owner, _ConvTransposeNd):
        return Decision("muon", owner.__name__, {"flatten": True})
    if issubclass(owner, nn.Linear):
        return Decision("muon", "Linear")
    if owner.__name__ == "Conv1D" and owner.__module__.partition(".")[0] == "transformers":
        return Decision("muon", "Conv1D", {"transposed": True})
    if len(shape) == 3 and EXPERTS.fullmatch(owner.__name__):
        transposed = getattr(parameter.path[-1], "is_transposed", INPUTS_FIRST.fullmatch(owner.__name__))
        return Decision("muon", "experts", {"transposed": True} if transposed else {})
    return Decision(None, "")


def _is_depthwise(parameter: NamedParameter) -> bool:
    """Whether each row of a convolution's weight is the filter of one channel. (A grey image has one channel, too.)"""
    owner: Any = parameter.path[-1]
    if not isinstance(owner, _ConvNd) or isinstance(owner, _ConvTransposeNd) or parameter.tensor.shape[1] != 1:
        return False
    return owner.groups > 1 or isinstance(owner, nn.Conv1d)


def is_transposed(parameter: NamedParameter) -> bool:
    """Whether a weight is known to have its inputs before its outputs."""
    return bool(parameter.owners) and bool(_decide_by_module(parameter).settings.get("transposed"))


def _is_in_router(parameter: NamedParameter) -> bool:
    """Whether the parameter is inside a router.

    A router has a class `*Router*` or the word `router` in its name, or it is a `gate` next to experts.
    """
    for parent, name, module in parameter.modules:
        siblings = (*parent._modules, *parent._parameters) if name == "gate" else ()
        is_gate_of_experts = any(sibling.startswith("expert") for sibling in siblings)
        if "Router" in type(module).__name__ or "router" in name.split("_") or is_gate_of_experts:
            return True
    return False


def _is_fused(parameter: NamedParameter) -> bool:
    """Whether the name of a linear layer, or of a stack of experts, says that it computes several projections together.

    If the rows are inputs, the projections are blocks of columns, which nothing can split.
    """
    owner, attribute = parameter.path[-1], next(iter(parameter.owners))[1]
    if EXPERTS.fullmatch(type(owner).__name__) and not is_transposed(parameter):
        return bool(FUSED.fullmatch(attribute))
    if not parameter.modules or not isinstance(owner, nn.Linear):
        return False
    parent, name, _ = parameter.modules[-1]
    return bool(FUSED.fullmatch(name) or (name == "in_proj" and ATTENTION.fullmatch(type(parent).__name__)))


def _find_output_heads(parameters: Sequence[NamedParameter]) -> set[str]:
    """Find the names of the weights of the output layers that are no embedding's weight, too."""
    linear = [p for p in parameters if _has_owner(p, nn.Linear) and p.tensor.dim() == 2]
    embeddings = [p.tensor for p in parameters if _has_owner(p, EMBEDDINGS)]
    untied = [p for p in linear if not _has_owner(p, EMBEDDINGS)]
    if len(untied) < len(linear):  # further heads are next to a tied head: called a head, with a row for each embedding
        counts = {tensor.shape[0] for tensor in embeddings}
        return {p.name for p in untied if p.tensor.shape[0] in counts and _is_in_head(p)}
    if not linear:
        return set()
    if not embeddings:
        raise _unclear_head(linear, "there is no embedding to compare with")
    largest = max(embeddings, key=lambda tensor: tensor.numel())
    candidates = [p for p in linear if p.tensor.shape == largest.shape]
    if len(candidates) != 1:
        subject = "several linear layers have" if candidates else "no linear layer has"
        raise _unclear_head(candidates or linear, f"{subject} the shape of the largest embedding")
    (head,) = candidates
    # The last layer as near to the top of the model: some models register their head before their blocks.
    last = [p for p in linear if p.name.count(".") <= head.name.count(".")][-1]
    if last is not head:
        why = f"{last.name!r} follows {head.name!r}, which has the shape of the largest embedding"
        raise _unclear_head([head, last], why)
    return {head.name}


def _unclear_head(candidates: Sequence[NamedParameter], why: str) -> ValueError:
    names = [p.name for p in candidates]
    glob = names[-1].removesuffix("weight") + "*"
    return ValueError(
        f"matrices='muon': the output head is not clear, since {why}. It may be {', '.join(map(repr, names[-5:]))}. "
        f"Pass output_head={glob!r}, or output_head=() for a model without an output head."
    )


def _is_in_head(parameter: NamedParameter) -> bool:
    return any(name == "head" or name.endswith("_head") for _, name, _ in parameter.modules)


def _has_owner(parameter: NamedParameter, kinds: Any) -> bool:
    return any(issubclass(kind, kinds) for kind in parameter.kinds)
