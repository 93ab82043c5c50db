"""The callback where the model is in shards, on two processes: torchrun starts this file once, with a folder as its
argument, into which it writes what became of each check."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import DataSpec
from composer.utils import dist
from torch.utils.data import DataLoader

import optim
from optim.weight_decay_scheduler import LinearWD
from tests.integration.callback_runs import make_optimizer, make_trainer
from tests.integration.training import Record, collate, count_tokens, windows
from tests.torchrun import Report, launch
from timesched import LinearScheduler
from timesched.integrations.composer import Binding, Schedules

BATCHES, SAVED = 12, 6  # four batches make an epoch here
KINDS = {"torch": torch.optim.AdamW, "optim": optim.AdamW}
LENGTH = f"{BATCHES}ba"
TIMEOUT = 300  # seconds; it takes 20 on two cores


def counted(optimizer: Any) -> LinearWD:
    return LinearWD(optimizer, 1.0, 0.0, 20, param_group_tags="embedding")


RATES = Binding(LinearScheduler(1.0, 0.5), "lr")
ENTRIES = [RATES, Binding(LinearScheduler(), "weight_decay", "matrix"), counted]
PARTS = [Binding(RATES.schedule, "lr", tags) for tags in ("matrix", ["embedding", None])]


def trainer_of(kind: str, entries: list[Any], **options: Any) -> Any:
    """A Trainer of the small model in shards. FSDP2 in Composer saves no sets, so tags are lists."""
    model, optimizer = make_optimizer(KINDS[kind])
    for group in optimizer.param_groups:
        group["tags"] = sorted(group.get("tags", []))
    rows = windows()
    sampler = dist.get_sampler(rows, shuffle=False, drop_last=False)  # type: ignore[arg-type]  # a list will do
    loader = DataLoader(rows, 4, collate_fn=collate, sampler=sampler)  # type: ignore[arg-type]  # as above
    spec = DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=lambda batch, size: [batch])
    shards = {"fsdp": {"state_dict_type": "sharded"}}
    settings = {"max_duration": LENGTH, "parallelism_config": shards, "model": model, "optimizers": optimizer}
    return make_trainer([Schedules(*entries)], train_dataloader=spec, **(settings | options))


def finish(trainer: Any, record: Record, duration: str | None = None) -> dict[str, Any]:
    trainer.fit(duration=duration)
    trainer.close()
    whole = {name: p.full_tensor().clone() for name, p in trainer.state.model.named_parameters()}
    return {"rows": record.rows, "tensors": whole}


class Checks:
    """What is checked, with the folder of the checkpoints and what the runs did that saved them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: dict[str, dict[str, Any]] = {}

    def path(self, kind: str) -> str:
        return str(self.folder / kind / f"ep1-ba{SAVED}")

    def save(self, kind: str) -> None:
        there = {"save_folder": str(self.folder / kind), "save_interval": f"{SAVED}ba"}
        self.before[kind] = finish(*trainer_of(kind, ENTRIES, **there))

    def go_on(self, kind: str) -> None:
        options = {"max_duration": LENGTH, "load_path": self.path(kind)}
        after = finish(*trainer_of(kind, ENTRIES, **options), f"{BATCHES - SAVED}ba")
        before = self.before[kind]
        assert after["rows"] == before["rows"][SAVED:]
        for name, tensor in before["tensors"].items():
            assert torch.equal(after["tensors"][name], tensor), name

    def refuse(self, kind: str, entries: list[Any], length: str | None, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            trainer_of(kind, entries, max_duration=length, load_path=self.path(kind))[0].fit(duration="1ba")

    def all(self) -> dict[str, Callable[[], None]]:
        lower = [Binding(LinearScheduler(1.0, 0.25), "lr"), *ENTRIES[1:]]
        other = r"(?s)alpha_f=0\.5.*alpha_f=0\.25"
        found: dict[str, Callable[[], None]] = {}
        for kind in KINDS:
            found |= {
                f"{kind}: saved": partial(self.save, kind),
                f"{kind}: goes on": partial(self.go_on, kind),
                f"{kind}: fewer": partial(self.refuse, kind, ENTRIES[1:], LENGTH, "has 3 schedules.* here are 2"),
                f"{kind}: more": partial(
                    self.refuse, kind, [*PARTS, *ENTRIES[1:]], LENGTH, "has 3 schedules.* here are 4"
                ),
                f"{kind}: other": partial(self.refuse, kind, lower, LENGTH, other),
            }
        return found | {
            "the length from fit()": partial(self.refuse, "torch", ENTRIES, None, r"Trainer\(max_duration=\.\.\.\)")
        }


def test_sharded_checkpoints(tmp_path: Path) -> None:
    """They go on to the bit; other schedules are refused as elsewhere; what cannot be says what to do."""
    results, output = launch(Path(__file__), 2, tmp_path, TIMEOUT, FSDP_VERSION="2", NODE_RANK="0")
    assert list(results) == list(Checks(tmp_path).all()), output
    assert not any(results.values()), "\n".join(f"{name}: {error}" for name, error in results.items() if error)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.initialize_dist("cpu")
    report = Report(folder)
    for name, check in Checks(folder).all().items():
        report.check(name, check)
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
