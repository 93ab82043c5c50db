"""Train a small language model with MosaicML Composer, its learning rate on a
schedule of timesched.

The model reads bytes, and the text is the manual that ships with Python. It is
trained once for every --ratio: the scale-schedule ratio, by which the run and
the schedule are both stretched. After each run the script checks that every
batch was trained with exactly the LR that the schedule computes; at the end it
prints a table and draws a picture.

A TIME is a number and a unit: 1200000tok or 1.2e6tok (tokens, here bytes),
9000sp (samples of 128 tokens), 700ba (batches), 3ep (epochs), 0.05dur (a
fraction of the run).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import math
import re
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

import timesched
from timesched import Horizon, ProductScheduler, Schedule, Time, TimeError, Timestamp

if TYPE_CHECKING:
    from examples._demo_model import Record

# The text of --help after the options, and before the names of the schedules.
EPILOG = """\
A schedule is a name, and settings that are the arguments of the class, as in
multi-step,milestones=0.5dur:0.75dur,gamma=0.3. Several multiply, with * between.

  composer_run.py --ratio 1 0.5 2
  composer_run.py --schedule linear-warmup,alpha_f=0.2 --warmup 60000tok --scale-warmup
  composer_run.py --schedule 'polynomial,power=2 * step,step_size=1ep' --duration 1000ba

"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def schedules() -> dict[str, Any]:
    """Every public schedule that is made of times and numbers, under a short name: 'cosine-warmup', 'step', ..."""
    classes = {}
    for name in timesched.__all__:
        cls = getattr(timesched, name)
        if not (name.endswith("Scheduler") and dataclasses.is_dataclass(cls)):
            continue
        if not {"schedule", "schedules", "points"}.intersection(field.name for field in dataclasses.fields(cls)):
            words = re.findall("[A-Z][a-z]*", name.removesuffix("Scheduler"))
            classes["-".join(word.lower() for word in words if word not in ("Annealing", "With"))] = cls
    return classes


def read_schedule(text: str, defaults: dict[str, Any], options: dict[str, Any]) -> Schedule:
    """The schedule in a text such as 'step,step_size=10ba * linear', whose own settings go before the options."""
    known, factors, taken = schedules(), [], set()
    for part in text.split("*"):
        name, *settings = (word.strip() for word in part.split(","))
        if name not in known:
            raise ValueError(f"there is no schedule {name!r}: use one of {', '.join(known)}")
        fields = {field.name: field for field in dataclasses.fields(known[name])}
        own = dict(read_setting(setting) for setting in settings)
        for key in own.keys() - fields.keys():
            raise ValueError(f"{name} has no {key!r}: its settings are {', '.join(fields)}")
        values = {key: value for key, value in (defaults | options | own).items() if key in fields}
        for key, field in fields.items():
            if key not in values and field.default is dataclasses.MISSING:
                raise ValueError(f"{name} needs {key}: write '{name},{key}=...'")
        factors.append(known[name](**values))
        taken.update(fields.keys() - own.keys())
    for key in options.keys() - taken:
        option = key.removeprefix("t_" if key == "t_warmup" else "").replace("_", "-")
        raise ValueError(f"--{option} has no effect on it: leave it out")
    return factors[0] if len(factors) == 1 else ProductScheduler(factors)


def read_setting(text: str) -> tuple[str, Any]:
    """A name and its value: a number, true or false, a time, or milestones with colons between."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is no setting: write name=value")
    if key == "milestones":
        return key, value.split(":")
    if value in ("true", "false"):
        return key, value == "true"
    try:
        return key, float(value)
    except ValueError:
        return key, value


def read_time(text: str) -> Time[Any]:
    try:
        return Time.from_timestring(text)
    except TimeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_options() -> tuple[argparse.Namespace, Schedule, Parser]:
    """The options, and the schedule that they describe."""
    names = textwrap.fill(f"Schedules: {', '.join(schedules())}", 80, break_on_hyphens=False)
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("composer_run.py", description=__doc__, epilog=EPILOG + names, formatter_class=raw)
    add = parser.add_argument
    add("--schedule", default="cosine-warmup,alpha_f=0.1", metavar="TEXT", help="see below (default: %(default)s)")
    text = "length of the run at ratio 1, in ep, ba, sp or tok (default: %(default)s)"
    add("--duration", type=read_time, default="1200000tok", metavar="TIME", help=text)
    text = "t_warmup of the schedule, if it has one (default: 0.05dur)"
    add("--warmup", type=read_time, metavar="TIME", help=text)
    text = "t_max of the schedule, if it has one (default: the duration, so the LR decays over tokens)"
    add("--t-max", type=read_time, metavar="TIME", help=text)
    text = "let the ratio stretch the warmup too; a warmup in dur always follows the length of the run"
    add("--scale-warmup", action="store_true", help=text)
    text = "one or more scale-schedule ratios, and a run for each (default: 1 0.5)"
    add("--ratio", type=float, nargs="+", default=[1.0, 0.5], metavar="R", help=text)
    add("--lr", type=float, default=4e-3, help="what the schedule multiplies (default: %(default)s)")
    add("--batch-size", type=int, default=8, metavar="N", help="samples in a batch (default: %(default)s)")
    add("--seed", type=int, default=17, help="of the model and the order of samples (default: %(default)s)")
    text = "the picture, a .png, .pdf or .svg (default: %(default)s)"
    add("--out", type=Path, default=Path("composer_run.png"), metavar="FILE", help=text)
    args = parser.parse_args()

    options = {"t_warmup": args.warmup, "t_max": args.t_max, "scale_warmup": args.scale_warmup or None}
    options = {key: value for key, value in options.items() if value is not None}
    try:
        schedule = read_schedule(args.schedule, {"t_warmup": "0.05dur", "t_max": args.duration}, options)
    except (TypeError, ValueError) as error:
        parser.error(f"--schedule {args.schedule}: {error}")
    for option, value, good, rule in (
        ("--duration", args.duration, args.duration.unit.value in ("ep", "ba", "sp", "tok"), "in ep, ba, sp or tok"),
        ("--duration", args.duration, args.duration.value > 0, "more than 0"),
        *(("--ratio", r, r > 0 and math.isfinite(r), "more than 0") for r in args.ratio),
        ("--lr", args.lr, args.lr > 0 and math.isfinite(args.lr), "more than 0"),
        ("--batch-size", args.batch_size, 1 <= args.batch_size <= 1000, "between 1 and 1000"),
        ("--seed", args.seed, 0 <= args.seed < 2**32, "between 0 and 2**32 - 1"),
        ("--out", args.out, args.out.suffix in (".png", ".pdf", ".svg"), "a .png, .pdf or .svg"),
        ("--out", args.out, args.out.absolute().parent.is_dir(), "in a directory that exists"),
    ):
        if not good:
            parser.error(f"{option} {value}: it must be {rule}")
    return args, schedule, parser


def plan(duration: Time[Any], ratio: float, batches_per_epoch: int, schedule: Schedule) -> Horizon:
    """The horizon of a run before it begins. Raises ValueError if Composer or the schedule cannot run with it."""
    horizon = Horizon(duration, batches_per_epoch=batches_per_epoch, ssr=ratio)
    schedule.at(Timestamp(), horizon)  # raises where times do not convert, or the schedule ends before the run
    assert horizon.max_duration is not None
    cut = int(duration.value * ratio)  # Composer's arithmetic
    if cut != horizon.max_duration.exact:
        raise ValueError(
            f"{duration} becomes {horizon.max_duration}, and Composer would cut it to {cut}{duration.unit.value}: "
            f"choose a --duration that the ratio leaves whole"
        )
    return horizon


def print_table(records: list[Record]) -> None:
    """About ten batches of each run: where the run stood when they began, and the LR they were trained with."""
    print(f"\n{'ratio':>5} {'batch':>8} {'sample':>8} {'token':>10} {'fraction':>9} {'LR':>11}")
    for record in records:
        fractions = [record.fraction(timestamp) for timestamp in record.timestamps]
        rows = {0, 1, len(fractions) - 1}
        for wanted in (0.025, 0.05, *(tenth / 10 for tenth in range(1, 10))):
            rows.add(next((k for k, done in enumerate(fractions) if done >= wanted), 0))
        for k in sorted(rows):
            now = record.timestamps[k]
            counts = f"{now.batch.value:8} {now.sample.value:8} {now.token.value:10}"
            print(f"{record.ratio:5g} {counts} {fractions[k]:9.3f} {record.lrs[k][0]:11.4e}")
        print(flush=True)


def draw(records: list[Record], schedule: Schedule, baseline: float, args: argparse.Namespace) -> None:
    """Loss and LR over tokens: a line for every run, and for the LR also the schedule, as it draws itself."""
    import matplotlib

    matplotlib.use("Agg")  # no window, also where there is a display
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3})
    figure, (top, bottom) = plt.subplots(2, sharex=True, figsize=(8, 6.5), height_ratios=(3, 2), layout="constrained")
    keep = max(0.0, 1 - 50 / max(len(record.losses) for record in records))
    for i, record in enumerate(records):
        tokens = [timestamp.token.value for timestamp in record.timestamps]
        look: dict[str, Any] = {"color": f"C{i}", "linewidth": 1.8}
        top.plot(tokens, record.losses, color=f"C{i}", alpha=0.2, linewidth=0.8)
        top.plot(tokens, smooth(record.losses, keep), label=f"ratio {record.ratio:g}, training (smoothed)", **look)
        label = f"ratio {record.ratio:g}, held-out text at the end: {record.tested:.2f}"
        top.plot(tokens[-1], record.tested, "o", label=label, markeredgecolor="white", **look)
        planned = Horizon(
            args.duration,
            batches_per_epoch=record.horizon.batches_per_epoch,
            samples_per_batch=args.batch_size,
            tokens_per_sample=importlib.import_module("_demo_model").LENGTH,
            ssr=record.ratio,
        )
        schedule.plot(planned, "tok", bottom, color="0.7", label=f"schedule, ratio {record.ratio:g}")
        some = slice(None, None, math.ceil(len(tokens) / 60))
        multiples = [lr / args.lr for [lr] in record.lrs[some]]
        bottom.plot(tokens[some], multiples, ".", color=f"C{i}", label=f"batches, ratio {record.ratio:g}")
    top.axhline(baseline, color="0.4", linestyle=":", label=f"frequencies of bytes alone: {baseline:.2f}")
    top.set_ylabel("loss (bits per byte)")
    top.set_ylim(bottom=0)
    bottom.set_ylabel(f"LR / {args.lr:g}")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("tokens (bytes) trained on")
    bottom.xaxis.set_major_formatter(EngFormatter(sep=""))
    bottom.set_xlim(left=0)
    top.legend(frameon=False)
    bottom.legend(frameon=False)
    figure.suptitle("A byte-level language model on the Python manual", fontweight="bold")
    top.set_title("\n".join(textwrap.wrap(repr(schedule), 110)), fontsize=8, color="0.3")
    figure.savefig(args.out, dpi=150)
    plt.close(figure)


def smooth(values: list[float], keep: float) -> list[float]:
    """The mean of the values so far, each of which weighs `keep` times as much as the one after it."""
    total = weight = 0.0
    means = []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight)
    return means


def say(text: str) -> None:
    print(text, flush=True)  # a pipe, too, shows how far the run is


def main() -> None:
    start = time.monotonic()
    args, schedule, parser = read_options()
    if importlib.util.find_spec("composer") is None:
        raise SystemExit("This example trains with Composer. Run pip install '.[composer]' in the checkout.")
    say("Loading Composer ...")
    demo = importlib.import_module("_demo_model")  # only now, so that --help and mistakes need not wait for it

    text, test = demo.manual()
    baseline = demo.byte_frequencies(text, test)
    say(f"Text: the Python manual, {len(text)} bytes to train on and {len(test)} held out")
    say(f"Schedule: {schedule!r}")
    runs, records = [], []
    for ratio in args.ratio:  # all of them before the first run, which takes a while
        try:
            runs.append(plan(args.duration, ratio, len(demo.windows(text)) // args.batch_size, schedule))
        except ValueError as error:
            parser.error(f"ratio {ratio:g}: {error}")

    def optimizer(model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    for number, (ratio, horizon) in enumerate(zip(args.ratio, runs), 1):
        say(f"\nRun {number} of {len(runs)}, ratio {ratio:g}: {horizon.max_duration}")
        record = demo.train(optimizer, schedule, args.duration, horizon, text, args.batch_size, args.seed)
        record.tested = record.model.bits_per_byte(demo.windows(test))
        say(f"Held-out text: {record.tested:.3f} bits/byte, where the frequencies of bytes alone give {baseline:.3f}")
        say(f"Checked: the LR of {record.check(schedule)} of {record.batches} batches is the schedule's")
        records.append(record)
    say(
        "\nA batch uses the schedule's value at the start of the previous batch, because Composer's Trainer steps\n"
        "the scheduler before it counts the batch. The first two batches both use the value at 0."
    )
    print_table(records)
    if importlib.util.find_spec("matplotlib") is None:
        say("No picture: matplotlib is not installed (pip install matplotlib)")
    else:
        draw(records, schedule, baseline, args)
        say(f"Picture: {args.out}")
    say(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
