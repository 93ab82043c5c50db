"""The callback where the model is in shards, on two processes.

The test starts this file as a script with a folder as its argument, to which it writes the outcome of each check.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.utils import dist
from torch.distributed.tensor import DTensor

import optim
from tests.integration.test_callback import counted, make_optimizer, make_trainer
from tests.integration.training import data, finish, windows
from tests.torchrun import Report, output_of_ranks, read_report, start_ranks
from timesched import LinearScheduler
from timesched.integrations.composer import Binding, Schedules

BATCHES, SAVED = 12, 6  # four batches make an epoch here
KINDS = {"torch": torch.optim.AdamW, "optim": optim.AdamW}
LENGTH = f"{BATCHES}ba"
TIMEOUT = 300  # seconds; it takes 20 on two cores


REST = [Binding(LinearScheduler(), "weight_decay", "matrix"), partial(counted, tags="embedding")]
ENTRIES = [Binding(LinearScheduler(1.0, 0.5), "lr"), *REST]
PARTS = [Binding(LinearScheduler(1.0, 0.5), "lr", tags) for tags in ("matrix", ["embedding", None])]
# What is not the checkpoint's: the entries, the length that the Trainer knows, and the error.
REFUSED: dict[str, tuple[list[Any], str | None, str]] = {
    "fewer": (REST, LENGTH, "has 3 schedules.* here are 2"),
    "more": ([*PARTS, *REST], LENGTH, "has 3 schedules.* here are 4"),
    "other": ([Binding(LinearScheduler(1.0, 0.25), "lr"), *REST], LENGTH, r"(?s)alpha_f=0\.5.*alpha_f=0\.25"),
    "length from fit()": (ENTRIES, None, r"Trainer\(max_duration=\.\.\.\)"),
}


def trainer_of(kind: str, entries: list[Any], **options: Any) -> Any:
    """A Trainer of the small model in shards. FSDP2 in Composer saves no sets, so tags are lists."""
    model, optimizer = make_optimizer(KINDS[kind])
    for group in optimizer.param_groups:
        group["tags"] = sorted(group.get("tags", []))
    sampler = dist.get_sampler(windows(), shuffle=False, drop_last=False)  # type: ignore[arg-type]  # a list will do
    settings = {"max_duration": LENGTH, "parallelism_config": {"fsdp": {"state_dict_type": "sharded"}}}
    settings |= {"model": model, "optimizers": optimizer, "train_dataloader": data(sampler=sampler)}
    return make_trainer([Schedules(*entries)], **(settings | options))


def goes_on(kind: str, folder: Path) -> None:
    """From the middle, to the bit."""
    before = finish(*trainer_of(kind, ENTRIES, save_folder=str(folder), save_interval=f"{SAVED}ba"))
    after = finish(*trainer_of(kind, ENTRIES, load_path=str(folder / f"ep1-ba{SAVED}")))
    assert after["rows"] == before["rows"][SAVED:] and len(after["rows"]) == BATCHES - SAVED
    for name, tensor in before["tensors"].items():
        whole, other = (
            DTensor.full_tensor(x) if isinstance(x, DTensor) else x for x in (tensor, after["tensors"][name])
        )
        assert torch.equal(whole, other), name


def refused(kind: str, folder: Path, entries: list[Any], length: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trainer_of(kind, entries, max_duration=length, load_path=str(folder / f"ep1-ba{SAVED}"))[0].fit(duration="1ba")


def test_sharded_checkpoints(tmp_path: Path) -> None:
    """They go on to the bit; other schedules are refused as elsewhere; what cannot be says what to do."""
    output = output_of_ranks([__file__, str(tmp_path)], TIMEOUT, FSDP_VERSION="2", NODE_RANK="0")
    results = read_report(tmp_path, 2)
    expected = {f"{kind} {name}" for kind in KINDS for name in ("goes on", *REFUSED)}
    assert set(results) == expected, output
    assert not any(results.values()), "\n".join(f"{name}: {error}" for name, error in results.items() if error)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.initialize_dist("cpu")
    report = Report(folder)
    for kind in KINDS:
        report.check(f"{kind} goes on", lambda kind=kind: goes_on(kind, folder / kind))
        for name, row in REFUSED.items():
            report.check(f"{kind} {name}", lambda kind=kind, row=row: refused(kind, folder / kind, *row))


if __name__ == "__main__":
    start_ranks(main, 2, Path(sys.argv[1]))
