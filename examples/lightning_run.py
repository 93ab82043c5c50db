"""Train a small language model with Lightning on schedules in tokens: python examples/lightning_run.py

The learning rate is a cosine with a warmup, and the weight decay a straight line. It needs `pip install
".[lightning]"` in the checkout.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import optim
from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
from timesched.integrations.lightning import Binding, schedule

LENGTH = 64


class NextByte(LightningModule):
    """Predicts each byte of a text from the one before."""

    def __init__(self, max_duration: str) -> None:
        super().__init__()
        self.max_duration = max_duration
        self.net = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.GELU(), torch.nn.Linear(64, 256))

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        ids = batch["input_ids"]
        return cross_entropy(self.net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def configure_optimizers(self) -> dict[str, Any]:
        configuration = schedule(
            self,
            optim.AdamW(self.parameters(), lr=1e-2, eps=1e-8, weight_decay=0.1),  # torch's eps: ours is 1e-6
            CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1),
            Binding(LinearScheduler(alpha_f=0.5), "weight_decay"),
            max_duration=self.max_duration,
        )
        self.clock = configuration["lr_scheduler"]["scheduler"].clock  # only to print it
        return configuration

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % 40 == 39:
            (group,) = self.optimizers().param_groups
            tokens, lr, decay = int(self.clock.timestamp.token), group["lr"], group["weight_decay"]
            print(f"{tokens:>7} tokens: lr {lr:.5f}, weight decay {decay:.3f}, loss {outputs['loss']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    batches = parser.parse_args().batches
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(len(text) - LENGTH, (16 * batches,), generator=torch.Generator().manual_seed(0)).tolist()
    rows: Any = [{"input_ids": text[start : start + LENGTH]} for start in starts]
    model = NextByte(f"{16 * LENGTH * batches}tok")
    Trainer(
        max_epochs=1, accumulate_grad_batches=4, logger=False, enable_checkpointing=False, enable_progress_bar=False
    ).fit(model, DataLoader(rows, batch_size=16))
    print(f"Done: {model.clock.timestamp.batch.value} steps of the optimizer, {model.clock.fraction:.0%} of the run")


if __name__ == "__main__":
    main()
