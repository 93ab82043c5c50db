"""What a tick costs where the counts of two ranks are summed, against the all_reduce in it, with gloo on this CPU."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from timesched import Clock

ROUNDS, CALLS = 21, 200


def measure() -> None:
    dist.init_process_group("gloo")
    alone, summed = Clock("1e12tok"), Clock("1e12tok", process_group=True)
    numbers = torch.zeros(6, dtype=torch.int64)
    calls: dict[str, Callable[[], object]] = {
        "tick(samples, tokens), alone": lambda: alone.tick(samples=8, tokens=4096),
        "tick(samples, tokens), summed": lambda: summed.tick(samples=8, tokens=4096),
        "all_reduce of six integers": lambda: dist.all_reduce(numbers),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begin) / CALLS)
    if dist.get_rank() == 0:
        for name, each in times.items():
            print(f"{name:32} {statistics.median(each) * 1e6:8.1f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        measure()
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        sys.exit(subprocess.call(command, env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}))
