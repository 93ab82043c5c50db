"""The small real model, the data and the Trainer that these tests run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any

import torch
from composer import Callback, ComposerModel, DataSpec, Trainer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

WINDOWS = 31
BATCH_SIZE = 4
BATCHES_PER_EPOCH = 8  # seven batches of 4 windows and one of 3
BASE_LR = 0.5
BASE_WEIGHT_DECAY = 0.25
_PADDING = 256  # one above the bytes


def window_length(i: int) -> int:
    """How many bytes, and so tokens, window `i` has: from 8 to 32, uneven from batch to batch."""
    return 8 + (5 * i * i + 3 * i) % 25


def tokens_of_batch(k: int) -> int:
    """The tokens of batch `k` of an epoch."""
    return sum(window_length(i) for i in range(WINDOWS)[BATCH_SIZE * k : BATCH_SIZE * (k + 1)])


def windows() -> list[tuple[Tensor, int]]:
    """Stretches of Python's own help texts, each with the byte that comes after it."""
    texts = [topics[name].encode() for name in sorted(topics)][:WINDOWS]
    lengths = [window_length(i) for i in range(WINDOWS)]
    return [(torch.tensor(list(text[:n])), text[n]) for text, n in zip(texts, lengths, strict=True)]


def collate(rows: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    tokens = pad_sequence([tokens for tokens, _ in rows], batch_first=True, padding_value=_PADDING)
    return {"tokens": tokens, "target": torch.tensor([target for _, target in rows])}


def count_tokens(batch: dict[str, Tensor]) -> int:
    return int((batch["tokens"] != _PADDING).sum())


def data(batch_size: int = BATCH_SIZE) -> DataSpec:
    loader = DataLoader(windows(), batch_size=batch_size, collate_fn=collate)  # type: ignore[arg-type]
    return DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=lambda batch, size: [batch])


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
    """What each batch ran with, noted before its optimizer step, and the times at which it began."""

    lr: list[float] = field(default_factory=list)
    weight_decay: list[float] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)

    def batch_start(self, state: Any, logger: Any) -> None:
        (group,) = state.optimizers[0].param_groups
        self.lr.append(group["lr"])
        self.weight_decay.append(group["weight_decay"])
        self.times.append(state.timestamp)


def make_trainer(
    max_duration: Any, schedulers: Any, callbacks: tuple[Callback, ...] = (), lr: float = BASE_LR, **options: Any
) -> Trainer:
    """A Trainer of the small model on the CPU; its first callback is a `Record`."""
    model = NextByte()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=BASE_WEIGHT_DECAY)
    settings: dict[str, Any] = {
        "train_dataloader": data(),
        "seed": 1,
        "device": "cpu",
        "progress_bar": False,
    }
    return Trainer(
        model=model,
        optimizers=optimizer,
        schedulers=schedulers,
        max_duration=max_duration,
        callbacks=[Record(), *callbacks],
        **(settings | options),
    )


def record_of(trainer: Trainer) -> Record:
    return next(callback for callback in trainer.state.callbacks if isinstance(callback, Record))


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """Every parameter and every tensor of the optimizer's state."""
    found = {f"model.{name}": value.detach().clone() for name, value in trainer.state.model.named_parameters()}
    for i, state in trainer.state.optimizers[0].state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"optimizer.{i}.{key}"] = value.clone()
    return found
