"""The checks of 2, 1 and 4 processes, one launch after the other, with a folder as the argument.

Two processes save the checkpoints that the others load, so they come first. The outcome of each check is written to
results-{processes}.json in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from tests.extent import IS_DEEP, IS_PART
from tests.optim._distributed import averages, checkpoints, experts, low_precision, muon, training
from tests.optim._distributed.common import BY_OPTIMIZER, CASES, SAVED, SAVING, WHOLE_TENSOR
from tests.torchrun import Report, start_ranks
from timesched.maths.ops import COMPILES

Check = Callable[..., None]
SOME = ("AdamW", *WHOLE_TENSOR)
# On four processes. Two processes check every optimizer, and in make test-deep four processes do, too.
ON_FOUR = BY_OPTIMIZER if IS_DEEP else SOME
MASTER_ON_FOUR = low_precision.MASTER if IS_DEEP else [f"{name} master" for name in SOME]
IN_PART = ("AdamW", "Muon,")  # `make test` runs these cases of a check, or all of a check that has none of these
LATE = [SAVED[-1]]  # the checkpoint after some steps
OTHER_FORMS = [(form, partial(checkpoints.load, form=form, saved=LATE, steps=1)) for form in ("flattened", "full")]

# Kind, the function that checks it, its cases, in the order in which they run. What does not depend on how many
# processes there are is checked on two.
CHECKS: dict[int, list[tuple[str, Check, Iterable[str]]]] = {
    2: [
        ("ddp", training.ddp, BY_OPTIMIZER),
        ("initialised", checkpoints.initialised_by_dcp, BY_OPTIMIZER),
        ("preinitialized", checkpoints.preinitialized, checkpoints.OF_TORCH),
        ("sharded", training.sharded, CASES),
        ("columns", training.by_columns, SOME),
        ("save", checkpoints.save, SAVING),
        ("load", checkpoints.load, SAVING),
        *((form, load, checkpoints.OTHER_FORMS) for form, load in OTHER_FORMS),
        ("save for the other class", checkpoints.save_for_other_class, checkpoints.OF_TORCH),
        ("load of the other class", checkpoints.load_of_other_class, checkpoints.OF_TORCH),
        ("lazy", experts.keys_of_torch, ["torch"]),
        ("save experts", experts.save, BY_OPTIMIZER),
        ("load experts", experts.load, BY_OPTIMIZER),
        ("ddp bfloat16", low_precision.ddp, [*low_precision.MASTER, *low_precision.ROUNDED]),
        ("sharded bfloat16", low_precision.sharded, [*low_precision.MASTER, *low_precision.ROUNDED]),
        ("placed bfloat16", low_precision.placed, low_precision.NOISE),
        ("save bfloat16", low_precision.save, low_precision.SAVING),
        ("load bfloat16", low_precision.load, low_precision.SAVING),
        ("handed over bfloat16", low_precision.handed_over, low_precision.SAVING),
        ("changed bfloat16", low_precision.changed, ["AdamW master"]),
        ("compiled bfloat16", low_precision.compiled, low_precision.COMPILED if COMPILES else []),
        ("shared", muon.shared, muon.SHARED),
        ("scaled", muon.scaled, muon.SCALED),
        ("in batches", muon.in_batches, ["NorMuon, rows", "NorMuon, ddp"]),
        ("without gradients", muon.without_gradients, ["Muon, rows", "NorMuon, ddp"]),
        ("stacks", muon.stacks, ["Muon", "NorMuon"]),
        ("shared compiled", muon.compiled, muon.COMPILED if COMPILES else []),
        ("memory of a step", muon.memory, ["Muon, rows", "Muon, ddp"]),
        ("gathered", muon.gathered, ["NorMuon, columns"]),
        ("refused", muon.refused, ["process_group"]),
        ("average", averages.sharded, averages.KINDS),
        ("average ddp", averages.ddp, averages.KINDS),
        ("average swapped", averages.swapped, averages.KINDS),
        ("average saved", averages.save, averages.KINDS),
        ("average loaded", averages.load, averages.KINDS),
    ],
    1: [
        ("load of the other class", checkpoints.load_of_other_class, checkpoints.OF_TORCH),
        ("load bfloat16", low_precision.load, low_precision.SAVING),
    ],
    4: [
        ("empty", training.some_ranks_are_empty, ["Network"]),
        ("sharded", training.sharded, ON_FOUR),
        ("hybrid", training.hybrid, SOME),
        ("placed", training.placed, SOME),
        ("tensor parallel", training.tensor_parallel, SOME),
        ("load", partial(checkpoints.load, saved=LATE), ON_FOUR),
        *((form, load, checkpoints.OTHER_FORMS) for form, load in OTHER_FORMS),
        ("load experts", partial(experts.load, saved=LATE), ON_FOUR),
        ("sharded bfloat16", low_precision.sharded, MASTER_ON_FOUR),
        ("placed bfloat16", low_precision.placed, low_precision.NOISE),
        ("tensor parallel bfloat16", low_precision.tensor_parallel, low_precision.NOISE),
        ("load bfloat16", low_precision.load, low_precision.SAVING),
        ("shared", muon.shared, muon.SHARED_BY_4),
        ("gathered", muon.gathered, ["Muon, rows and columns", "NorMuon, rows and columns"]),
        ("average", averages.sharded, ["share", averages.BUFFERS]),
        ("average swapped", averages.swapped, ["share", averages.BUFFERS]),
        ("average loaded", averages.load, ["share", averages.BUFFERS]),
    ],
}


def checks(world: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    for kind, check, cases in CHECKS[world]:
        in_part = [case for case in cases if case.startswith(IN_PART)] if IS_PART else []
        yield from ((f"{kind} {case}", partial(check, case)) for case in in_part or cases)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    report = Report(folder)
    for name, check in checks(dist.get_world_size()):
        report.check(name, partial(check, folder))


if __name__ == "__main__":
    for world_size in CHECKS:
        start_ranks(main, world_size, Path(sys.argv[1]))
