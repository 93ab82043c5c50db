"""Muon on several processes: each matrix is made orthogonal on one of them, and all come to what one process comes to.

A case names the class and how its parameters lie; all processes are given the same gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import optim
from optim.muon import newton_schulz
from optim.muon import ranks as muon_ranks
from tests.optim._distributed.common import local, mesh
from tests.optim._distributed.low_precision import assert_bits
from tests.optim.compiling import fresh, graphs
from tests.optim.problems import PeakBytes

# Ten matrices of 16 rows and more, some of them uneven shards, and a stack of three.
SHAPES = [(64, 32), (48, 80), (128, 64), (33, 17), (64, 64), (64, 64), (3, 32, 16), (96, 64), (17, 64), (50, 20)]
STEPS = 3
# For a graph, which takes longer with each matrix: two of one shape, which are one batch, an uneven one, and a stack.
FEW = [(64, 64), (64, 64), (33, 17), (3, 32, 16)]
ROWS: list[Any] = [Shard(0)]
PLACED: dict[str, Any] = {
    "rows": lambda: (mesh(), ROWS),
    "columns": lambda: (mesh(), [Shard(1)]),
    "replicas of rows": lambda: (mesh(2, 2), [Replicate(), Shard(0)]),
    "rows and columns": lambda: (mesh(2, 2), [Shard(0), Shard(1)]),
    "ddp": None,
}
KINDS: dict[str, dict[str, Any]] = {
    "Muon": {},
    "NorMuon": {},
    "Muon split": {"num_heads": 2, "ns_dtype": torch.bfloat16, "cautious_weight_decay": True},
    "Muon blocks": {"ns_dtype": torch.bfloat16, "adjust_lr_fn": "match_rms_adamw"},  # scaled after the iterations
    "NorMuon float64": {"ns_dtype": torch.bfloat16, "adjust_lr_fn": "match_rms_adamw"},
    "Muon master": {"master_weights": True, "enable_global_step": True},
}
SHARED = [f"{kind}, {place}" for kind in KINDS for place in ("rows", "ddp")] + ["Muon, columns", "Muon split, columns"]
SHARED_BY_4 = [f"{kind}, {place}" for kind in ("Muon", "NorMuon") for place in ("rows", "replicas of rows", "ddp")]
SCALED = ["NorMuon, rows", "Muon split, columns", "NorMuon float64, ddp", "Muon blocks, ddp"]
COMPILED = ["NorMuon, rows", "Muon, ddp"]


def parameters(kind: str, place: str | None, few: bool = False) -> list[Parameter]:
    dtype = torch.float64 if "64" in kind else torch.bfloat16 if "master" in kind else torch.float32
    generator = torch.Generator().manual_seed(0)
    shapes = [(2 * (n // 2), *rest) for n, *rest in SHAPES] if "split" in kind else FEW if few else SHAPES
    whole = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [Parameter(placed(x, place)) for x in whole]


def placed(x: Tensor, place: str | None) -> Tensor:
    where = PLACED[place] if place else None
    return x if where is None else distribute_tensor(x, *where())


def built(kind: str, place: str | None, few: bool = False, **more: Any) -> tuple[list[Parameter], optim.Muon]:
    """Two groups, the second with AdamW for a vector too; `place` None: of one process."""
    params = parameters(kind, place, few)
    half = len(params) // 2
    vector = Parameter(torch.ones(5, dtype=params[0].dtype))
    groups: list[dict[str, Any]] = [{"params": params[:half]}, {"params": params[half:], "lr": 0.01}]
    groups.append({"params": [vector], "algorithm": "adamw", "lr": 0.1})
    options = {**KINDS[kind], **more, **({"process_group": True} if place == "ddp" else {})}
    if "blocks" in kind:
        groups[0]["params"] = [x for x in params[:half] if x is not params[2]]
        groups.append({"params": [params[2]], "split_sizes": (96, 16, 16)})
    return [*params, vector], getattr(optim, kind.partition(" ")[0])(groups, **options)


def give_gradients(params: list[Parameter], place: str | None, step: int, scale: float = 1.0) -> None:
    for i, p in enumerate(params):
        generator = torch.Generator().manual_seed(100 * step + i)
        gradient = torch.randn(p.shape, generator=generator).to(p.dtype) * scale
        p.grad = placed(gradient, place) if isinstance(p, DTensor) else gradient


def trained(kind: str, place: str | None, steps: int = STEPS, scale: float = 1.0, **more: Any) -> dict[str, Tensor]:
    """All parameters and states in the end, gathered."""
    params, optimizer = built(kind, place, **more)
    for step in range(1, steps + 1):
        give_gradients(params, place, step, scale)
        optimizer.step()
    return found(params, optimizer)


def found(params: list[Parameter], optimizer: optim.Muon) -> dict[str, Tensor]:
    result = {}
    for i, p in enumerate(params):
        for key, x in {"": p.detach(), **optimizer.state[p]}.items():
            result[f"{i} {key}"] = (x.full_tensor() if isinstance(x, DTensor) else x).clone()
    return result


alone = functools.cache(functools.partial(trained, place=None))


@contextmanager
def counting() -> Iterator[dict[str, Any]]:
    """The matrices that are multiplied here, the calls of collectives, and the bytes that this rank sends by them."""
    count: dict[str, Any] = {"products": 0, "exchanges": 0, "gathers": 0}
    addmm, exchange, gather = newton_schulz._addmm, dist.all_to_all_single, dist.all_gather

    def product(x: Tensor, *args: Any) -> Tensor:
        count["products"] += len(x) if x.dim() == 3 else 1
        return addmm(x, *args)

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            count[name] += 1
            return call(*args, **kwargs)

        return run

    with (
        mock.patch.object(newton_schulz, "_addmm", product),
        mock.patch.object(dist, "all_to_all_single", counted("exchanges", exchange)),
        mock.patch.object(dist, "all_gather", counted("gathers", gather)),
    ):
        yield count


def everywhere(x: Any) -> list[Any]:
    result: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(result, x)
    return result


def shared(case: str, folder: Path) -> None:
    """The bits of one process, in as many products, of which no rank has more than 1.5 times its share."""
    kind, place = case.split(", ")
    with counting() as one:
        whole = trained(kind, None)
    with counting() as mine:
        found = trained(kind, place)
    assert_bits(found, whole)
    ranks = everywhere(mine["products"])
    replicas = 2 if "replicas" in place else 1
    assert sum(ranks) <= 1.1 * replicas * one["products"]
    assert max(ranks) <= 1.5 * replicas * one["products"] / len(ranks)
    batches = STEPS * (2 if "blocks" in kind else 1)  # as blocks are sent in another dtype
    assert (mine["exchanges"], mine["gathers"]) == ((0, batches) if place == "ddp" else (2 * batches, 0))


def scaled(case: str, folder: Path) -> None:
    """Gradients that are scaled by a power of two give the same bits of matrices and second moments."""
    kind, place = case.split(", ")
    unscaled = alone(kind)
    matrices = [key for i, _ in enumerate(SHAPES) for key in (f"{i} ", f"{i} variance_neuron") if key in unscaled]
    for scale in (2.0**-100, 2.0**60):
        found = trained(kind, place, scale=scale)
        assert_bits({key: found[key] for key in matrices}, {key: unscaled[key] for key in matrices})


def in_batches(case: str, folder: Path) -> None:
    """Of few elements: two exchanges for each batch, and the same bits."""
    kind, place = case.split(", ")
    with mock.patch.object(muon_ranks, "BATCH", 1 << 12), counting() as count:
        found = trained(kind, place)
    assert_bits(found, alone(kind))
    assert count["exchanges"] + 2 * count["gathers"] > 4 * STEPS


def gathered(case: str, folder: Path) -> None:
    """Split along two dimensions of a mesh, or for NorMuon within rows: every rank computes all."""
    kind, place = case.split(", ")
    params, optimizer = built(kind, place)
    with counting() as count:
        for step in range(1, STEPS + 1):
            give_gradients(params, place, step)
            optimizer.step()
    assert count["exchanges"] == 0 or place == "columns"  # which are rows of the matrices in a stack
    for key, x in found(params, optimizer).items():
        assert torch.allclose(x, alone(kind)[key], rtol=0, atol=1e-6), key


def without_gradients(case: str, folder: Path) -> None:
    """A matrix without a gradient on all ranks, and a frozen one: both are left alone, the others move as ever."""
    kind, place = case.split(", ")
    results = []
    for where in (place, None):
        params, optimizer = built(kind, where)
        params[1].requires_grad_(False)
        before = [x.detach().clone() for x in (params[1], params[4])]
        for step in range(1, STEPS + 1):
            give_gradients(params, where, step)
            params[1].grad = params[4].grad = None
            optimizer.step(lambda: torch.ones(()))
        assert all(torch.equal(local(x), local(y)) for x, y in zip((params[1], params[4]), before))
        results.append(found(params, optimizer))
    assert_bits(*results)


def stacks(case: str, folder: Path) -> None:
    """A stack whose matrices lie whole on the ranks: each rank computes its own, and nothing is sent."""
    p = Parameter(distribute_tensor(torch.randn(5, 32, 16, generator=torch.Generator().manual_seed(0)), mesh(), ROWS))
    q = Parameter(p.full_tensor().detach().clone())
    gradient = torch.randn(5, 32, 16, generator=torch.Generator().manual_seed(1))
    with counting() as count:
        optimizer = getattr(optim, case)([p])
        p.grad = distribute_tensor(gradient, mesh(), ROWS)
        with NoCollectives():
            optimizer.step()
    assert count["products"] == 10 * len(local(p)) and count["exchanges"] == count["gathers"] == 0
    other = getattr(optim, case)([q])
    q.grad = gradient
    other.step()
    assert torch.allclose(p.full_tensor(), q, rtol=0, atol=1e-6)


class NoCollectives(TorchDispatchMode):
    """An error for an operation that talks to other ranks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "c10d" not in str(func), func
        return func(*args, **(kwargs or {}))


def compiled(case: str, folder: Path) -> None:
    """One graph of AdamW; with matrices that are not compiled, the steps of one process."""
    kind, place = case.split(", ")
    results = []
    for where, most in ((place, 1), (None, 0)):
        with fresh():
            params, optimizer = built(kind, where, few=True)
            if where:
                optimizer.compile(backend="eager")
            else:
                optimizer.hold_tensors()
            for step in range(1, STEPS + 1):
                give_gradients(params, where, step)
                optimizer.step()
                for group in optimizer.param_groups:
                    for key in {"lr", "momentum", "beta2", "weight_decay"} & group.keys():
                        group[key].mul_(0.9)
            assert graphs() == most
        results.append(found(params, optimizer))
    for key, x in results[0].items():
        assert torch.allclose(x, results[1][key], rtol=0, atol=1e-6), key


def memory(case: str, folder: Path) -> None:
    """A step holds two batches at most, whatever the number of matrices. (Of a batch a rank owns four.)"""
    kind, place = case.split(", ")
    size, most = 64, []
    four = {"BATCH": 4 * size * size * (dist.get_world_size() if place == "ddp" else 1)}
    for count in (16, 48):
        params = [Parameter(placed(torch.zeros(size, size), place)) for _ in range(count)]
        optimizer = getattr(optim, kind)(params, process_group=place == "ddp")
        give_gradients(params, place, 1)
        beside = [local(x) for p in params for x in (p, p.grad, *optimizer.state[p].values())]
        alone = mock.patch.object(newton_schulz, "TOGETHER", size * size)
        calls = {name: on_copies(getattr(dist, name)) for name in ("all_to_all_single", "all_gather")}
        patched = mock.patch.multiple(dist, **calls)
        with mock.patch.multiple(muon_ranks, **four), patched, alone, PeakBytes(*beside) as held:
            optimizer.step()
        most.append(held.most)
    # A batch is 4 matrices for each rank. Beside two of them: one while it is made orthogonal.
    assert most[0] == most[1] <= (2 * 4 * dist.get_world_size() + 6) * 4 * size * size, most


def on_copies(call: Callable[..., Any]) -> Callable[..., Any]:
    """A collective on tensors that do not count, as the threads of gloo hold them until whenever."""

    def run(received: Any, message: Tensor, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            copies = [x.clone() for x in received] if isinstance(received, list) else received.clone()
            call(copies, message.clone(), *args, **kwargs)
            torch._foreach_copy_(*((x if isinstance(x, list) else [x]) for x in (received, copies)))

    return run


def refused(case: str, folder: Path) -> None:
    for wrong in ("world", 3):
        try:
            optim.Muon([Parameter(torch.ones(2, 2))], process_group=wrong)
        except TypeError as error:
            assert f"process_group={wrong!r}" in str(error) and "init_process_group" in str(error)
        else:
            raise AssertionError(wrong)
