"""Steps of Muon on several ranks: each matrix on one of them, against every rank computing all, with gloo on this CPU.

The matrices are those of a transformer of 8 layers with 512 channels. The two ways are measured in turn, and the
medians of the slowest rank are printed, with the bytes that a rank sends in a step (where every rank computes all: from
the sizes). Then, from the sizes alone, the
same for a model of 7 billion parameters on up to 1,024 GPUs.

    python benchmarks/muon_ranks.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import optim
from optim.muon.exchange import SharedMatrix
from optim.muon.ranks import BATCH, OVERHEAD, make_batches

SMALL = [(512, 512)] * 4 * 8 + [(2048, 512), (512, 2048)] * 8
LARGE = [(4096, 4096)] * 4 * 32 + [(11008, 4096)] * 2 * 32 + [(4096, 11008)] * 32  # Llama 2, 7B


class Everywhere(optim.Muon):
    """Muon that gathers every matrix on every rank."""

    def step_shared(self, works: list[Any]) -> list[Any]:
        return works


def optimizer_of(kind: type[optim.Muon], sharded: bool) -> Callable[[], Any]:
    """A step of the small model, with parameters sharded as by FSDP2, or whole as by DDP."""
    params = []
    for shape in SMALL:
        p, gradient = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for _ in range(2))
        if sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            p, gradient = (distribute_tensor(x, mesh, [Shard(0)]) for x in (p, gradient))
        params.append(Parameter(p))
        params[-1].grad = gradient
    return kind(params, lr=3e-4, process_group=not sharded).step


def measure(rounds: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ranks = dist.get_world_size()
    for name, sharded in (("sharded (FSDP2)", True), ("whole (DDP)", False)):
        ways = {"every rank": optimizer_of(Everywhere, sharded), "one rank": optimizer_of(optim.Muon, sharded)}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, step in ways.items():
                dist.barrier()
                begin = time.perf_counter()
                step()
                took = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                times[way].append(took.item())
        with counting() as count:
            ways["one rank"]()
        most = torch.tensor(count["bytes"], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            slow, fast = (statistics.median(each[1:]) for each in times.values())
            before = everywhere(SMALL, ranks, 4) / 1e6 if sharded else 0.0
            print(
                f"{ranks} ranks, {name:16s}{slow * 1e3:9.0f} ms{fast * 1e3:9.0f} ms{fast / slow:8.2f}"
                f"{before:11.1f} MB{most.item() / 1e6:9.1f} MB"
            )
    dist.destroy_process_group()


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """The bytes that this rank sends to others by the two collectives of a step."""
    count = {"bytes": 0}
    exchange, gather = dist.all_to_all_single, dist.all_gather

    def exchanged(output: Tensor, message: Tensor, expected: list[int], sent: list[int], group: Any) -> None:
        count["bytes"] += (len(message) - sent[dist.get_rank(group)]) * message.itemsize
        exchange(output, message, expected, sent, group=group)

    def gathered(received: list[Tensor], message: Tensor, group: Any) -> None:
        count["bytes"] += message.nbytes * (len(received) - 1)
        gather(received, message, group=group)

    with mock.patch.object(dist, "all_to_all_single", exchanged), mock.patch.object(dist, "all_gather", gathered):
        yield count


def everywhere(shapes: list[tuple[int, int]], ranks: int, size: int) -> float:
    """The bytes that a rank sends when shards are gathered on all: its own, to each of the others."""
    return sum(n * m for n, m in shapes) * size * (ranks - 1) / ranks


def one_rank(shapes: list[tuple[int, int]], ranks: int, size: int) -> float:
    """The same when the shards of each matrix go to one rank, and come back: on the average of the ranks."""
    return sum(n * m for n, m in shapes) * size * (ranks - 1) / ranks * 2 / ranks


def on_paper() -> None:
    """bfloat16 is what goes there and back; the gathered shards are in float32."""
    matrices = [matrix(i, shape) for i, shape in enumerate(LARGE)]
    print("\nA model of 7 billion parameters, 224 matrices (on paper)")
    print("ranks   matrices of a rank   products of a rank   exchanges   MB sent: every rank   one rank")
    for ranks in (1, 8, 64, 256, 1024):
        plan = make_batches(matrices, ranks)
        owned = [list(chain.from_iterable(batch[rank] for batch in plan)) for rank in range(ranks)]
        total = sum(x.cost for x in matrices)
        most = max(sum(x.cost for x in each) for each in owned) / total
        numbers = everywhere(LARGE, ranks, 4) / 1e6, one_rank(LARGE, ranks, 2) / 1e6
        print(
            f"{ranks:5d}{max(map(len, owned)):21d}{most:20.2%}{2 * len(plan):12d}{numbers[0]:22,.0f}{numbers[1]:11,.0f}"
        )


def matrix(number: int, shape: tuple[int, int]) -> SharedMatrix:
    short, long = sorted(shape)
    cost = OVERHEAD + short * short * (short + 2 * long)
    return SharedMatrix(work_index=0, param_index=number, split_dim=0, shapes=(torch.Size(shape),), cost=cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options.rounds)
        return
    print(f"torch {torch.__version__}, CPU, a thread for each rank, batches of {BATCH:,} elements for each rank")
    print(f"{'':25s}{'every rank':>12s}{'one rank':>12s}{'ratio':>8s}{'sent':>14s}{'sent':>12s}", flush=True)
    for ranks in ("2", "4"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, __file__]
        subprocess.run(
            [*command, "--rounds", str(options.rounds)],
            env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ},
            check=True,
        )
    on_paper()


if __name__ == "__main__":
    main()
