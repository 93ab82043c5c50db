"""Started by torchrun on 1, 2 or 4 processes: python -m torch.distributed.run ... program.py FOLDER.

The two processes save the checkpoints that all others load, so they come first. What became of each check is written to
FOLDER/results-{processes}.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

from tests.optim._distributed import checkpoints, experts, training
from tests.optim._distributed.common import CASES, Report, start


def main(folder: Path) -> None:
    _, world = start()
    report = Report(folder / f"results-{world}.json")
    for case in CASES:
        if world > 1:
            report.check(f"ddp {case}", lambda case=case: training.ddp(case))
            for way in training.WAYS[world]:
                report.check(f"{way} {case}", lambda case=case, way=way: training.sharded(case, way))
        report.check(f"init {case}", lambda case=case: checkpoints.initialised_by_dcp(case))
        if world == 2:
            report.check(f"save {case}", lambda case=case: checkpoints.save(case, folder))
        for form in checkpoints.FORMS:
            report.check(f"load {form} {case}", lambda case=case, form=form: checkpoints.load(case, form, folder))
    for case in experts.CASES:
        if world == 2:
            report.check(f"experts save {case}", lambda case=case: experts.save(case, folder))
        report.check(f"experts load {case}", lambda case=case: experts.load(case, folder))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
