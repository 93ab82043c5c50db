"""Train a small language model with accelerate on schedules in tokens: accelerate launch examples/accelerate_run.py

The learning rate is a cosine with a warmup, and the weight decay a straight line. With several processes each counts
its own tokens. It needs `pip install ".[accelerate]"` in the checkout.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import optim
from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
from timesched.integrations.accelerate import Binding, schedule

LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="100000tok", help="the length of the run, a time in any unit but epochs")
    parser.add_argument("--folder", type=Path, help="where to save the run, and to go on from if it was saved")
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=4)
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    rows: Any = [text[start : start + LENGTH] for start in range(0, len(text) - LENGTH, LENGTH // 4)]
    net = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.GELU(), torch.nn.Linear(64, 256))
    adamw = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-8, weight_decay=0.1)  # torch's eps: ours is 1e-6
    model, optimizer, loader = accelerator.prepare(net, adamw, DataLoader(rows, batch_size=8, shuffle=True))
    scheduler = schedule(
        accelerator,
        optimizer,
        CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1),
        Binding(LinearScheduler(alpha_f=0.5), "weight_decay"),
        max_duration=args.tokens,
    )
    if args.folder and args.folder.exists():
        accelerator.load_state(args.folder)
        accelerator.print(f"Goes on from {scheduler.clock.timestamp.token}")

    while not scheduler.clock.done:
        for ids in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step(tokens=ids.numel())
                optimizer.zero_grad()
            if scheduler.clock.done:
                break
        (group,) = optimizer.param_groups
        tokens, lr, decay = int(scheduler.clock.timestamp.token), group["lr"], group["weight_decay"]
        accelerator.print(f"{tokens:>7} tokens: lr {lr:.5f}, weight decay {decay:.3f}, loss {loss.item():.3f}")
    if args.folder:
        accelerator.save_state(args.folder)
    accelerator.print(f"Done: {scheduler.clock.timestamp.batch.value} steps of the optimizer")
    accelerator.end_training()


if __name__ == "__main__":
    main()
