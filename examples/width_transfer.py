"""Check that a residual MLP learns equally fast at all widths, with the factors of
`optim.configure_param_groups(base_model=...)` and two changes in the model (muP).

The script trains the model for five steps of AdamW at widths 64, 256 and 1024. It
prints how much the output of each part changes: the root mean square (RMS) over a
batch. Hyperparameters transfer from a narrow model to a wide one if the changes are
the same at all widths. This needs the factors, and the changes in the model: the
output times base width / width, and a head that starts at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import optim

BASE_WIDTH, WIDTHS = 64, (64, 256, 1024)
TOKENS, BATCH_SIZE, STEPS, LR, WEIGHT_DECAY = 16, 128, 5, 0.01, 0.1


class Block(nn.Module):
    """A residual block with one hidden layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.outer(functional.relu(self.inner(self.norm(x))))
        return result


class ResidualMLP(nn.Module):
    """Embedding, two blocks, norm and head; `changed` makes the changes that muP needs."""

    def __init__(self, width: int, changed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.block1 = Block(width)
        self.block2 = Block(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.output_scale = BASE_WIDTH / width if changed else 1.0
        if changed:
            nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """The output of each part."""
        outputs = {"embedding": self.embedding(tokens)}
        outputs["block1"] = self.block1(outputs["embedding"])
        outputs["block2"] = self.block2(outputs["block1"])
        outputs["norm"] = self.norm(outputs["block2"])
        outputs["head"] = self.head(outputs["norm"]) * self.output_scale
        return outputs


def make_optimizer(model: nn.Module, factors: bool) -> optim.AdamW:
    """AdamW, with a learning rate and a weight decay that suit the width if `factors`."""
    base_model = None
    if factors:
        with torch.device("meta"):
            base_model = ResidualMLP(BASE_WIDTH, changed=False)
    groups = optim.configure_param_groups(model, lr=LR, weight_decay=WEIGHT_DECAY, base_model=base_model)
    return optim.AdamW(groups, lr=LR)


def measure_changes(width: int, factors: bool, changed: bool) -> dict[str, float]:
    """The RMS change of each output, from before the first step to after the last."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(TOKENS, (2, BATCH_SIZE))
    model = ResidualMLP(width, changed)
    optimizer = make_optimizer(model, factors)
    with torch.no_grad():
        before = model(tokens)
    for _ in range(STEPS):
        torch.autograd.backward(functional.cross_entropy(model(tokens)["head"], targets))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        after = model(tokens)
    return {name: (after[name] - before[name]).square().mean().sqrt().item() for name in before}


def print_changes(title: str, factors: bool, changed: bool) -> None:
    """One line for each output, with its change at each width."""
    changes = [measure_changes(width, factors, changed) for width in WIDTHS]
    print(f"{title:24}" + "".join(f"{width:>10}" for width in WIDTHS))
    for name in changes[0]:
        print(f"  {name:22}" + "".join(f"{change[name]:10.4f}" for change in changes))


if __name__ == "__main__":
    print_changes("factors and changes", factors=True, changed=True)
    print_changes("factors", factors=True, changed=False)
    print_changes("changes", factors=False, changed=True)
    print_changes("neither", factors=False, changed=False)
