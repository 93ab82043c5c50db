"""Validation losses of a small transformer in bfloat16: what is lost without a precision option, and what each costs.

A decoder over bytes learns the text of Python's help topics, with torch's default initialisation and a constant lr, for
300 steps with AdamW, Lion, and Muon for the matrices of the blocks with AdamW for the rest. A row is a way to store
parameters and states, with its bytes per parameter, the loss in nats per byte of each seed, and how far their mean is
above that of float32. In all rows of a seed the initial values and the batches are the same; all but the first two
compute in bfloat16, so that the rows below differ in the storage alone. The text differs between versions of Python,
and so do the losses.

    python benchmarks/bf16_loss.py [--steps 300] [--seeds 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from _decoder import Decoder, batches, text
from _timing import measuring
from torch import Tensor, nn

import optim

WIDTH, HEADS, CONTEXT, BATCH = 128, 4, 64, 16
LR = {"AdamW": 1e-4, "Muon": 3e-4, "Lion": 3e-5}  # small steps, as late in a long run

# The states that may be in bfloat16 where numbers are rounded to the nearest.
AVERAGES: dict[str, Any] = {"AdamW": {"exp_avg": torch.bfloat16}, "Muon": torch.bfloat16, "Lion": torch.bfloat16}

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, bfloat16 averages": {"state_dtype": AVERAGES},
    "bfloat16": {},
    "master weights": {"master_weights": True},
    "master weights, bfloat16 averages": {"master_weights": True, "state_dtype": AVERAGES},
    "both, bfloat16 states": {"master_weights": True, "stochastic_rounding": True, "state_dtype": torch.bfloat16},
    "stochastic rounding": {"stochastic_rounding": True},
    "stochastic, bfloat16 states": {"stochastic_rounding": True, "state_dtype": torch.bfloat16},
}


def optimizers(name: str, model: Decoder, way: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """What steps a model: two with Muon."""

    def made(kind: str, params: Iterable[Tensor], **more: Any) -> torch.optim.Optimizer:
        asked = way.get("state_dtype")
        precision = {**way, "state_dtype": asked[kind] if asked is AVERAGES else asked}
        optimizer: torch.optim.Optimizer = getattr(optim, kind)(
            params, lr=LR[name], weight_decay=0.0, **more, **precision
        )
        return optimizer

    if name != "Muon":
        return [made(name, model.parameters())]
    matrices = {p for p in model.blocks.parameters() if p.dim() == 2}
    chosen = [p for p in model.parameters() if p in matrices]
    rest = [p for p in model.parameters() if p not in matrices]
    return [made("Muon", chosen, adjust_lr_fn="match_rms_adamw"), made("AdamW", rest)]


def run(name: str, way: str, seed: int, steps: int) -> tuple[float, float]:
    """The bytes of parameter and states for each parameter, and the validation loss after training."""
    learned, measured = text(CONTEXT)
    torch.manual_seed(seed)
    model = Decoder(WIDTH, HEADS, CONTEXT, nn.GELU())
    if not way.startswith("float32"):
        model.bfloat16()
    used = optimizers(name, model, WAYS[way])
    for windows in islice(batches(learned, CONTEXT, BATCH, seed), steps):
        model.zero_grad()
        model.loss(windows).backward()  # type: ignore[no-untyped-call]  # torch's own
        for optimizer in used:
            optimizer.step()
    params = list(model.parameters())
    size = sum([p.nbytes for p in params]) + sum(map(optim.state_bytes, used))
    return size / sum(p.numel() for p in params), model.mean_loss(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(LR), metavar="NAME")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*lose every update")
    start = time.monotonic()
    count = sum(p.numel() for p in Decoder(WIDTH, HEADS, CONTEXT, nn.GELU()).parameters())
    print(f"torch {torch.__version__}, Python {platform.python_version()}, CPU, one thread")
    print(f"{count:,} parameters, {options.steps} steps of {BATCH} x {CONTEXT} bytes")
    seeds = "".join(f"{f'seed {seed}':>9s}" for seed in range(options.seeds))
    for name in options.names:
        print(f"\n{f'{name}, lr {LR[name]}':34s}{'bytes':>6s}{seeds}{'mean':>9s}{'above float32':>15s}")
        first = 0.0
        for way in WAYS:
            with measuring(f"{name}, {way}"):
                found = [run(name, way, seed, options.steps) for seed in range(options.seeds)]
            losses = [loss for _, loss in found]
            mean = statistics.fmean(losses)
            first = first or mean
            columns = "".join(f"{loss:9.4f}" for loss in (*losses, mean))
            print(f"{way:34s}{found[0][0]:6.1f}{columns}{round(mean - first, 4) + 0.0:+15.4f}", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
