"""Started by torchrun on 1, 2 or 4 processes, with a folder as its argument.

Two processes save the checkpoints that all others load, so they come first. What became of each check is written to
results-{processes}.json in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch.distributed as dist

from tests.optim._distributed import checkpoints, experts, meshes, schedules, training
from tests.optim._distributed.common import CASES, FIFTEEN, SAVING, WHOLE_TENSOR, start
from tests.torchrun import Report

Check = tuple[str, str, Callable[..., None]]


def checks(world: int) -> Iterator[Check]:
    """Kind, case, and the function that checks it, in the order in which they run.

    What does not depend on how many processes there are is checked on two.
    """
    if world == 2:
        yield from (("ddp", case, training.ddp) for case in FIFTEEN)
        yield from (("initialised", case, checkpoints.initialised_by_dcp) for case in FIFTEEN)
    if world > 1:
        yield from (("sharded", case, training.sharded) for case in (CASES if world == 2 else FIFTEEN))
        ways = [meshes.placed, meshes.tensor_parallel, *([] if meshes.NO_HYBRID else [meshes.hybrid])]
        for way in [meshes.columns] if world == 2 else ways:
            yield from ((way.__name__, case, way) for case in ("AdamW", *WHOLE_TENSOR))
        yield from (("scheduled", case, schedules.scheduled) for case in schedules.SCHEDULED)
        yield "empty", "Network", training.some_ranks_are_empty
    if world == 2:
        yield from (("save", case, checkpoints.save) for case in SAVING)
    yield from (("load", case, checkpoints.load) for case in (SAVING if world == 2 else FIFTEEN))
    for form in ("flattened", "full"):
        load = partial(checkpoints.load, form=form, saved=(5,), steps=1)
        yield from ((form, case, load) for case in checkpoints.OTHER_FORMS)
    if world == 2:
        yield "lazy", "torch", experts.keys_of_torch
        yield from (("save experts", case, experts.save) for case in FIFTEEN)
    some = ("SGD", "Adafactor", "AdamW", "Muon")
    yield from (("load experts", case, experts.load) for case in (FIFTEEN if world > 1 else some))


def main(folder: Path) -> None:
    world = start()
    report = Report(folder)
    for kind, case, check in checks(world):
        report.check(f"{kind} {case}", partial(check, case, folder))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
