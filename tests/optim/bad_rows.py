"""Hyperparameters that no optimizer takes: what is given, which argument the error names, and the value it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.optim.signatures import NAMES, REQUIRED, SIGNATURES

nan, inf = float("nan"), float("inf")


@dataclass(frozen=True, eq=False)
class Bad:
    name: str
    argument: str
    kwargs: Mapping[str, Any]
    shown: str  # how the error shows the value

    @property
    def id(self) -> str:
        return f"{self.name}-" + "-".join(f"{key}={value!r}" for key, value in self.kwargs.items()).replace(
            " ", ""
        ).replace("'", "")

    @property
    def base(self) -> dict[str, Any]:
        """Good arguments, where some are required."""
        return {"lr": 0.05} if SIGNATURES[self.name]["lr"] is REQUIRED else {}


def bad(name: str, argument: str, value: Any, shown: str | None = None, **others: Any) -> Bad:
    return Bad(name, argument, {argument: value, **others}, str(value) if shown is None else shown)


NOT_RATES: list[tuple[Any, str]] = [
    (-0.5, "-0.5"),
    (nan, "nan"),
    (inf, "inf"),
    ("fast", "fast"),
    (True, "True"),
    ([0.1], "[0.1]"),
    (torch.tensor(nan), "nan"),
    (torch.tensor(-0.25), "-0.25"),
    (torch.tensor([0.1, 0.2]), "0.1"),
    (torch.tensor(1), "1"),
    (1j, "1j"),
]
NOT_FRACTIONS = [(1.5, "1.5"), (-0.1, "-0.1"), (nan, "nan"), ("x", "x"), (None, "None")]
NOT_SWITCHES = [("yes", "yes"), (None, "None"), (2, "2")]

BAD = [bad(name, "lr", value, shown) for name in NAMES for value, shown in NOT_RATES]
for _name in NAMES:
    _known = SIGNATURES[_name]
    for _argument in ("weight_decay", "eps", "momentum", "lr_decay", "momentum_decay", "initial_accumulator_value"):
        if isinstance(_known.get(_argument), (int, float)):
            BAD += [bad(_name, _argument, *pair) for pair in [*NOT_RATES[:4], (None, "None")]]
    for _argument in ("rho", "alpha"):
        if _argument in _known:
            # torch takes any alpha in ASGD, and those above 1 in RMSprop.
            BAD += [bad(_name, _argument, *pair) for pair in NOT_FRACTIONS[{"RMSprop": 1, "ASGD": 2}.get(_name, 0) :]]
    for _argument, _default in _known.items():
        if isinstance(_default, bool):
            BAD += [bad(_name, _argument, *pair) for pair in NOT_SWITCHES]
    if "betas" in _known:
        BAD += [bad(_name, "betas", (0.9, value), shown) for value, shown in [*NOT_FRACTIONS, (1.0, "1.0")]]
        BAD += [bad(_name, "betas", (value, 0.9), shown) for value, shown in [*NOT_FRACTIONS, (1.0, "1.0")]]
        BAD += [
            bad(_name, "betas", (0.9,)),
            bad(_name, "betas", (0.9, 0.99, 0.999)),
            bad(_name, "betas", 0.9),
            bad(_name, "betas", "ab"),
            bad(_name, "betas", None),
            bad(_name, "betas", torch.tensor([0.9, 0.99]), "0.9"),
            bad(_name, "betas", (torch.tensor(0.9), torch.tensor(1.5)), "1.5"),
        ]
    if "etas" in _known:
        _etas = [(1.0, 0.5), (0.0, 1.2), (0.5, 1.0), (-0.5, 1.2), (0.5, nan), (nan, 1.2), (0.5, inf), (0.5,), 0.5, "ab"]
        _sizes = [(1.0, 0.1), (-1.0, 1.0), (nan, 1.0), (0.1, nan), (inf, inf), (0.1,), 3.0, (1, "x")]
        BAD += [bad(_name, "etas", value, "") for value in _etas]
        BAD += [bad(_name, "step_sizes", value, "") for value in _sizes]

BAD += [
    bad("SGD", "nesterov", True),
    bad("SGD", "nesterov", True, momentum=0.9, dampening=0.5),
    bad("SGD", "dampening", nan),
    bad("SGD", "dampening", inf),
    bad("SGD", "dampening", "x"),
    bad("ASGD", "lambd", nan),
    bad("ASGD", "lambd", "x"),
    bad("ASGD", "t0", nan),
    bad("ASGD", "t0", "x"),
    bad("Adafactor", "lr", None),
    bad("Adafactor", "relative_step", True),  # lr is given
    bad("Adafactor", "warmup_init", True),
    bad("Adafactor", "eps", (-1e-30, 1e-3), "-1e-30"),
    bad("Adafactor", "eps", (1e-30, -0.5), "-0.5"),
    bad("Adafactor", "eps", (nan, 1e-3), "nan"),
    bad("Adafactor", "eps", 1e-30),
    bad("Adafactor", "eps", (1e-30,)),
    bad("Adafactor", "clip_threshold", 0.0),
    bad("Adafactor", "clip_threshold", -1.0),
    bad("Adafactor", "clip_threshold", nan),
    bad("Adafactor", "clip_threshold", "x"),
    bad("Adafactor", "decay_rate", 0.8),
    bad("Adafactor", "decay_rate", nan),
    bad("Adafactor", "beta1", 1.0),
    bad("Adafactor", "beta1", -0.1),
    bad("Adafactor", "beta1", nan),
    bad("Adafactor", "beta1", "x"),
    bad("Muon", "ns_steps", 0),
    bad("Muon", "ns_steps", -1),
    bad("Muon", "ns_steps", 100),
    bad("Muon", "ns_steps", 2.5),
    bad("Muon", "ns_steps", True),
    bad("Muon", "ns_steps", "five"),
    bad("Muon", "ns_coefficients", (1.0, 2.0)),
    bad("Muon", "ns_coefficients", (1.0, nan, 2.0), "nan"),
    bad("Muon", "ns_coefficients", 3.0),
    bad("Muon", "adjust_lr_fn", "arbitrary"),
    bad("Muon", "adjust_lr_fn", 1),
]
