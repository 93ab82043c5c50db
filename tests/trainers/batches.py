"""Batches of different lengths, and the values that each step has to run with: counted here, and by no clock."""

import torch

from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler

BATCHES = 12  # of which the last is short
LR, WEIGHT_DECAY = 0.1, 0.3
TOKENS = "470tok"  # in the last batch of two epochs, and on two ranks in the first epoch
COSINE = CosineAnnealingWithWarmupScheduler("90tok", alpha_f=0.1)
DECAY = LinearScheduler(alpha_f=0.2, t_max="15ba")


def batch(k: int, rank: int = 0) -> torch.Tensor:
    """Ranks have batches of different lengths, too."""
    shape = 3 if k < BATCHES - 1 else 1, 4 + 3 * k % 7 + rank
    return torch.arange(shape[0] * shape[1]).reshape(shape) % 10


def expected(accumulate: int, epochs: int = 1, ranks: int = 1) -> list[tuple[float, float]]:
    """The learning rate and the weight decay of each step of the optimizer, in a run that ends at `TOKENS`."""
    numbers = [sum(batch(k, rank).numel() for rank in range(ranks)) for k in range(BATCHES)]
    steps = [sum(numbers[k : k + accumulate]) for k in range(0, BATCHES, accumulate)] * epochs
    values, tokens, run = [], 0, Horizon(TOKENS)
    for k, more in enumerate(steps):
        if tokens >= run.max_duration.value:
            break
        values.append((LR * COSINE.at(f"{tokens}tok", run), WEIGHT_DECAY * DECAY.at(f"{k}ba", run)))
        tokens += more
    return values
