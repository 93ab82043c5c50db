"""The model of composer_run.py and muon_run.py: a byte-level language model, trained on the manual of Python."""

from __future__ import annotations

import logging
import math
import pydoc_data.topics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from composer import Callback, DataSpec, Trainer
from composer.models import ComposerModel
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from timesched import Horizon, Schedule, Time, TimeUnit

LENGTH = 128  # bytes in a sample
BITS = math.log(2)  # nats in a bit


def manual() -> tuple[Tensor, Tensor]:
    """The bytes of the manual: the first nine tenths to train on, and the rest to be tested on."""
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def windows(data: Tensor) -> Tensor:
    """Samples of LENGTH bytes, each with the byte before it, which the first prediction starts from."""
    return data.unfold(0, LENGTH + 1, LENGTH)


def byte_frequencies(train: Tensor, test: Tensor) -> float:
    """Bits per byte of a model that knows how common each byte is, and nothing else: the score to beat."""
    counts = Counter(train.tolist())
    total = len(train) + 256  # every byte seen once more, as some occur in the test text alone
    return sum(-math.log2((counts[byte] + 1) / total) for byte in test.tolist()) / len(test)


class ByteModel(ComposerModel):
    """A small transformer that also sees the last bytes directly.

    A table for each of the last eight positions replaces the attention heads that would otherwise spend most of a
    short run learning to look at their neighbours. It also makes a position embedding unnecessary.
    """

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 3, last: int = 8) -> None:
        super().__init__()
        self.last = last
        self.tables = nn.Embedding(256 * last, width)
        nn.init.normal_(self.tables.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, batch: Tensor) -> Tensor:
        seen = batch[:, :-1]
        hidden = self.tables(seen)
        for back in range(1, self.last):
            hidden = hidden + F.pad(self.tables(seen[:, :-back] + 256 * back), (0, 0, back, 0))
        logits: Tensor = self.head(self.blocks(hidden, mask=self.mask, is_causal=True))
        return logits

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())

    def bits_per_byte(self, samples: Tensor) -> float:
        """The mean loss over samples of equal length, without training on them."""
        self.eval()
        with torch.inference_mode():
            losses = [float(self.loss(self(part), part)) * len(part) for part in torch.split(samples, 64)]
        self.train()
        return sum(losses) / len(samples) / BITS


@dataclass
class Record:
    """One run, batch by batch."""

    model: ByteModel
    horizon: Horizon
    initial: list[float]  # the LR of each parameter group before the run
    timestamps: list[Any] = field(default_factory=list)  # Composer's, at the start of the batch
    lrs: list[list[float]] = field(default_factory=list)  # of each group, that the batch was trained with
    losses: list[float] = field(default_factory=list)  # bits per byte
    batches: int = 0  # as the Trainer counts them
    tested: float = math.nan  # bits per byte on text that it is not trained on

    @property
    def ratio(self) -> float:
        """The scale-schedule ratio."""
        return self.horizon.ssr

    def fraction(self, timestamp: Any) -> float:
        """How much of the run is done."""
        assert self.horizon.max_duration is not None
        unit = self.horizon.max_duration.unit
        unit = TimeUnit.BATCH if unit is TimeUnit.EPOCH else unit  # epochs alone would be steps
        return float(self.horizon.convert(Time.from_input(timestamp.get(unit.value)), "dur"))

    def check(self, schedule: Schedule) -> int:
        """The number of batches, after comparing the LRs of each with the schedule's."""
        if len(self.lrs) != self.batches:
            raise AssertionError(f"{self.batches} batches were trained, and {len(self.lrs)} recorded")
        for k, used in enumerate(self.lrs):
            # The Trainer steps the scheduler after a batch but before it counts that batch, so the scheduler still
            # sees the time at which the batch began. Batch k uses the value at the start of batch k - 1, and the
            # first two batches both use the value at 0.
            multiplier = schedule.at(self.timestamps[max(k - 1, 0)], self.horizon)
            expected = [lr * multiplier for lr in self.initial]
            if used != expected:
                raise AssertionError(f"batch {k} was trained with LR {used!r}, and the schedule says {expected!r}")
        return len(self.lrs)


class Recorder(Callback):
    """Writes down what each batch was trained with, and if `show`, shows it every tenth of the run."""

    def __init__(self, record: Record, show: bool) -> None:
        self.record, self.show = record, show
        self.shown = 0  # batches in the lines shown so far
        self.start = time.monotonic()

    def batch_start(self, state: Any, logger: Any) -> None:
        self.record.timestamps.append(state.timestamp)
        self.record.lrs.append([group["lr"] for group in state.optimizers[0].param_groups])

    def batch_end(self, state: Any, logger: Any) -> None:
        record = self.record
        record.losses.append(float(state.loss) / BITS)
        before, after = record.fraction(record.timestamps[-1]), record.fraction(state.timestamp)
        new_tenth = int(10 * before) < int(10 * after) or len(record.losses) == 1
        # On a terminal every batch, in a line that the next batch writes over.
        if self.show and (new_tenth or sys.stdout.isatty()):
            new = record.losses[self.shown :]
            print(
                f"{min(after, 1):5.0%}  batch {state.timestamp.batch.value:5}  token {state.timestamp.token.value:9}"
                f"  LR {record.lrs[-1][0]:.2e}  loss {sum(new) / len(new):.3f} bits/byte"
                f"  {time.monotonic() - self.start:4.0f} s",  # no more than 79 columns
                end="\n" if new_tenth else "\r",
                flush=True,
            )
        if new_tenth:
            self.shown = len(record.losses)


def loader(samples: Tensor, batch_size: int, seed: int) -> Any:
    """Shuffled batches, in the same order for every run of one seed."""
    order = torch.Generator().manual_seed(seed)
    return DataLoader(samples, batch_size, shuffle=True, drop_last=True, generator=order)  # type: ignore[arg-type]


def train(
    make: Callable[[ByteModel], torch.optim.Optimizer],
    schedule: Schedule,
    duration: Time[Any],
    horizon: Horizon,
    text: Tensor,
    batch_size: int,
    seed: int,
    show: bool = True,
) -> Record:
    """Train a new model with Composer's Trainer for `duration` times the ratio of the horizon."""
    # A second thread gains little with matrices this small, and costs minutes where something else needs the core.
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = ByteModel()
    optimizer = make(model)
    record = Record(model, horizon, [group["lr"] for group in optimizer.param_groups])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Composer, about GPUs and files that this run does without
        logging.getLogger("composer").setLevel(logging.ERROR)
        trainer = Trainer(
            model=model,
            # Composer counts no tokens unless it is told how: here, the bytes that are predicted.
            train_dataloader=DataSpec(
                loader(windows(text), batch_size, seed),
                get_num_tokens_in_batch=lambda batch: len(batch) * LENGTH,
            ),
            max_duration=str(duration),
            optimizers=optimizer,
            schedulers=schedule,  # a schedule of timesched, as it is
            scale_schedule_ratio=horizon.ssr,
            callbacks=Recorder(record, show),
            seed=seed,
            device="cpu",
            progress_bar=False,
        )
        trainer.fit()
        record.batches = trainer.state.timestamp.batch.value
        trainer.close()
    return record
