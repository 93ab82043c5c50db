"""The small real model, the data and the Trainer that these tests run, and what a run did.

python -m tests.integration.training MODULE FOLDER: the function `run` of the module resumes from every checkpoint
FOLDER/NAME/*.pt, and by Composer's autoresume from every FOLDER/crashed/NAME. The outcome is in FOLDER/resumed.pt.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from composer import Callback, ComposerModel, DataSpec, Event, Trainer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from tests.torchrun import python_output

WINDOWS = 31
BATCH_SIZE = 4
BATCHES_PER_EPOCH = 8  # seven batches of 4 windows and one of 3
BASE_LR = 0.5
BASE_WEIGHT_DECAY = 0.25
_PADDING = 256  # one above the bytes


def windows() -> list[tuple[Tensor, int]]:
    """Stretches of Python's own help texts, of 8 to 32 bytes, each with the byte that comes after it."""
    texts = [topics[name].encode() for name in sorted(topics)][:WINDOWS]
    lengths = [8 + (5 * i * i + 3 * i) % 25 for i in range(WINDOWS)]
    return [(torch.tensor(list(text[:n])), text[n]) for text, n in zip(texts, lengths, strict=True)]


def collate(rows: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    tokens = pad_sequence([tokens for tokens, _ in rows], batch_first=True, padding_value=_PADDING)
    return {"tokens": tokens, "target": torch.tensor([target for _, target in rows])}


def count_tokens(batch: dict[str, Tensor]) -> int:
    return int((batch["tokens"] != _PADDING).sum())


class Stream(IterableDataset[Any]):
    """The windows, without a length."""

    def __iter__(self) -> Any:
        return iter(windows())


def split(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    parts = [batch[key].split(size) for key in ("tokens", "target")]
    return [{"tokens": tokens, "target": target} for tokens, target in zip(*parts, strict=True)]


def data(rows: Any = None, batch_size: int = BATCH_SIZE, **options: Any) -> DataSpec:
    """The windows in batches, or other rows."""
    loader = DataLoader(windows() if rows is None else rows, batch_size, collate_fn=collate, **options)
    return DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=split)


class NextByte(ComposerModel):
    """Predicts the byte after a window from the mean of its bytes' embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.EmbeddingBag(_PADDING + 1, 8, padding_idx=_PADDING)
        self.head = nn.Linear(8, 256)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.embedding(batch["tokens"]))

    def loss(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch["target"])

    def eval_forward(self, batch: dict[str, Tensor], outputs: Tensor | None = None) -> Tensor:
        return self(batch) if outputs is None else outputs


@dataclass(eq=False)
class Record(Callback):
    """Of each batch: the time at which it began, what every parameter group ran with before its step, and its loss."""

    times: list[Any] = field(default_factory=list)
    rows: list[list[dict[str, float]]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def batch_start(self, state: Any, logger: Any) -> None:
        self.times.append(state.timestamp)
        self.rows.append([numbers(group) for group in state.optimizers[0].param_groups])

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.loss))

    def of(self, key: str, group: int = 0) -> list[float]:
        """One number of one group over the batches."""
        return column(self.rows, key, group)


def numbers(group: dict[str, Any]) -> dict[str, float]:
    found = {key: group[key] for key in ("lr", "weight_decay") if key in group}
    found |= {f"betas[{i}]": beta for i, beta in enumerate(group.get("betas", ()))}
    return {key: float(value) for key, value in found.items()}


def column(rows: list[list[dict[str, float]]], key: str, group: int = 0) -> list[float]:
    return [row[group][key] for row in rows]


class At(Callback):
    """Does something to the state at the end of a batch."""

    def __init__(self, batch: int, action: Callable[[Any], None]) -> None:
        self.batch, self.action = batch, action

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            self.action(state)


class Crash(Exception):
    """What an interrupted run dies of."""


def die(state: Any) -> None:
    raise Crash


def make_trainer(
    callbacks: Iterable[Callback] = (), model: Any = None, optimizers: Any = None, **options: Any
) -> tuple[Trainer, Record]:
    """A Trainer on the CPU, of the small model and torch's SGD unless others are given, and its record."""
    model = model or NextByte()
    optimizers = optimizers or torch.optim.SGD(
        model.parameters(), lr=BASE_LR, momentum=0.9, weight_decay=BASE_WEIGHT_DECAY
    )
    record, settings = Record(), {"seed": 1, "device": "cpu", "progress_bar": False, **options}
    if "train_dataloader" not in settings:
        settings["train_dataloader"] = data()
    return Trainer(model=model, optimizers=optimizers, callbacks=[record, *callbacks], **settings), record


def finish(trainer: Trainer, record: Record, **options: Any) -> dict[str, Any]:
    """Train to the end, and say what was done."""
    trainer.fit(**options)
    trainer.close()
    return {"rows": record.rows, "losses": record.losses, "tensors": tensors_of(trainer)}


def saving(folder: Path, *moments: tuple[int, Event]) -> dict[str, Any]:
    """The Trainer's options that save a run at these batches: inside an epoch, or at the end of one."""
    return {
        "save_folder": str(folder),
        "save_filename": "{batch}.pt",
        "save_latest_filename": None,
        "save_interval": lambda state, event: (state.timestamp.batch, event) in moments,
    }


def assert_goes_on(before: dict[str, Any], after: dict[str, Any], batch: int, what: object = "") -> None:
    """Bit for bit: what each batch ran with and gave, and where parameters and optimizer state ended."""
    assert after["rows"] == before["rows"][batch:], what
    assert after["losses"] == before["losses"][batch:], what
    assert after["tensors"].keys() == before["tensors"].keys(), what
    for key, tensor in before["tensors"].items():
        assert torch.equal(after["tensors"][key], tensor), (what, key)


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """Every parameter and every tensor of the optimizer's state."""
    found = {f"model.{name}": value.detach().clone() for name, value in trainer.state.model.named_parameters()}
    for i, state in trainer.state.optimizers[0].state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"optimizer.{i}.{key}"] = value.clone()
    return found


# Runs that continue in a process of their own


def in_another_process(module: str, folder: Path) -> dict[str, Any]:
    """What the runs saved under `folder` did when another Python process took them up."""
    python_output("-m", "tests.integration.training", module, folder)
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


def resume_all(module: str, folder: Path) -> None:
    run = importlib.import_module(module).run
    paths = sorted(folder.glob("*/*.pt"))
    resumed = {f"{path.parent.name}/{path.stem}": run(path.parent.name, load_path=str(path)) for path in paths}
    for path in folder.glob("crashed/*"):
        resumed[f"crashed/{path.name}"] = run(path.name, autoresume=True, save_folder=str(path), save_interval="5ba")
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    resume_all(sys.argv[1], Path(sys.argv[2]))
