"""Validation losses of a small network at two batch sizes, with betas as numbers and as half-lives.

A network of two layers predicts a byte of the text of Python's help topics from the eight bytes before it: a token is
one prediction. Each run has the same number of tokens, with AdamW at a constant learning rate. The small batch has the
learning rate of the large one, times the root of small over large (arXiv:2205.10287). `numbers` keeps the betas of the
large batch for each step of the small one; `half-lives` keeps as much of the averages after as many tokens. A row has
the loss in nats per byte at the end for each learning rate of the large batch, the mean of the seeds.

    python benchmarks/half_lives.py [--batches 1024 64] [--tokens 300K] [--lrs 1e-3 4e-3] [--seeds 2] [--out FILE.svg]

`--out` draws the losses over tokens of the first seed, at the learning rate that is best for the large batch, and the
share of the first gradient's square that is left in the second moment.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from _timing import measuring
from torch import Tensor, nn
from torch.nn import functional

from timesched import Clock, HalfLife, Time, bind

BETAS, SEEN, MEASURED, POINTS = (0.9, 0.95), 8, 20_000, 20
SHOWN = 80_000  # tokens
Curve = list[tuple[int, float]]  # tokens, and losses or shares


def data() -> tuple[Tensor, Tensor]:
    """The windows of the text to learn, and some of its last tenth."""
    joined = "".join(topics[name] for name in sorted(topics)).encode()
    windows = torch.frombuffer(bytearray(joined), dtype=torch.uint8).long().unfold(0, SEEN + 1, 1)
    learned = len(windows) * 9 // 10
    return windows[:learned], windows[learned + SEEN :][:MEASURED]


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    return functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])


def run(batch: int, known_at: int, lr: float, tokens: Time[Any], seed: int) -> tuple[Curve, Curve]:
    """Losses over a run whose betas are those of batches of `known_at` tokens, and what the second moment keeps."""
    learned, measured = data()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * SEEN, 128), nn.GELU(), nn.Linear(128, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr, BETAS, weight_decay=0.0, fused=True)
    clock = Clock(tokens, samples_per_batch=batch, tokens_per_sample=1)
    known = [HalfLife.of(beta, batch=f"{known_at}tok") for beta in BETAS]
    schedulers = [bind(each, optimizer, clock, key=f"betas[{i}]") for i, each in enumerate(known)]
    order = torch.Generator().manual_seed(seed)
    found: Curve = []
    kept: Curve = [(0, 1.0)]
    while not clock.done:
        if len(found) <= POINTS * clock.horizon.progress(clock.timestamp):
            with torch.no_grad():
                found.append((clock.timestamp.token.value, loss_of(model, measured).item()))
        optimizer.zero_grad()
        loss = loss_of(model, learned[torch.randint(len(learned), (batch,), generator=order)])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        clock.tick()
        kept.append((clock.timestamp.token.value, kept[-1][1] * optimizer.param_groups[0]["betas"][1]))
        for scheduler in schedulers:
            scheduler.step()
    with torch.no_grad():
        return [*found, (clock.timestamp.token.value, loss_of(model, measured).item())], kept


def draw(lines: dict[str, tuple[Curve, Curve]], out: Path) -> None:
    """Losses over tokens, and shares until they are small."""
    import matplotlib
    from matplotlib.figure import Figure

    sys.path.append(str(Path(__file__).parents[1] / "docs/_ext"))
    from picture_style import as_svg, format_count, style

    with matplotlib.rc_context(style(out.stem)):
        figure: Any = Figure(figsize=(7.6, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (label, (losses, kept)), width in zip(lines.items(), (5.0, 2.0, 2.0)):  # lines lie on each other
            left.plot(*zip(*losses[2:]), label=label, linewidth=width)
            right.plot(*zip(*[(at, share) for at, share in kept if at <= SHOWN]), linewidth=width)
        left.set(xlabel="tokens", ylabel="validation loss (nats)")
        right.set(xlabel="tokens", ylabel="share left in\nthe second moment")
        for ax in (left, right):
            ax.xaxis.set_major_formatter(format_count)
            ax.locator_params(axis="x", nbins=5)
        figure.legend(loc="outside lower center", ncols=3)
        out.write_text(as_svg(figure), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs=2, default=(1024, 64), metavar=("LARGE", "SMALL"))
    parser.add_argument("--tokens", default="300K", help="of each run (%(default)s)")
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the picture, an SVG; needs matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, (large, small) = time.monotonic(), options.batches
    tokens = Time.from_timestring(f"{options.tokens}tok")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, CPU, one thread")
    print(f"{tokens}, betas {BETAS} in batches of {large}, lr times {(small / large) ** 0.5:g} in those of {small}")
    print(f"\n{'':28s}" + "".join(f"{f'lr {lr:g}':>11s}" for lr in options.lrs))
    rows = {f"{large}": (large, large), f"{small}, numbers": (small, small), f"{small}, half-lives": (small, large)}
    lines: dict[str, tuple[Curve, Curve]] = {}
    best = 0
    for name, (batch, known_at) in rows.items():
        found = []
        for lr in options.lrs:
            with measuring(f"{name}, lr {lr:g}"):
                scaled = lr * (batch / large) ** 0.5
                found.append([run(batch, known_at, scaled, tokens, seed) for seed in range(options.seeds)])
        means = [statistics.fmean(losses[-1][1] for losses, _ in each) for each in found]
        best = best if lines else means.index(min(means))
        lines[name] = found[best][0]
        print(f"{name:28s}" + "".join(f"{mean:11.4f}" for mean in means), flush=True)
    if options.out:
        draw(lines, options.out)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
