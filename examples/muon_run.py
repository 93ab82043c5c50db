"""Train a small language model with MosaicML Composer: with Muon and with AdamW,
both on one warmup-stable-decay schedule of timesched.

The script uses the model of composer_run.py, which reads bytes of the Python
manual. Muon steps its hidden matrices. AdamW, in the same optimizer, steps all
other parameters, with its own learning rate (LR). The schedule multiplies both.
Each LR of --lrs is tried for Muon's matrices, and then for AdamW alone. The LR
with the lowest validation loss is picked; this text is not trained on. The model
of this LR is tested on the last tenth of the manual.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import optim
from timesched import Horizon, Time, WarmupStableDecayScheduler

if TYPE_CHECKING:
    import torch

    from examples._demo_model import ByteModel, Record

BATCH_SIZE = 8  # samples of 128 bytes
BETAS = (0.9, 0.95)  # of AdamW, alone and together with Muon
SCHEDULE = WarmupStableDecayScheduler("0.1dur", t_decay="0.2dur")


def muon_groups(model: ByteModel) -> list[dict[str, Any]]:
    """Hidden matrices for Muon; embedding, output head, norms and biases for AdamW."""
    return optim.configure_param_groups(model, matrices="muon", output_head="head*", weight_decay=0.1)


def optimizer(name: str, lr: float, adamw_lr: float, model: ByteModel) -> torch.optim.Optimizer:
    if name == "Muon":
        adamw = {"lr": adamw_lr, "betas": BETAS}
        return optim.Muon(muon_groups(model), lr, adjust_lr_fn="match_rms_adamw", adamw=adamw)
    return optim.AdamW(optim.configure_param_groups(model, weight_decay=0.1), lr, betas=BETAS)


def read_options() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("muon_run.py", description=__doc__, formatter_class=raw)
    add = parser.add_argument
    text = "length of each run, a whole number of ep, ba, sp or tok; a token is a byte (default: %(default)s)"
    add("--duration", default="300000tok", metavar="TIME", help=text)
    text = "LRs to try, for Muon's matrices and for AdamW alone (default: 0.002 0.004 0.008 0.016)"
    add("--lrs", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3, 1.6e-2], metavar="LR", help=text)
    text = "LR of AdamW together with Muon, the same in all runs (default: %(default)s)"
    add("--adamw-lr", type=float, default=4e-3, metavar="LR", help=text)
    add("--seed", type=int, default=17, help="of the model and the order of samples (default: %(default)s)")
    args = parser.parse_args()
    for option, lr in (*(("--lrs", lr) for lr in args.lrs), ("--adamw-lr", args.adamw_lr)):
        if not (lr > 0 and math.isfinite(lr)):
            parser.error(f"{option} {lr}: it must be more than 0")
    try:
        Horizon(args.duration)
        args.duration = Time.from_timestring(args.duration)
    except ValueError as error:
        parser.error(f"--duration {args.duration}: {error}")
    if args.duration.unit.value not in ("ep", "ba", "sp", "tok") or args.duration.value != int(args.duration.value):
        parser.error(f"--duration {args.duration}: it must be a whole number of ep, ba, sp or tok")
    return args, parser


def say(text: str) -> None:
    print(text, flush=True)  # a pipe, too, shows how far the script is


def main() -> None:
    start = time.monotonic()
    args, parser = read_options()
    if importlib.util.find_spec("composer") is None:
        parser.error("this example trains with Composer: pip install '.[composer]' in the checkout")
    say("Loading Composer ...")
    demo = importlib.import_module("_demo_model")  # only now, so that --help and mistakes need not wait for it
    text, test = demo.manual()
    cut = len(text) * 9 // 10
    text, validation = text[:cut], text[cut:]
    horizon = Horizon(args.duration, batches_per_epoch=len(demo.windows(text)) // BATCH_SIZE)
    say(f"Text: {len(text)} bytes to train on, {len(validation)} for validation, {len(test)} to test on")
    say(f"Schedule: {SCHEDULE!r}, over {args.duration}\n")
    say(f"Groups of Muon:\n{optim.param_group_table(muon_groups(demo.ByteModel()), names=1)}")
    checked, results = 0, []
    for name, companion in (("Muon", f", and AdamW at {args.adamw_lr:g}"), ("AdamW", "")):
        say(f"\n{name:5} {'LR':>8}   bits/byte in validation   seconds")
        records: dict[float, Record] = {}
        for lr in args.lrs:
            began = time.monotonic()
            make = partial(optimizer, name, lr, args.adamw_lr)
            record = demo.train(make, SCHEDULE, args.duration, horizon, text, BATCH_SIZE, args.seed, show=False)
            seconds = time.monotonic() - began
            checked += record.check(SCHEDULE)
            record.tested = record.model.bits_per_byte(demo.windows(validation))
            say(f"{'':5} {lr:8g}   {record.tested:23.3f}   {seconds:7.1f}")
            records[lr] = record
        picked = min(records, key=lambda lr: (math.isnan(records[lr].tested), records[lr].tested))
        tested = records[picked].model.bits_per_byte(demo.windows(test))
        results.append(f"{name}: {tested:.3f} bits/byte on the test text, with LR {picked:g}{companion}")
    say("\n" + "\n".join(results))
    say(f"Checked: the LR of each group is its own times the schedule's value, in all {checked} batches")
    say(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
