"""Train a small language model whose optimizer, parameter groups and schedules
come from a YAML file: from_config.yaml, next to this script, or one of yours.

The model reads bytes, and the text is the manual that ships with Python. The
script prints the parameter groups, and then how the run goes: the learning rate
and the weight decay of each tag, and the loss. It needs ruamel.yaml; with
--composer the same run is made by MosaicML Composer's Trainer.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import logging
import math
import pydoc_data.topics
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from optim import build, param_group_table
from optim.config import Built, read

LENGTH = 64  # bytes in a sample
BATCH_SIZE = 32
LINES = 11  # of the table


class Model(nn.Module):
    """A small transformer that predicts the next byte."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """The mean loss over samples of LENGTH + 1 bytes, in bits per byte."""
        seen, following = samples[:, :-1], samples[:, 1:]
        hidden = self.blocks(self.bytes(seen) + self.positions.weight, mask=self.mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), following.flatten()) / math.log(2)


def batches() -> DataLoader[Any]:
    """The manual in samples, shuffled in the same order for every run."""
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()
    samples: Any = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, LENGTH + 1, LENGTH)
    return DataLoader(samples, BATCH_SIZE, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0))


def values(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate and weight decay of the first group with each tag, and of the first without one."""
    numbers: dict[str, float] = {}
    for group in optimizer.param_groups:
        for tag in sorted(group.get("tags") or ("no tag",)):
            for short, key in (("lr", "lr"), ("wd", "weight_decay")):
                numbers.setdefault(f"{short} {tag}", float(group.get(key, math.nan)))
    return numbers


class Table:
    """Prints about LINES lines over a run of any length: the values of a batch, and the mean loss since the last."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.losses: list[float] = []

    def add(self, batch: int, numbers: dict[str, float], loss: float) -> None:
        if batch == 0:
            print("\n batch", *(f"{name:>11}" for name in numbers), " bits/byte", flush=True)
        self.losses.append(loss)
        if batch % max(1, self.length // (LINES - 1)) == 0 or batch == self.length - 1:
            mean = sum(self.losses) / len(self.losses)
            print(f"{batch:6}", *(f"{x:11.3e}" for x in numbers.values()), f"{mean:10.3f}", flush=True)
            self.losses = []


def train(model: Model, built: Built, table: Table) -> None:
    """The run as a loop of one's own."""
    optimizer, schedulers = built
    for batch, samples in enumerate(endless(batches())):
        numbers = values(optimizer)
        loss = model(samples)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        built.clock.tick()
        for scheduler in schedulers:
            scheduler.step()
        table.add(batch, numbers, loss.item())
        if built.clock.done:
            break


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def train_with_composer(model: Model, built: Built, table: Table, schedulers: Any) -> None:
    """The same run by Composer's Trainer, whose State is the clock: the schedulers are made again, to follow it."""
    from composer import Callback, DataSpec, Trainer
    from composer.models import ComposerModel

    from timesched.integrations.composer import Schedules

    class Wrapped(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Tensor) -> Any:
            return self.model(batch)

        def loss(self, outputs: Any, batch: Tensor) -> Any:
            return outputs

    class Show(Callback):
        def batch_start(self, state: Any, logger: Any) -> None:
            self.numbers = values(state.optimizers[0])

        def batch_end(self, state: Any, logger: Any) -> None:
            table.add(state.timestamp.batch.value - 1, self.numbers, float(state.loss))

    def make_schedulers(optimizer: Any, clock: Any) -> Any:
        return build(model, {"optimizer": optimizer, "schedulers": schedulers}, clock).schedulers

    for scheduler in built.schedulers:
        scheduler.unbind()
    warnings.simplefilter("ignore")  # of Composer, about GPUs and files that this run does without
    logging.getLogger("composer").setLevel(logging.ERROR)
    trainer = Trainer(
        model=Wrapped(),
        optimizers=built.optimizer,
        train_dataloader=DataSpec(batches(), get_num_samples_in_batch=len),
        max_duration=str(built.clock.max_duration),
        callbacks=[Show(), Schedules(make_schedulers, ssr=built.clock.ssr)],
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("from_config.py", description=__doc__, formatter_class=raw)
    default = Path(__file__).with_suffix(".yaml")
    parser.add_argument("config", type=Path, nargs="?", default=default, help="a YAML file (default: from_config.yaml)")
    text = "length of the run in batches, such as 500ba, instead of the config's"
    parser.add_argument("--max-duration", metavar="TIME", help=text)
    parser.add_argument("--composer", action="store_true", help="train with Composer's Trainer")
    args = parser.parse_args()
    if args.composer and importlib.util.find_spec("composer") is None:
        parser.error("--composer needs Composer: pip install '.[composer]' in the checkout")
    torch.set_num_threads(1)  # more gain little with matrices this small
    torch.manual_seed(0)
    model = Model()
    try:
        config = read(args.config)
        if not isinstance(config, dict):
            raise ValueError(f"{args.config} has no keys: write 'optimizer', 'schedulers' and 'max_duration'.")
        if args.max_duration is not None:
            config["max_duration"] = args.max_duration
        length = str(config.get("max_duration"))
        if not length.endswith("ba"):
            raise ValueError(f"max_duration is {length}: this script counts batches, as in 200ba.")
        built = build(model, config)
        batches_in_all = built.clock.max_duration.value
        if args.composer and batches_in_all != int(batches_in_all):
            raise ValueError(f"{length} times ssr is {built.clock.max_duration}: Composer counts whole batches.")
    except (ImportError, OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    print(param_group_table(built.optimizer, names=1))
    print(f"\n{built.table()}")
    table = Table(math.ceil(batches_in_all))
    if args.composer:
        train_with_composer(model, built, table, config.get("schedulers"))
    else:
        train(model, built, table)


if __name__ == "__main__":
    main()
