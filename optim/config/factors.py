"""The learning-rate factors of a config: for the groups that a model names, for globs and for layer types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..groups.parameters import find_parameters
from ..groups.rules import Claim, matching_indices, read_factors, read_selectors

# The groups of a model that does not name its own, and their globs.
DEFAULT_GROUPS = {
    "embedding": "*embedding*weight",
    "decoder_kernel": ("*decoder*dense*weight", "*decoder*linear*weight"),
}


def read_factor_claims(model: Any, factors: Any) -> list[Claim]:
    """Read the factors in a config, and the `scale` of the model's own groups that the config does not name.

    A key is the name of a group in the model's `lr_adjustment_groups`, or a glob or layer type. A model without this
    attribute has the default groups. Groups of the model that no key names keep their own `scale`.
    """
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    own_groups = getattr(model, "lr_adjustment_groups", None)
    globs: Mapping[Any, Any] = DEFAULT_GROUPS
    scales = {}
    if own_groups is not None:
        globs = {name: group.param_filter_patterns for name, group in own_groups.items()}
        scales = {name: group.scale for name, group in own_groups.items() if group.scale != 1.0}
    factors = {} if factors is None else factors
    parameters = find_parameters(model)
    claims = []
    for claim in read_factors(scales | factors if isinstance(factors, dict) else factors):
        (key,) = claim.selectors
        selectors, is_layer = claim.selectors, True
        if key in globs and (own_groups is not None or not matching_indices(parameters, key, layers=True)):
            selectors, is_layer = read_selectors(globs[key], claim.source), False
            # at least one glob of a group must match; if only the model names the group, none must
            matching = tuple(glob for glob in selectors if matching_indices(parameters, glob))
            selectors = matching if key not in factors else matching or selectors
        hint = f" The groups with a name are {', '.join(map(repr, globs))}."
        claims.append(claim._replace(selectors=selectors, layers=is_layer, hint=hint))
    return claims
