"""The one table of the optimizer tests: optimizer x configuration, as data.

A row says what is constructed and what it is held to: torch's optimizer with the same formula (`in_torch`), else the
equations of its docstring, to which each row is held in any case; and the case of tests/golden/optimizers.json with
the same arguments (`golden`).
Many configurations are those of torch's OptimizerInfo inputs (torch/testing/_internal/common_optimizers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.optim.signatures import MATRICES, NAMES, SIGNATURES

NOT_IN_TORCH = {"Lion", "Lamb", "Adafactor", "NorMuon"}  # torch's Adafactor is another formula


@dataclass(frozen=True, eq=False)
class Row:
    """One configuration. `groups`: what each parameter group overrides; the parameters are dealt out in turn."""

    name: str
    label: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    golden: str | None = None
    groups: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def id(self) -> str:
        return f"{self.name}-{self.label}"

    @property
    def arguments(self) -> dict[str, Any]:
        """All hyperparameters with their values, defaults included."""
        return {**SIGNATURES[self.name], **self.kwargs}

    @property
    def in_torch(self) -> str | None:
        """The name of torch's class with this formula."""
        groups = [{**self.arguments, **group} for group in self.groups]
        forms = ("cerebras", "spectral_unclamped")  # the second came with torch 2.14.1
        another = any(not g.get("correct_bias", True) or g.get("adjust_lr_fn") in forms for g in groups)
        another |= any(g.get("cautious_weight_decay") for g in groups)
        if self.name in NOT_IN_TORCH or another:
            return None
        return "AdamW" if self.name == "Adam" and self.kwargs.get("decoupled_weight_decay") else self.name


def tensors(*values: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


def tensor(value: float) -> torch.Tensor:
    return tensors(value)[0]


B, W = "betas", "weight_decay"
MAX = {"maximize": True}
L2 = {W: 0.1}
UP = {**L2, **MAX}  # uphill
MATCH = {"adjust_lr_fn": "match_rms_adamw"}
CENTERED = {"centered": True}
NUMBERS = {"lr": 0.01, "alpha": 0.8, "eps": 0.001}
ABSOLUTE = {"scale_parameter": False}
CLIP, FIRST = "clip_threshold", "initial_accumulator_value"
SCHEDULED = ("lr", CLIP, "decay_rate", "beta1", W, "eps")  # the numbers of Adafactor that may be

ROWS = [
    Row("SGD", "lr", {"lr": 0.1}, "plain"),
    Row("SGD", "momentum", {"lr": 0.1, "momentum": 0.9}, "momentum"),
    Row("SGD", "nesterov", {"lr": 0.05, "momentum": 0.9, "nesterov": True, W: 0.01}, "nesterov_wd"),
    Row("SGD", "grad_none", {"lr": 0.05, "momentum": 0.9}, "grad_none"),
    Row("SGD", "groups", {"lr": 0.05, "momentum": 0.9}, "groups", ({"lr": 0.2, "momentum": 0.5}, {W: 0.3})),
    Row("SGD", "maximize_weight_decay", {"lr": 0.01, **UP}),
    Row("SGD", "dampening", {"lr": 0.05, "momentum": 0.8, "dampening": 0.3}),
    Row("SGD", "dampening_maximize", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, **UP}),
    Row("SGD", "dampening_without_momentum", {"lr": 0.05, "dampening": 0.5}),
    Row("SGD", "nesterov_maximize", {"lr": 0.05, "momentum": 0.7, "nesterov": True, **UP}),
    Row("SGD", "zero_lr", {"lr": 0.0, "momentum": 0.9, **L2}),
    Row("SGD", "ints", {"lr": 1, "momentum": 1, W: 1}),
    Row("SGD", "tensors", {"lr": tensor(0.05), "momentum": tensor(0.8), "dampening": tensor(0.3), W: tensor(0.1)}),
    Row("SGD", "groups_momentum_or_not", {"lr": 0.1}, None, ({"momentum": 0.9, "dampening": 0.2}, {}, {**MAX})),
    Row("ASGD", "defaults", {}, "defaults"),
    Row("ASGD", "lambd", {"lr": 0.05, "lambd": 0.01}, "lambd"),
    Row("ASGD", "averaging_starts", {"lr": 0.1, "alpha": 0.5, "t0": 3}, "averaging_starts"),
    Row("ASGD", "maximize_weight_decay", {"lr": 0.05, **UP}, "maximize_wd"),
    Row("ASGD", "t0_zero", {"lr": 0.1, "lambd": 0.1, "alpha": 1.0, "t0": 0.0}, "t0_zero_alpha1"),
    Row("ASGD", "groups", {"lr": 0.05, "t0": 4}, "groups", ({"lr": 0.1, "alpha": 0.9}, {W: 0.05, "lambd": 0.02})),
    Row("ASGD", "tensors", dict(zip(["lr", "lambd", "alpha", "t0", W], tensors(0.03, 0.01, 0.6, 5, 0.1)))),
    Row("Adadelta", "defaults", {}, "defaults"),
    Row("Adadelta", "rho", {"lr": 0.5, "rho": 0.5}, "rho"),
    Row("Adadelta", "eps", {"lr": 1.0, "rho": 0.95, "eps": 0.001}, "eps_big"),
    Row("Adadelta", "weight_decay", {"lr": 1.0, "rho": 0.9, W: 0.1}, "wd"),
    Row("Adadelta", "all", {"lr": 2.0, "rho": 0.8, "eps": 1e-4, W: 0.05, **MAX}, "maximize_wd"),
    Row("Adadelta", "groups", {"lr": 1.0}, "groups", ({"rho": 0.7, "eps": 1e-5}, {"lr": 0.3, **MAX})),
    Row("Adadelta", "rho_zero", {"rho": 0.0}),
    Row("Adadelta", "tensors", dict(zip(["lr", "rho", "eps", W], tensors(0.3, 0.8, 1e-4, 0.1)))),
    Row("Adafactor", "lr", {"lr": 0.05}, "scale_parameter"),
    Row("Adafactor", "absolute", {"lr": 0.05, **ABSOLUTE}, "no_scale_parameter"),
    Row("Adafactor", "weight_decay", {"lr": 0.05, W: 0.1}, "wd"),
    Row("Adafactor", "decay_rate_eps", {"lr": 0.1, "eps": (1e-8, 0.5), "decay_rate": -0.5}, "decay_rate_eps"),
    Row("Adafactor", "group_beta1", {"lr": 0.05}, "group_beta1", ({"beta1": 0.9}, {"beta1": 0.5, **ABSOLUTE})),
    Row("Adafactor", "group_clip", {"lr": 0.05, **ABSOLUTE}, "group_clip", ({CLIP: 0.25}, {CLIP: 2.0})),
    Row("Adafactor", "explicit_defaults", {**SIGNATURES["Adafactor"], "lr": 0.02}, "explicit_defaults"),
    Row("Adafactor", "relative_step", {"lr": None, "relative_step": True}),
    Row("Adafactor", "warmup_init", {"lr": None, "relative_step": True, "warmup_init": True, **L2}),
    Row("Adafactor", "relative_absolute", {"lr": None, "relative_step": True, **ABSOLUTE, "beta1": 0.8}),
    Row("Adafactor", "beta1", {"lr": 0.05, "beta1": 0.9, **L2}),
    Row("Adafactor", "beta1_zero", {"lr": 0.05, "beta1": 0.0}),
    Row("Adafactor", "clip_threshold", {"lr": 0.05, "clip_threshold": 0.5}),
    Row("Adafactor", "group_beta1_or_not", {"lr": 0.05}, None, ({"beta1": 0.9}, {})),
    Row("Adafactor", "tensors", dict(zip(SCHEDULED, [*tensors(0.05, 0.5, -0.7, 0.9, 0.1), tensors(1e-20, 0.01)]))),
    Row("Adagrad", "defaults", {}, "defaults"),
    Row("Adagrad", "lr_decay", {"lr": 0.1, "lr_decay": 0.1}, "lr_decay"),
    Row("Adagrad", "initial_accumulator", {"lr": 0.1, "initial_accumulator_value": 0.5, W: 0.1}, "init_acc_wd"),
    Row("Adagrad", "eps", {"lr": 0.1, "eps": 0.01}, "eps_big"),
    Row("Adagrad", "maximize_weight_decay", {"lr": 0.05, "lr_decay": 0.02, W: 0.05, **MAX}, "maximize"),
    Row("Adagrad", "groups", {"lr": 0.1, FIRST: 0.1}, "groups", ({"lr_decay": 0.5}, {"lr": 0.02, FIRST: 2.0})),
    Row("Adagrad", "tensors", dict(zip(["lr", "lr_decay", "eps", W], tensors(0.1, 0.1, 1e-4, 0.1)))),
    Row("Adamax", "defaults", {}, "defaults"),
    Row("Adamax", "betas", {"lr": 0.05, B: (0.8, 0.9)}, "lr_betas"),
    Row("Adamax", "eps", {"lr": 0.05, "eps": 0.1}, "eps_big"),
    Row("Adamax", "weight_decay", {"lr": 0.05, W: 0.1}, "wd"),
    Row("Adamax", "maximize_weight_decay", {"lr": 0.05, B: (0.5, 0.7), W: 0.05, **MAX}, "maximize"),
    Row("Adamax", "groups", {"lr": 0.02}, "groups", ({"lr": 0.1, B: (0.7, 0.8)}, MAX)),
    Row("Lamb", "defaults", {}, "defaults"),
    Row("Lamb", "betas", {"lr": 0.05, B: (0.8, 0.95)}, "lr_betas"),
    Row("Lamb", "weight_decay", {"lr": 0.05, W: 0.1}, "wd"),
    Row("Lamb", "adam", {"lr": 0.05, W: 0.1, "adam": True}, "adam"),
    Row("Lamb", "eps", {"lr": 0.05, "eps": 0.1}, "eps_big"),
    Row("Lamb", "groups", {"lr": 0.02}, "groups", ({"lr": 0.1, "adam": True}, {W: 0.3})),
    Row("Lion", "defaults", {}, "defaults"),
    Row("Lion", "lr", {"lr": 0.01}, "lr"),
    Row("Lion", "betas", {"lr": 0.01, B: (0.5, 0.8)}, "betas"),
    Row("Lion", "weight_decay", {"lr": 0.01, W: 0.5}, "wd"),
    Row("Lion", "beta1_zero", {"lr": 0.02, B: (0.0, 0.9)}, "beta1_zero"),
    Row("Lion", "groups", {"lr": 0.01, W: 0.1}, "groups", ({"lr": 0.05}, {B: (0.6, 0.7), W: 1.0})),
    Row("Lion", "tensors", {"lr": tensor(0.03), B: tensors(0.8, 0.7), W: tensor(0.1)}),
    Row("Muon", "defaults", {}, "defaults"),
    Row("Muon", "no_weight_decay", {"lr": 0.1, W: 0.0}, "no_wd"),
    Row("Muon", "not_nesterov", {"lr": 0.1, "momentum": 0.9, "nesterov": False}, "no_nesterov"),
    Row("Muon", "momentum_zero", {"lr": 0.1, "momentum": 0.0}, "momentum_zero"),
    Row("Muon", "ns_steps_one", {"lr": 0.1, "ns_steps": 1}, "ns_steps"),
    Row("Muon", "groups", {"lr": 0.05}, "groups", ({"lr": 0.2, "momentum": 0.5}, {W: 0.3, "nesterov": False})),
    Row("Muon", "coefficients", {"ns_coefficients": (3.4, -4.7, 2.0), "eps": 1e-3}),
    Row("Muon", "original", {"lr": 0.05, "adjust_lr_fn": "original"}),
    Row("Muon", "group_torch", {"lr": 0.05, **MATCH}, None, ({"adjust_lr_fn": "original", W: 0.3}, {})),
    Row("Muon", "group_forms", {"lr": 0.05, W: 0.3}, None, ({"adjust_lr_fn": None}, {}, MATCH)),
    Row("Muon", "tensors", dict(zip(["lr", W, "momentum"], tensors(0.05, 0.2, 0.8)))),
    Row("NorMuon", "defaults"),
    Row("NorMuon", "beta2", {"lr": 0.1, "beta2": 0.5, W: 0.2, "adjust_lr_fn": "original"}),
    Row(
        "NorMuon",
        "groups",
        {"lr": 0.05},
        None,
        ({"nesterov": False, "beta2": 0.0}, {"cautious_weight_decay": True, W: 0.3}),
    ),
    Row("NorMuon", "tensors", dict(zip(["lr", W, "momentum", "beta2"], tensors(0.05, 0.2, 0.8, 0.6)))),
    Row("Muon", "cautious", {"lr": 0.1, W: 0.5, "cautious_weight_decay": True}),
    Row("Muon", "unclamped", {"lr": 0.1, "adjust_lr_fn": "spectral_unclamped"}),
    Row("Lion", "cautious", {"lr": 0.05, W: 0.8, "cautious_weight_decay": True}),
    Row("AdamW", "cautious", {"lr": 0.05, W: 0.8, "cautious_weight_decay": True}),
    Row("AdamW", "cautious_amsgrad", {"lr": 0.05, **UP, "amsgrad": True, "cautious_weight_decay": True}),
    Row("NAdam", "momentum_decay", {"lr": 0.05, "momentum_decay": 0.5}),
    Row("NAdam", "momentum_decay_zero", {"momentum_decay": 0}),
    Row("NAdam", "groups", {"lr": 0.02}, None, ({"lr": 0.1, B: (0.7, 0.9)}, {"momentum_decay": 0.1}, UP)),
    Row("RAdam", "defaults", {}, "defaults"),
    Row("RAdam", "betas", {"lr": 0.05, B: (0.8, 0.95)}, "lr_betas"),
    Row("RAdam", "eps", {"lr": 0.05, "eps": 0.1}, "eps_big"),
    Row("RAdam", "weight_decay", {"lr": 0.05, W: 0.1}, "wd"),
    Row("RAdam", "never_rectified", {"lr": 0.05, B: (0.9, 0.5)}, "beta2_small_never_rectified"),
    Row("RAdam", "groups", {"lr": 0.02}, "groups", ({"lr": 0.1, B: (0.7, 0.9)}, {W: 0.3})),
    Row("RMSprop", "defaults", {}, "defaults"),
    Row("RMSprop", "alpha_eps", {"lr": 0.02, "alpha": 0.9, "eps": 0.01}, "alpha_eps"),
    Row("RMSprop", "momentum", {"lr": 0.02, "momentum": 0.9}, "momentum"),
    Row("RMSprop", "centered", {"lr": 0.02, "alpha": 0.9, **CENTERED}, "centered"),
    Row("RMSprop", "all", {**NUMBERS, "momentum": 0.5, **CENTERED, W: 0.1}, "centered_momentum_wd"),
    Row("RMSprop", "groups", {"lr": 0.02}, "groups", ({"momentum": 0.9, "alpha": 0.9}, {**CENTERED, "lr": 0.01})),
    Row("RMSprop", "maximize_weight_decay", UP),
    Row("RMSprop", "all_maximize", {"momentum": 0.1, **CENTERED, **UP}),
    Row("RMSprop", "alpha_one", {"lr": 1e-9, "alpha": 1.0}),
    Row("RMSprop", "tensors", dict(zip(["lr", "alpha", "eps", W, "momentum"], tensors(0.02, 0.9, 1e-4, 0.1, 0.5)))),
    Row("Rprop", "defaults", {}, "defaults"),
    Row("Rprop", "lr", {"lr": 0.05}, "lr"),
    Row("Rprop", "etas", {"lr": 0.02, "etas": (0.25, 1.5)}, "etas"),
    Row("Rprop", "step_sizes", {"lr": 0.02, "step_sizes": (0.01, 0.03)}, "step_sizes"),
    Row("Rprop", "etas_step_sizes", {"lr": 0.1, "etas": (0.6, 1.1), "step_sizes": (0.05, 0.15)}, "etas_steps"),
    Row("Rprop", "groups", {"lr": 0.02}, "groups", ({"lr": 0.05, "etas": (0.3, 1.3)}, {"step_sizes": (0.015, 0.04)})),
    Row("Rprop", "maximize", {"lr": 0.01, **MAX}),
    Row("Rprop", "zero_lr", {"lr": 0.0}),
    Row("Rprop", "tensors", {"lr": tensor(0.02), "etas": tensors(0.6, 1.1), "step_sizes": tensors(0.01, 0.1)}),
]

# What the relatives of Adam have in common.
for _name in ("Adam", "AdamW", "Adamax", "Lamb", "NAdam", "RAdam"):
    _new: dict[str, Mapping[str, Any]] = {
        "defaults": {},
        "betas": {"lr": 0.05, B: (0.8, 0.95)},
        "betas_zero": {"lr": 0.05, B: (0.0, 0.0)},
        "eps": {"lr": 0.05, "eps": 0.1},
        "weight_decay": {"lr": 0.05, **L2},
        "tensors": {"lr": tensor(0.03), B: tensors(0.8, 0.9), "eps": tensor(1e-4), W: tensor(0.1)},
    }
    if "maximize" in SIGNATURES[_name]:
        _new["maximize_weight_decay"] = {"lr": 0.02, **UP}
    if "decoupled_weight_decay" in SIGNATURES[_name]:
        _new["decoupled"] = {"lr": 0.02, **L2, "decoupled_weight_decay": True}
        _new["decoupled_maximize"] = {"lr": 0.02, **UP, "decoupled_weight_decay": True}
    if "amsgrad" in SIGNATURES[_name]:
        _new["amsgrad"] = {"lr": 0.05, B: (0.9, 0.7), "amsgrad": True}
        _new["amsgrad_all"] = {"lr": 0.05, B: (0.5, 0.9), "eps": 0.01, "amsgrad": True, **UP}
        _new["tensors_amsgrad"] = {**_new["tensors"], "amsgrad": True}
    _known = {row.label for row in ROWS if row.name == _name}
    ROWS += [Row(_name, k, v) for k, v in _new.items() if k not in _known]

for _name in ("Adam", "AdamW"):
    _over = ({"lr": 0.1, B: (0.7, 0.9)}, {"eps": 0.01, W: 0.0}, {"amsgrad": True, **MAX})
    ROWS.append(Row(_name, "groups", {"lr": 0.01, **L2}, None, _over))
ROWS += [
    Row("AdamW", "uncorrected", {"lr": 0.05, **L2, "correct_bias": False}, "no_correct_bias"),
    Row("AdamW", "group_uncorrected", {"lr": 0.05}, "group_correct_bias", ({"correct_bias": False}, {W: 0.4})),
    Row("AdamW", "uncorrected_amsgrad", {"lr": 0.05, **UP, "amsgrad": True, "correct_bias": False}),
]

# What Muon does in its default form, also in torch's.
ROWS += [
    Row("Muon", f"torch_{row.label}", {**row.kwargs, **MATCH}, None, row.groups)
    for row in ROWS
    if row.name == "Muon" and row.label != "group_forms" and not row.in_torch
]

# Its iterations run in bfloat16, as torch's do, and not in the default of the CPU.
ROWS = [
    replace(row, kwargs={"ns_dtype": torch.bfloat16, **row.kwargs}) if row.name in MATRICES else row for row in ROWS
]
BY_ID = {row.id: row for row in ROWS}
# One row an optimizer, with as much state as it can have.
FULLEST = [
    BY_ID[name]
    for name in (
        "SGD-dampening", "ASGD-averaging_starts", "Adadelta-weight_decay", "Adafactor-beta1", "Adagrad-lr_decay",
        "Adam-amsgrad_all", "AdamW-amsgrad_all", "Adamax-weight_decay", "Lamb-weight_decay", "Lion-weight_decay",
        "Muon-defaults", "NAdam-decoupled", "NorMuon-beta2", "RAdam-betas", "RMSprop-all", "Rprop-lr",
    )
]  # fmt: skip
assert [row.name for row in FULLEST] == [name for name in NAMES] and len(BY_ID) == len(ROWS)
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
# Learning rates that train the small model of tests/integration/test_optimizers.py.
TRAINING_LR = {
    "SGD": 0.5,
    "ASGD": 2.0,
    "Adadelta": 30.0,
    "Adafactor": 0.3,
    "Adagrad": 0.2,
    "Adam": 0.1,
    "AdamW": 0.1,
    "Adamax": 0.2,
    "Lamb": 0.2,
    "Lion": 0.05,
    "Muon": 0.1,
    "NAdam": 0.1,
    "NorMuon": 0.1,
    "RAdam": 0.6,
    "RMSprop": 0.02,
    "Rprop": 0.1,
}
