"""What it costs that each eager step checks whether its state fits the parameters: AdamW, and SGD with momentum.

300 tensors of one shape, one thread. The check alone and the step with it are timed in turn, medians. Goals: at most
3 % of the step on tensors of 256x256, at most 0.3 µs a parameter on smaller ones.

    python benchmarks/state_check.py
"""

from __future__ import annotations

from functools import partial

import torch
from _timing import interleaved, show, verdict

import optim

TENSORS = 300


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {TENSORS} tensors\n")
    print(f"{'optimizer':10s}{'shape':>10s}{'check':>13s}{'step':>13s}{'a parameter':>14s}{'of the step':>14s}")
    for size in (8, 64, 256):
        for name, arguments in {"AdamW": {"lr": 1e-3}, "SGD": {"lr": 1e-3, "momentum": 0.9}}.items():
            params = [torch.nn.Parameter(torch.randn(size, size)) for _ in range(TENSORS)]
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer = getattr(optim, name)(params, **arguments)
            optimizer.step()
            candidates = {"check": partial(optimizer._keeper.follow, optimizer), "step": optimizer.step}
            t = interleaved(f"{name}, {size}x{size}", candidates)
            each, share = t["check"] / TENSORS * 1e6, t["check"] / t["step"]
            reached = verdict(share, 0.03, False) if size == 256 else verdict(each, 0.3, False)
            times = f"{show(t['check']):>13s}{show(t['step']):>13s}{each:11.2f} µs{share:13.1%}"
            print(f"{name:10s}{f'{size}x{size}':>10s}{times}  {reached}")


if __name__ == "__main__":
    main()
