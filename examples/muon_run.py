"""Train a small language model with MosaicML Composer and Muon, and beside it
with AdamW, both on one warmup-stable-decay schedule of timesched.

The model is that of composer_run.py: it reads bytes of the Python manual. Muon
steps the hidden matrices, and AdamW, in the same optimizer, the other parameters
with a learning rate of its own; the schedule multiplies both. Every rate of --lrs
is tried for Muon's matrices, and for AdamW alone. The one with the least loss on
text that is kept out of the training is then tested on the last tenth of the
manual. The script checks the learning rates of every batch.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import optim
from timesched import Horizon, Time, WarmupStableDecayScheduler

if TYPE_CHECKING:
    import torch

    from examples._demo_model import Record

BATCH_SIZE = 8  # samples of 128 bytes
BETAS = (0.9, 0.95)  # of AdamW, alone and beside Muon
SCHEDULE = WarmupStableDecayScheduler("0.1dur", t_decay="0.2dur")  # a tenth to warm up, a fifth to decay


def with_muon(model: Any, lr: float, adamw_lr: float) -> torch.optim.Optimizer:
    """Muon for the hidden matrices, and AdamW for embeddings, the output head, norms and biases."""
    groups = optim.configure_param_groups(model, matrices="muon", output_head="head*", weight_decay=0.1)
    return optim.Muon(groups, lr, adjust_lr_fn="match_rms_adamw", adamw={"lr": adamw_lr, "betas": BETAS})


def with_adamw(model: Any, lr: float) -> torch.optim.Optimizer:
    """AdamW for all parameters."""
    return optim.AdamW(optim.configure_param_groups(model, weight_decay=0.1), lr, betas=BETAS)


def read_options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("muon_run.py", description=__doc__, formatter_class=raw)
    add = parser.add_argument
    text = "length of each run, in ep, ba, sp or tok, a token being a byte (default: %(default)s)"
    add("--duration", default="300000tok", metavar="TIME", help=text)
    text = "learning rates to try, of Muon's matrices and of AdamW alone (default: 2e-3 4e-3 8e-3)"
    add("--lrs", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3], metavar="LR", help=text)
    text = "learning rate of AdamW beside Muon, the same for every rate of --lrs (default: %(default)s)"
    add("--adamw-lr", type=float, default=4e-3, metavar="LR", help=text)
    text = "of the model and the order of samples (default: %(default)s)"
    add("--seed", type=int, default=17, help=text)
    args = parser.parse_args()
    for option, lr in (*(("--lrs", lr) for lr in args.lrs), ("--adamw-lr", args.adamw_lr)):
        if not (lr > 0 and math.isfinite(lr)):
            parser.error(f"{option} {lr}: it has to be more than 0")
    try:
        args.duration = Time.from_timestring(args.duration)
        Horizon(args.duration)
    except ValueError as error:
        parser.error(f"--duration: {error}")
    if args.duration.unit.value not in ("ep", "ba", "sp", "tok"):
        parser.error(f"--duration {args.duration}: it has to be in ep, ba, sp or tok")
    return parser, args


def say(text: str) -> None:
    print(text, flush=True)  # a pipe, too, shows how far the runs are


def main() -> None:
    start = time.monotonic()
    parser, args = read_options()
    if importlib.util.find_spec("composer") is None:
        parser.error("it trains with Composer: pip install 'torch-timesched[composer]'")
    say("Loading Composer ...")
    demo = importlib.import_module("_demo_model")  # only now, so that --help and mistakes need not wait for it
    text, test = demo.manual()
    cut = len(text) * 9 // 10
    text, validation = text[:cut], text[cut:]
    horizon = Horizon(args.duration, batches_per_epoch=len(demo.windows(text)) // BATCH_SIZE)
    say(f"The Python manual: {len(text)} bytes to train on, {len(validation)} to choose by, {len(test)} to test on")
    say(f"Each run: {args.duration}, seed {args.seed}, {SCHEDULE!r}\n")
    say(optim.param_group_table(optim.configure_param_groups(demo.ByteModel(), matrices="muon", output_head="head*")))

    def tuned(make: Callable[..., torch.optim.Optimizer], **more: float) -> tuple[float, Record]:
        """The rate whose run has the least validation loss, and that run."""
        records = {}
        for lr in args.lrs:
            began = time.monotonic()
            record = demo.train(
                lambda model, lr=lr: make(model, lr, **more),
                SCHEDULE,
                args.duration,
                horizon,
                text,
                BATCH_SIZE,
                args.seed,
                lines=2,
            )
            batches, seconds = record.check(SCHEDULE), time.monotonic() - began
            record.tested = record.model.bits_per_byte(demo.windows(validation))
            initial = " and ".join(f"{rate:g}" for rate in sorted({*record.initial}))
            say(f"LR {lr:g}: validation {record.tested:.3f} bits/byte, {seconds:.0f} s;")
            say(f"checked {initial} {batches}")
            records[lr] = record
        return min(records.items(), key=lambda item: (math.isnan(item[1].tested), item[1].tested))

    for make, more in ((with_muon, {"adamw_lr": args.adamw_lr}), (with_adamw, {})):
        lr, record = tuned(make, **more)
        say(f"{make.__name__} {lr} {record.model.bits_per_byte(demo.windows(test)):.3f}")
    say(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
