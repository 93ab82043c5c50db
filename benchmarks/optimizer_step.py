"""One step of each optimizer on CPU, against torch's best variant, its peers, and the memory limit.

What the numbers mean: interleaved medians of one `step()` in a process of its own for each optimizer and number of
threads (eager: the means of three, with everything built anew for each); `ratio` is our time over the other's. "torch"
is the fastest of for-loop, foreach and fused in this very run, "peer" the fastest of heavyball, pytorch_optimizer and
optimi, as far as they are installed and have the optimizer. Run it when nothing else runs: with two threads on two
cores, a third busy process makes any step many times slower.
`limit` is our time over that of one pass over the same bytes (gradient read, parameter and state read and written).

  --eager     every optimizer on seven parameter sets: 12 and 100 tensors of 8x8 and of 64x64, which show what a step
              costs besides its arithmetic; 300 tensors of 64x64, a transformer of 29.7 M parameters (100 tensors), one
              tensor of 4096x4096. About 45 minutes for 1 and 2 threads.
  --first     the first step's time over a later one's: the median over fresh optimizers, on the transformer. About
              5 minutes.
  --compiled  all but Muon after `compile()`, on the two large sets (--sets small alone: on that one), with
              the seconds that the first two steps took; against heavyball (which compiles itself) and torch's step
              under torch.compile. About 40 minutes, half of it for torch's compilations: --no-torch leaves those out.
Without any of them: --eager --first. The last line says which goals are missed.

    python benchmarks/optimizer_step.py --eager --optimizers AdamW RAdam --sets one --threads 1
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

Result = dict[str, Any]


def eager(name: str, which: str, seconds: float) -> Result:
    """The times of all that can take a step, and of the memory limit."""
    from _optimizers import SETS, ours, parameters, peers, rebuilt, stepping, torchs

    shapes = SETS[which]
    found, notes = peers(name)
    everything: dict[str, Callable[..., Any]] = {
        "ours": partial(ours, name),
        **torchs(name, parameters(name, shapes)),
        **found,
    }
    builders = {label: stepping(make, name, shapes) for label, make in everything.items()}
    times = rebuilt({**builders, "limit": limit(name, which)}, seconds, notes)
    return {"times": times, "notes": notes}


def limit(name: str, which: str) -> Callable[[], Callable[[], Any]]:
    """What builds a pass over the bytes of this optimizer on this set."""
    from _optimizers import SETS, one_pass, ours, parameters, state_streams

    params = parameters(name, SETS[which])
    return partial(one_pass, sum(p.numel() for p in params), state_streams(ours(name, params)))


def compiled(name: str, which: str, seconds: float, with_torch: bool) -> Result:
    """The same of compiled steps, and the seconds that the first two calls of each took."""
    import torch
    from _optimizers import SETS, built, medians, ours, parameters, peers, torchs

    shapes, took = SETS[which], dict[str, float]()

    def builder(label: str, make: Callable[[Any], Any], prepare: Callable[[Any], Any]) -> Callable[[], Any]:
        def build() -> Any:
            step = prepare(make(parameters(name, shapes)))
            start = time.perf_counter()
            step()
            step()
            took[label] = time.perf_counter() - start
            return step

        return build

    def ours_compiled(optimizer: Any) -> Any:
        optimizer.compile()
        return optimizer.step

    def torchs_compiled(optimizer: Any) -> Any:
        optimizer.step()  # makes the state, which would be compiled in
        return torch.compile(optimizer.step)

    found, notes = peers(name, compiled=True)
    builders = {"ours": builder("ours", partial(ours, name), ours_compiled)}
    builders |= {label: builder(label, make, lambda optimizer: optimizer.step) for label, make in found.items()}
    loop = torchs(name, parameters(name, shapes)).get("torch for-loop")
    if with_torch and loop is not None:  # its foreach compiles to the same kernels, and takes longer to do so
        builders["torch compiled"] = builder("torch compiled", loop, torchs_compiled)
    times = medians(built({**builders, "limit": limit(name, which)}, notes), seconds)
    return {"times": times, "notes": notes, "compile": took}


def first(name: str, which: str, seconds: float) -> Result:
    """The first step's time over a later one's, the median over fresh optimizers: ours, and torch's default."""
    import torch
    from _optimizers import ROWS, SETS, ours, parameters

    ratios: dict[str, list[float]] = {"ours": [], "torch": []}
    row = ROWS[name]
    made: dict[str, Callable[[Any], Any]] = {"ours": lambda params: ours(name, params)}
    if hasattr(torch.optim, name):
        made["torch"] = lambda params: getattr(torch.optim, name)(params, **(row.torchs or row.arguments))
    params = parameters(name, SETS[which])
    start = time.perf_counter()
    while len(ratios["ours"]) < 5 or (time.perf_counter() - start < seconds and len(ratios["ours"]) < 21):
        for label, make in made.items():
            optimizer = make(params)
            times = []
            for _ in range(8):
                begin = time.perf_counter()
                optimizer.step()
                times.append(time.perf_counter() - begin)
            ratios[label].append(times[0] / median(times[5:]))  # RAdam adapts from the sixth on
    # The first one of each also loads code, once in a process.
    return {"ratios": {label: median(each[1:]) for label, each in ratios.items() if each}, "notes": []}


def in_child(options: argparse.Namespace, mode: str, name: str, threads: int) -> list[Result]:
    """What a fresh process with so many threads measured: a result for each set."""
    large = [name for name in options.sets if name in ("transformer", "one")]
    sets = {"first": ["transformer"], "compiled": large or options.sets}
    work = {"mode": mode, "name": name, "threads": threads, "sets": sets.get(mode, options.sets)}
    work |= {"seconds": options.seconds, "torch": not options.no_torch}
    with tempfile.TemporaryDirectory() as cache:  # every compilation starts from nothing
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": cache}
        environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        command = [sys.executable, __file__, "--child", json.dumps(work)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    common = {"mode": mode, "name": name, "threads": threads}
    if done.returncode:
        reason = ([line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"])[-1]
        results.append({"failed": reason, "set": "any set"})
    return [{**common, **result} for result in results]


def child(work: dict[str, Any]) -> None:
    """Measure one optimizer, and print a line of JSON for each set."""
    import torch

    torch.set_num_threads(work["threads"])
    if work["mode"] == "compiled":  # what the compiler loads and prepares once is nobody's compile time
        torch.compile(torch.neg)(torch.ones(64))
    for which in work["sets"]:
        if work["mode"] == "compiled":
            torch.compiler.reset()
            result = compiled(work["name"], which, work["seconds"], work["torch"])
        else:
            result = (eager if work["mode"] == "eager" else first)(work["name"], which, work["seconds"])
        print(json.dumps({"set": which, **result}), flush=True)


def best(times: dict[str, float], torchs: bool) -> tuple[str, float]:
    """The fastest of torch's ways, or of the peers."""
    among = {k: t for k, t in times.items() if k not in ("ours", "limit") and k.startswith("torch ") == torchs}
    return min(among.items(), key=lambda item: item[1], default=("", math.nan))


def against(mine: float, label: str, other: float) -> str:
    """The columns of one comparison."""
    return f"{other * 1e3:9.2f} {label:28s}{mine / other:6.2f}" if label else f"{'-':>9s} {'':28s}{'':6s}"


def show(result: Result) -> str:
    """A line of the table."""
    line = f"{result['name']:10s}{result['set']:12s}{result['threads']:2d}"
    if "failed" in result:
        return f"{line}  FAILED: {result['failed']}"
    if "ratios" in result:
        return line + "".join(f"   {label} {ratio:5.2f}" for label, ratio in result["ratios"].items())
    times = result["times"]
    mine = times["ours"]
    others = "".join(against(mine, *best(times, torchs)) for torchs in (True, False))
    took = "".join(f"  {label} {seconds:.1f} s" for label, seconds in result.get("compile", {}).items())
    return f"{line}{mine * 1e3:9.2f}{others}{mine / times['limit']:7.2f}{took}"


def missed(result: Result) -> list[str]:
    """The goals that a result misses."""
    where = f"{result['name']} {result['set']} {result['threads']}t"
    if "failed" in result:
        return [f"{where} {result['mode']} failed"]
    if "ratios" in result:
        ratio = result["ratios"]["ours"]
        return [f"{where} first/later {ratio:.2f} > 1.1"] if ratio > 1.1 else []
    times, large = result["times"], result["set"] in ("transformer", "one")
    mine, torchs = times["ours"], best(times, True)[1]
    if result["mode"] == "compiled":
        ratio = mine / times["limit"]
        bound = {"Adafactor": 3.0, "Lamb": 2.0}.get(result["name"], 1.5)
        return [f"{where} compiled {ratio:.2f} > {bound} x limit"] if large and ratio > bound else []
    bound = 1.1 if result["set"].startswith("100x") else 1.2
    return [f"{where} {mine / torchs:.2f} > {bound} x torch"] if mine > bound * torchs else []


def main() -> None:
    from _optimizers import ROWS, SETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for mode in ("eager", "first", "compiled"):
        parser.add_argument(f"--{mode}", action="store_true")
    parser.add_argument("--optimizers", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="for the rounds of one row (default: 3)")
    parser.add_argument("--no-torch", action="store_true", help="--compiled without torch.compile of torch's step")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    report(options)


def report(options: argparse.Namespace) -> None:
    """Print the tables and what is missed."""
    import torch
    from _optimizers import compiled_pass
    from _timing import measuring

    modes = [mode for mode in ("eager", "first", "compiled") if getattr(options, mode)] or ["eager", "first"]
    print(f"torch {torch.__version__}, CPU, {os.cpu_count()} cores, float32, milliseconds of one step")
    if compiled_pass(0) is None:
        print("no C compiler with OpenMP: the limit is measured with torch, in pieces that stay in the cache")
    failures, notes = [], set()
    for mode in modes:
        print(f"\n{mode}" + (", the first step's time over a later one's" if mode == "first" else ""))
        if mode != "first":
            columns = "".join(f"{who + ' ms':>9s} {'':28s}{'ratio':>6s}" for who in ("torch", "peer"))
            print(f"{'optimizer':10s}{'set':12s}{'t':>2s}{'ours ms':>9s}{columns}{'limit':>7s}")
        # Muon's time is that of matrix products, which nothing compiles.
        names = [name for name in options.optimizers if mode != "compiled" or name != "Muon"]
        children = [(name, threads) for name in names for threads in options.threads]
        for number, (name, threads) in enumerate(children, 1):
            with measuring(f"{mode}, {number} of {len(children)}: {name}, threads: {threads}"):
                results = in_child(options, mode, name, threads)
            for result in results:
                print(show(result), flush=True)
                failures += missed(result)
                notes |= {f"{name}: {note}" for note in result.get("notes", [])}
    print()
    for note in sorted(notes):
        print(f"({note})")
    print("goals missed: " + ("; ".join(failures) or "none"))


if __name__ == "__main__":
    main()
