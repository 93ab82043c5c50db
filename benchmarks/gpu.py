"""One step of each optimizer on a CUDA GPU: eager, compiled, and as a CUDA graph together with its schedule.

What the numbers mean: interleaved medians of one step and a `synchronize`, so small sets show the cost of launching;
`ratio` is our time over the fastest of torch's foreach, fused and capturable. `limit` is our time over that of moving
the same bytes at the speed of a large copy. `graph` is a replay of one CUDA graph that holds a cosine schedule with
warmup, evaluated on a step counter that lives on the GPU, and the optimizer's step. It is captured as the very first
step, without any warmup steps; its ratio is over torch's quickest eager step. `equal` says that 20 replays, with new
gradients before each, end with parameters that are bit for bit those of 20 eager steps; `close`, that they agree to a
millionth of the largest change, or to a rounding in each step (a factor that depends on the count is a number of the
host in an eager step, and a float32 of the GPU in a captured one). `first` is our first step, which differs from later
ones only by what CUDA loads. `peak` is how much more memory a step takes than there is before and after it. With
--compiled also `compile()`, against torch's step under torch.compile (some minutes). Without a CUDA GPU it says so and
ends.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from _optimizers import (
    ROWS,
    Shapes,
    Step,
    built,
    medians,
    ours,
    parameters,
    state_streams,
    stepping,
    torchs,
    transformer,
)
from _timing import measuring
from optimizer_step import against, best

from timesched import CosineAnnealingWithWarmupScheduler, Horizon

STEPS = 20
SETS: dict[str, Shapes] = {  # 300 small tensors, 354 million parameters in 292 tensors, a billion in one
    "small": ((64, 64),) * 300,
    "transformer": transformer(1024, 24, 50304, 1024),
    "one": ((32768, 32768),),
}


def synchronized(step: Step) -> Step:
    """The step, and everything that it launched."""

    def call() -> None:
        step()
        torch.cuda.synchronize()

    return call


def bandwidth() -> float:
    """Bytes per second read and written by the copy of a GiB."""
    source = torch.ones(1 << 28, device="cuda")
    copy = torch.empty_like(source)
    return 2 * source.nbytes / medians({"copy": synchronized(lambda: copy.copy_(source))}, 1.0)["copy"]


def scheduled(name: str, shapes: Shapes) -> tuple[list[torch.Tensor], Step]:
    """Parameters, and a step of schedule and optimizer that reads nothing on the host."""
    params = parameters(name, shapes, "cuda")
    optimizer = ours(name, params)
    curve = CosineAnnealingWithWarmupScheduler("5ba", t_max="100ba").curve(Horizon("100ba"), "ba")
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    lr = torch.zeros((), dtype=torch.float64, device="cuda")
    initial = ROWS[name].arguments["lr"]
    for group in optimizer.param_groups:
        group["lr"] = lr

    def step() -> None:
        lr.copy_(curve(count) * initial)
        optimizer.step()
        count.add_(1)

    return params, step


def captured(step: Step) -> Step:
    """A replay of the step as a CUDA graph; capturing takes no step."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def run(params: list[torch.Tensor], step: Step) -> None:
    """Some steps, with other gradients in the same tensors before each."""
    for _ in range(STEPS):
        for p in params:
            assert p.grad is not None
            p.grad.mul_(-0.9)
        step()


def graph_of(name: str, shapes: Shapes) -> tuple[Step, str]:
    """The captured step, and how its run compares with the eager one."""
    eager_params, eager_step = scheduled(name, shapes)
    run(eager_params, eager_step)
    params, step = scheduled(name, shapes)
    replay = captured(step)
    run(params, replay)
    with torch.no_grad():
        apart = max(float((a - b).abs().max()) for a, b in zip(params, eager_params))
        moved = max(float((a - b).abs().max()) for a, b in zip(params, parameters(name, shapes, "cuda")))
        rounding = STEPS * torch.finfo(torch.float32).eps
        close = all(torch.allclose(a, b, rtol=rounding, atol=1e-6 * moved) for a, b in zip(params, eager_params))
    equal = all(torch.equal(a, b) for a, b in zip(params, eager_params))
    if moved > 0 and (equal or close):
        return replay, "equal" if equal else "close"
    return replay, f"DIFFERS by {apart:.1e}, moved {moved:.1e}"


def compiled(name: str, shapes: Shapes, notes: list[str]) -> tuple[dict[str, Step], str]:
    """Our compiled step and torch's, and how long the first two calls of each took."""
    torch.compiler.reset()
    mine = ours(name, parameters(name, shapes, "cuda"))
    mine.compile()
    steps: dict[str, Step] = {"ours compiled": mine.step}
    made = torchs(name, parameters(name, shapes, "cuda"))
    if "torch capturable" in made:

        def make(params: list[torch.Tensor]) -> Any:
            theirs = made["torch capturable"](params)
            theirs.step()
            theirs.step = torch.compile(theirs.step)
            return theirs

        steps |= built({"torch compiled": stepping(make, name, shapes, "cuda")}, notes)
    took = []
    for label, step in steps.items():
        start = time.perf_counter()
        step()
        step()
        torch.cuda.synchronize()
        took.append(f"{label} {time.perf_counter() - start:.0f} s")
    return steps, ", ".join(took)


def first_and_peak(step: Step) -> tuple[float, int]:
    """Seconds of the first call, and how many bytes the second one takes for a while."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    synchronized(step)()
    seconds = time.perf_counter() - start
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    synchronized(step)()
    return seconds, torch.cuda.max_memory_allocated() - before


def measure(name: str, which: str, options: argparse.Namespace, per_second: float) -> tuple[str, list[str]]:
    """The row of one optimizer on one set, and the notes on it."""
    shapes = SETS[which]
    notes: list[str] = []
    params = parameters(name, shapes, "cuda")
    mine = ours(name, params)
    first, peak = first_and_peak(mine.step)
    made = torchs(name, params)
    steps = {"ours": mine.step}
    steps |= built({label: stepping(make, name, shapes, "cuda") for label, make in made.items()}, notes)
    torch.mm(*[torch.ones(8, 8, device="cuda")] * 2)  # cuBLAS makes its handle here: it cannot while capturing
    steps["graph"], equal = graph_of(name, shapes)
    took = ""
    if options.compiled:
        extra, took = compiled(name, shapes, notes)
        steps |= extra
    times = medians({label: synchronized(step) for label, step in steps.items()}, options.seconds)
    moved = sum(p.nbytes for p in params) * (3 + 2 * state_streams(mine))
    alone = {label: t for label, t in times.items() if label.startswith("torch ") and label != "torch compiled"}
    own, limit = times["ours"], moved / per_second
    line = f"{name:10s}{which:12s}{own * 1e3:9.3f}{against(own, *best(alone, True))}{own / limit:8.2f}"
    theirs = min(alone.values(), default=float("nan"))
    line += f"{times['graph'] * 1e3:9.3f}{times['graph'] / limit:8.2f}{times['graph'] / theirs:7.2f}"
    line += f"{first * 1e3:10.3f}{peak / 2**20:9.0f}  {equal}"
    for label in ("ours compiled", "torch compiled"):
        if label in times:
            line += f"  {label} {times[label] * 1e3:.3f} ms = {times[label] / limit:.2f} x limit"
    line += f"  (first two calls: {took})" if took else ""
    return line, [f"({name} {which}: {note})" for note in notes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--compiled", action="store_true", help="also compiled")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of one row (default: 1)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__}: no CUDA GPU here, nothing measured")
        return
    per_second = bandwidth()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copies at {per_second / 1e9:.0f} GB/s, float32\n"
    )
    print(f"{'optimizer':10s}{'set':12s}{'ours ms':>9s}{'torch ms':>9s} {'':28s}{'ratio':>6s}{'limit':>8s}", end="")
    print(f"{'graph ms':>9s}{'limit':>8s}{'ratio':>7s}{'first ms':>10s}{'peak MiB':>9s}  {STEPS} replays against eager")
    notes: list[str] = []
    rows = [(name, which) for name in options.optimizers for which in options.sets]
    for number, (name, which) in enumerate(rows, 1):
        try:
            with measuring(f"{number} of {len(rows)}: {name}, {which}"):
                line, more = measure(name, which, options, per_second)
            print(line, flush=True)
            notes += more
        except Exception as error:  # one that fails is said so; the others are still measured
            print(f"{name:10s}{which:12s}  FAILED: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print("\n".join(notes))


if __name__ == "__main__":
    main()
