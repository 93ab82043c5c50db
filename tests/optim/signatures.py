"""The public arguments and defaults of the optimizers, as data that the code is held to."""

from __future__ import annotations

from typing import Any

REQUIRED = object()  # in the place of a default

_ADAM = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-06, "weight_decay": 0.0}

# Every argument after `params` with its default, in the order of the constructor.
SIGNATURES: dict[str, dict[str, Any]] = {
    "SGD": {
        **{"lr": REQUIRED, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
        **{"maximize": False},
    },
    "ASGD": {"lr": 0.01, "lambd": 0.0001, "alpha": 0.75, "t0": 1e6, "weight_decay": 0, "maximize": False},
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-06, "weight_decay": 0, "maximize": False},
    "Adafactor": {
        **{"lr": REQUIRED, "eps": (1e-30, 0.001), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None},
        **{"weight_decay": 0.0, "scale_parameter": True, "relative_step": False, "warmup_init": False},
    },
    "Adagrad": {
        **{"lr": 0.01, "lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-06},
        **{"maximize": False},
    },
    "Adam": {**_ADAM, "amsgrad": False, "maximize": False, "decoupled_weight_decay": False},
    "AdamW": {
        **{**_ADAM, "correct_bias": True, "amsgrad": False, "maximize": False, "cautious_weight_decay": False},
    },
    "Adamax": {**_ADAM, "maximize": False},
    "Lamb": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-06, "weight_decay": 0, "adam": False},
    "Lion": {"lr": 0.0001, "betas": (0.9, 0.99), "weight_decay": 0.0, "cautious_weight_decay": False},
    "Muon": {
        **{"lr": 0.02, "weight_decay": 0.01, "momentum": 0.95, "nesterov": True, "ns_steps": None},
        **{"ns_coefficients": (3.4445, -4.775, 2.0315), "eps": 0.0, "adjust_lr_fn": "cerebras", "flatten": None},
        **{"split_sizes": None, "num_heads": None, "transposed": False, "ns_dtype": None},
        **{"cautious_weight_decay": False, "adamw": None, "lion": None, "process_group": None},
    },
    "NAdam": {
        **{"lr": 0.002, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0, "momentum_decay": 0.004},
        **{"decoupled_weight_decay": False, "maximize": False},
    },
    "NorMuon": {},  # below
    "RAdam": {**_ADAM, "decoupled_weight_decay": False, "maximize": False},
    "RMSprop": {
        **{"lr": 0.01, "alpha": 0.99, "eps": 1e-08, "weight_decay": 0, "momentum": 0, "centered": False},
        **{"maximize": False},
    },
    "Rprop": {"lr": 0.001, "etas": (0.5, 1.2), "step_sizes": (1e-06, 50.0), "maximize": False},
}
_MUON = SIGNATURES["Muon"]
SIGNATURES["NorMuon"] = {**dict(list(_MUON.items())[:3]), "beta2": 0.95, **_MUON}
KEYWORD_ONLY: dict[str, set[str]] = {
    "Adam": {"maximize", "decoupled_weight_decay"},
    "AdamW": {"maximize", "cautious_weight_decay"},
    "Lion": {"cautious_weight_decay"},
    "Muon": {
        *("ns_coefficients", "eps", "adjust_lr_fn", "flatten", "split_sizes", "num_heads", "transposed", "ns_dtype"),
        *("cautious_weight_decay", "adamw", "lion", "process_group"),
    },
    "NAdam": {"decoupled_weight_decay", "maximize"},
    "RAdam": {"decoupled_weight_decay", "maximize"},
    "RMSprop": {"maximize"},
    "Rprop": {"maximize"},
}
KEYWORD_ONLY["NorMuon"] = KEYWORD_ONLY["Muon"]
NAMES = list(SIGNATURES)
MATRICES = ("Muon", "NorMuon")  # which take matrices alone
