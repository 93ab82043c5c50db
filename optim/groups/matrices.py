"""Which parameters Muon is for: the hidden matrices of a model, by the modules that own them. AdamW gets the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .parameters import Named

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
ROUTER = re.compile(r".*Router.*|.*Gate")  # names of classes, such as MixtralTopKRouter
EXPERTS = re.compile(r".*Experts?")


class Decision(NamedTuple):
    """The algorithm of a parameter, why, and what a group has to say beside it; no algorithm: undecided."""

    algorithm: str | None
    reason: str
    settings: dict[str, Any] = {}  # noqa: RUF012  # it is never changed


def decisions(
    parameters: Sequence[Named], chosen: Sequence[str | None], heads: Sequence[bool] | None
) -> list[Decision]:
    """The algorithm of each parameter. `chosen`: by rules; `heads`: which are output heads, None to find it.

    Raises `ValueError` for parameters that cannot be decided, and where the output head cannot be found.
    """
    if heads is None:
        head = _output_head(parameters)
        heads = [each is head for each in parameters]
    names = [each.name for each in parameters]
    result = []
    for each, algorithm, is_head in zip(parameters, chosen, heads, strict=True):
        decision = _by_module(each, names)
        if is_head and algorithm in (None, "adamw"):
            decision = Decision("adamw", "output head")
        elif algorithm is not None:
            decision = Decision(algorithm, "chosen", decision.settings if algorithm == "muon" else {})
        result.append(decision)
    unknown = [each.name for each, decision in zip(parameters, result) if decision.algorithm is None]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        each = parameters[names.index(unknown[0])]
        owner = next(iter(each.owners))[0].__name__
        raise ValueError(
            f"matrices='muon': the parameter {unknown[0]!r}{more} of shape {tuple(each.tensor.shape)} is owned by a "
            f"{owner}, which says nothing of what it is: add {{'params': {unknown[0]!r}, 'algorithm': 'adamw'}} to the "
            "rules, or 'muon' for a matrix or a stack of them."
        )
    return result


def _by_module(each: Named, names: Sequence[str]) -> Decision:
    shape, kinds = each.tensor.shape, [kind for kind, _ in each.owners]
    owner, attribute = next(iter(each.owners))
    if not each.decays:
        return Decision("adamw", "norm or bias")
    if each.tensor.numel() <= max(shape, default=1):
        return Decision("adamw", "vector")
    if any(issubclass(kind, EMBEDDINGS) for kind in kinds):
        return Decision("adamw", "embedding")
    if ROUTER.fullmatch(owner.__name__) or _routes(each.name, names):
        return Decision("adamw", "router")
    if issubclass(owner, nn.MultiheadAttention):
        fused = {"split_sizes": (shape[0] // 3,) * 3} if attribute == "in_proj_weight" else {}
        return Decision("muon", owner.__name__, fused)
    if issubclass(owner, _ConvNd) and not issubclass(owner, _ConvTransposeNd):
        return Decision("muon", owner.__name__, {"flatten": True})
    if issubclass(owner, nn.Linear):
        return Decision("muon", "Linear")
    if owner.__name__ == "Conv1D" and owner.__module__.partition(".")[0] == "transformers":
        return Decision("muon", "Conv1D", {"transposed": True})
    if len(shape) == 3 and EXPERTS.fullmatch(owner.__name__):
        return Decision("muon", "experts")
    return Decision(None, "")


def _routes(name: str, names: Sequence[str]) -> bool:
    """Whether a layer is called as a router is: `router`, or `gate` beside experts."""
    *path, layer, _ = ["", *name.split(".")]
    beside = ".".join([*path[1:], "expert"])
    return layer == "router" or (layer == "gate" and any(other.startswith(beside) for other in names))


def _output_head(parameters: Sequence[Named]) -> Named | None:
    """The weight of the layer that gives the outputs; None if it is an embedding's, or there is no linear layer."""
    linear = [x for x in parameters if _is(x, nn.Linear) and x.tensor.dim() == 2]
    if not linear or any(_is(x, EMBEDDINGS) for x in linear):
        return None
    embeddings = [x.tensor for x in parameters if _is(x, EMBEDDINGS)]
    largest = max(embeddings, key=lambda x: x.numel(), default=None)
    fit = [x for x in linear if largest is not None and x.tensor.shape == largest.shape]
    if len(fit) == 1:
        return fit[0]
    names = [x.name for x in fit or linear]
    glob = names[-1].removesuffix("weight") + "*"
    what = "several linear layers have" if fit else "no linear layer has"
    why = f"{what} the shape of the largest embedding" if embeddings else "there is no embedding to compare with"
    raise ValueError(
        f"matrices='muon': which layer is the output head, for AdamW? {why}, so that it may be "
        f"{', '.join(map(repr, names[-5:]))}: write output_head={glob!r}, or output_head=() for a model without one."
    )


def _is(each: Named, kinds: Any) -> bool:
    return any(issubclass(kind, kinds) for kind, _ in each.owners)
