"""Types that many modules name: a parameter group, a saved state, and the tags of groups."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

ParamGroup = dict[str, Any]  # the parameters and hyperparameters of a group, by name
StateDict = dict[str, Any]  # a saved state: plain values, tensors, and lists and dicts of them
Tags = Hashable | Iterable[Hashable]  # one tag or several; None for all groups
