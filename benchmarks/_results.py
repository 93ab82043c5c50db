"""What the scripts `results_*.py` share: one run of training, the file of its results, and the table on the page.

All train the same small transformer on the text of Python's help topics. The loss is in bits per byte, of the last
tenth of the text, which no run learns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _decoder import Decoder, batches, text
from _timing import measuring
from torch import Tensor, nn

import optim
from timesched import (
    Bound,
    Clock,
    ConstantScheduler,
    ConstantWithWarmupScheduler,
    CosineAnnealingWithWarmupScheduler,
    HalfLife,
    LinearWithWarmupScheduler,
    PiecewiseScheduler,
    Schedule,
    WarmupStableDecayScheduler,
    bind,
)

RESULTS, PAGE = Path(__file__).parent / "results", Path(__file__).parents[1] / "docs/results.md"
WIDTH, HEADS, CONTEXT, BATCH = 64, 2, 64, 8  # 512 tokens in a batch
TOKENS, SEEDS, POINTS = 204_800, (0, 1), 16

Result = dict[str, Any]  # what a file holds of a run: "bits", "curve", "seconds", and maybe "average" and "merge"

SCHEDULES: dict[str, Schedule] = {
    "none": ConstantScheduler(),
    "constant": ConstantWithWarmupScheduler("0.05dur"),
    "cosine to a tenth": CosineAnnealingWithWarmupScheduler("0.05dur", alpha_f=0.1),
    "cosine to zero": CosineAnnealingWithWarmupScheduler("0.05dur"),
    "linear to zero": LinearWithWarmupScheduler("0.05dur"),
    "warmup-stable-decay": WarmupStableDecayScheduler("0.05dur", t_decay="0.2dur", decay="1-sqrt"),
    # The same in the steps of a run of 800 steps. A longer run stays at zero.
    "in steps": PiecewiseScheduler([["0ba", 0.0], ["40ba", 1.0], ["640ba", 1.0], ["800ba", 0.0, "1-sqrt"]]),
}

# The arguments that are not the defaults. Muon and NorMuon step the matrices of the blocks, and AdamW the rest with the
# same learning rate and weight decay.
DECAY = 0.1
MUON: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw"}
ARGUMENTS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "Muon": MUON, "NorMuon": MUON}

# How the parameters are stored: dtype, and arguments of the optimizer.
STORED: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "bfloat16": (torch.bfloat16, {}),
    "master weights": (torch.bfloat16, {"master_weights": True}),
    "stochastic rounding": (torch.bfloat16, {"stochastic_rounding": True}),
    "both, bfloat16 states": (
        torch.bfloat16,
        {"master_weights": True, "stochastic_rounding": True, "state_dtype": torch.bfloat16},
    ),
}


@dataclass(frozen=True)
class Run:
    """All that a result follows from, beside the versions of torch and Python, and the processor."""

    optimizer: str
    lr: float
    seed: int
    schedule: str = "linear to zero"
    stored: str = "float32"
    tokens: int = TOKENS
    averaged: bool = False
    batch_size: int = BATCH
    betas_tuned_at: int | None = None  # the batch size from which the half-lives of the betas follow


def small_model() -> Decoder:
    return Decoder(WIDTH, HEADS, CONTEXT, nn.ReLU())  # the gradient of GELU would take a third of a step here


def make_optimizer(run: Run, model: Decoder) -> torch.optim.Optimizer:
    arguments: dict[str, Any] = {**ARGUMENTS.get(run.optimizer, {}), **STORED[run.stored][1]}
    params: Any = model.parameters()
    if run.optimizer == "AdamW":
        params = optim.configure_param_groups(model, weight_decay=DECAY)
    elif run.optimizer in ("Muon", "NorMuon"):
        fused = {"params": "*.qkv.weight", "split_sizes": (WIDTH, WIDTH, WIDTH)}
        params = optim.configure_param_groups(
            model, [fused], weight_decay=DECAY, matrices="muon", output_head="head.weight"
        )
        arguments["adamw"] = {"lr": run.lr}
    made: torch.optim.Optimizer = getattr(optim, run.optimizer)(params, lr=run.lr, **arguments)
    return made


def measure(run: Run) -> Result:
    """Train, and return the loss at the end; with `averaged` also that of an average, and that of merged checkpoints.

    The curve has the losses of a tenth of the held-out text, at equal distances. Average and merge are of the last
    fifth. Parameters in bfloat16 are copied into a model in float32 that computes, since many CPUs multiply bfloat16
    slowly: the runs differ in what is stored, gradients included.
    """
    started = time.process_time()
    learned, held_out = text(CONTEXT)
    torch.manual_seed(run.seed)
    model = small_model()
    stored = deepcopy(model).to(STORED[run.stored][0])
    optimizer = make_optimizer(run, stored)
    pairs = list(zip(model.parameters(), stored.parameters()))
    copy(pairs)
    clock = Clock(f"{run.tokens}tok", samples_per_batch=run.batch_size, tokens_per_sample=CONTEXT)
    schedulers: list[Bound] = [bind(SCHEDULES[run.schedule], optimizer, clock)]
    if run.betas_tuned_at is not None:
        for key, beta in zip(("betas[0]", "betas[1]"), optimizer.defaults["betas"]):
            half_life = HalfLife.of(beta, batch=f"{run.betas_tuned_at}sp")
            schedulers.append(bind(half_life, optimizer, clock, key=key))
    average = optim.WeightAverage(model.parameters(), clock, start="0.8dur")
    curve, checkpoints, times = [], [], []
    for windows in batches(learned, CONTEXT, run.batch_size, run.seed):
        model.zero_grad()
        model.loss(windows).backward()  # type: ignore[no-untyped-call]  # torch's own
        for used, kept in pairs:
            assert used.grad is not None
            kept.grad = used.grad.to(kept.dtype)
        optimizer.step()
        copy(pairs)
        clock.tick()
        for scheduler in schedulers:
            scheduler.step()
        if clock.every(f"{run.tokens // POINTS}tok"):
            curve.append(bits(model, held_out[::10]))
        if run.averaged:
            average.step()
            if clock.fraction > 0.8 and clock.every("0.02dur"):
                checkpoints.append(deepcopy(model.state_dict()))
                times.append(clock.timestamp.token)
        if clock.done:
            break
    found: dict[str, Any] = {"bits": bits(model, held_out), "curve": curve}
    if run.averaged:
        with average.swapped():
            found["average"] = bits(model, held_out)
        coefficients = optim.merge_coefficients("1-sqrt", times, f"{run.tokens * 4 // 5}tok")
        model.load_state_dict(optim.merge_weights(checkpoints, coefficients))
        found["merge"] = bits(model, held_out)
    return {**found, "seconds": round(time.process_time() - started, 1)}


@torch.no_grad()
def copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """What is stored, into the model that computes."""
    for used, kept in pairs:
        used.copy_(kept)


def bits(model: Decoder, windows: Tensor) -> float | None:
    """Bits per byte; None, which JSON has, where it is no number."""
    found = model.mean_loss(windows) / math.log(2)
    return round(found, 5) if math.isfinite(found) else None


def machine() -> dict[str, Any]:
    """What a result follows from beside its run."""
    learned, held_out = text(CONTEXT)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": 1,
        "learned_bytes": len(learned),
        "held_out_bytes": len(held_out) * CONTEXT,
        "parameters": sum(p.numel() for p in small_model().parameters()),
    }


def processor() -> str:
    """Its name, where Linux says it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.machine()


class Results:
    """The results of one script, by run. Each is written to its file at once, so that a script may be stopped."""

    def __init__(self, name: str) -> None:
        self.path = RESULTS / f"{name}.json"
        self.on: dict[str, Any] = {}
        self.found: dict[Run, Result] = {}
        if self.path.exists():
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            self.on = saved["on"]
            self.found = {Run(**each.pop("run")): each for each in saved["runs"]}

    def complete(self, runs: Sequence[Run]) -> None:
        """Measure the runs that are missing."""
        missing = [run for run in runs if run not in self.found]
        if not missing:
            return
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", ".*lose every update")
        here = machine()
        if self.found and self.on != here:
            raise SystemExit(f"{self.path} was measured on {self.on}, this is {here}: delete it to measure all anew.")
        self.on = here
        self.found = {run: self.found[run] for run in runs if run in self.found}  # no others
        for count, run in enumerate(missing, 1):
            with measuring(f"{count} of {len(missing)}, {run}"):
                self.found[run] = measure(run)
            self.write()

    def write(self) -> None:
        """One line for each run; the file is there as a whole at any time."""
        lines = [json.dumps({"run": dataclasses.asdict(run), **each}) for run, each in self.found.items()]
        text = f'{{"on": {json.dumps(self.on)}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"
        RESULTS.mkdir(exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.path)


@dataclass(frozen=True)
class Best:
    """The best of some rates: the one with the least mean loss over the seeds, and the results of each seed there."""

    lr: float
    at_edge: bool
    results: list[Result]
    losses: list[float]

    @classmethod
    def of(cls, found: Mapping[Run, Result], runs: Iterable[Run], which: str = "bits") -> Best:
        by_rate: dict[float, list[Result]] = {}
        for run in runs:
            by_rate.setdefault(run.lr, []).append(found[run])
        losses = {lr: [math.inf if each[which] is None else each[which] for each in by_rate[lr]] for lr in by_rate}
        lr = min(losses, key=lambda rate: statistics.fmean(losses[rate]))
        return cls(lr, lr in (min(losses), max(losses)), by_rate[lr], losses[lr])

    @property
    def mean(self) -> float:
        return statistics.fmean(self.losses)

    @property
    def apart(self) -> float:
        """How far the seeds are from each other."""
        return max(self.losses) - min(self.losses)

    @property
    def rate(self) -> str:
        return f"{self.lr:g}" + " (edge)" * self.at_edge


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(name: str, runs: Sequence[Run], table: Callable[[Mapping[Run, Result]], str], about: str | None) -> None:
    """Measure what is missing, print the table, and with `--page` put it on the page."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the table into docs/results.md, too")
    options = parser.parse_args()
    results = Results(name)
    results.complete(runs)
    made = table(results.found)
    print(made)
    if options.page:
        place = rf"(<!-- the table of benchmarks/results_{name}\.py -->\n\n).*?(\n\n<!-- its end -->)"
        page, count = re.subn(
            place, lambda found: found[1] + made + found[2], PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for this table: mark one, as those of the others are marked.")
        PAGE.write_text(page, encoding="utf-8")
