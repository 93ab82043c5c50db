"""Building 100,000 parameters into tagged groups.

What the numbers mean: the time of one `configure_param_groups` over a tree of 50,000 `Linear` and `LayerNorm` modules
with 100,000 parameters of one or two elements, with five rules of seven globs, the weight-decay split and two
learning-rate factors; `ratio` is that time over what torch takes to make one SGD of the same parameters, ungrouped.
The goal is in seconds. Building the model and the optimizer is no part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from _timing import interleaved, show, verdict
from torch import nn

from optim.groups import configure_param_groups, param_group_table

LAYERS = 12_500
GOAL = 2.0  # seconds
RULES: list[dict[str, Any]] = [
    {"params": "*bias", "tags": "bias"},
    {"params": ["*.up.*", "*.down.*"], "tags": "mlp"},
    {"params": "*.0.*", "tags": ["first", "slow"], "lr": 0.01},
    {"params": ["*.norm.weight", "blocks.1?.*"], "tags": "some"},
    {"params": "*.down.weight", "tags": "narrow", "weight_decay": 0.02},
]
FACTORS = {"LayerNorm": 0.5, "*.up.weight": 0.25}


class Block(nn.Module):
    """Eight parameters under four modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1)
        self.up = nn.Linear(1, 2)
        self.down = nn.Linear(2, 1)
        self.out = nn.LayerNorm(1)


def model_of(blocks: int) -> nn.Module:
    """A model of so many blocks, in stages of a hundred."""
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleList(Block() for _ in range(100)) for _ in range(blocks // 100))
    return model


def main() -> None:
    model = model_of(LAYERS)
    count = sum(1 for _ in model.parameters())
    groups = configure_param_groups(model, RULES, weight_decay=0.1, adjust_learning_rate=FACTORS)
    print(f"torch {torch.__version__}, {count:,} parameters into {len(groups)} groups\n")
    print(param_group_table(groups, names=1) + "\n")
    t = interleaved(
        "all rows, 11 rounds",
        {
            "list(model.named_parameters())": lambda: list(model.named_parameters()),
            "torch.optim.SGD(model.named_parameters())": lambda: torch.optim.SGD(model.named_parameters(), lr=0.1),
            "torch.optim.SGD(groups)": lambda: torch.optim.SGD([dict(group) for group in groups], lr=0.1),
            "configure_param_groups, no rules": lambda: configure_param_groups(model),
            "configure_param_groups, rules": lambda: configure_param_groups(
                model, RULES, weight_decay=0.1, adjust_learning_rate=FACTORS
            ),
        },
        rounds=11,
    )
    peer = t["torch.optim.SGD(model.named_parameters())"]
    print(f"{'what':46s}{'time':>13s}{'ratio':>8s}  goal")
    for name, seconds in t.items():
        ours = not name.startswith(("torch", "list"))
        goal = f"  <= {GOAL:g} s: {verdict(seconds, GOAL, False)}" if name.endswith(", rules") else ""
        print(f"{name:46s}{show(seconds):>13s}" + (f"{seconds / peer:8.2f}{goal}" if ours else ""))


if __name__ == "__main__":
    main()
