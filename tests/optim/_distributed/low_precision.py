"""Bfloat16 models on several processes: master weights and noise are those of one process, and checkpoints keep them.

A case names an optimizer and how it keeps bfloat16 parameters, such as "AdamW master". All processes are given the same
gradients, so that only norms, and the last elements of a shard, can be computed otherwise than by one process.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import optim
from optim.base.sharding import distribute_like
from optim.precision.bits import join
from tests.optim._distributed import checkpoints
from tests.optim._distributed.common import (
    BY_OPTIMIZER,
    CASES,
    Network,
    Optimizers,
    assert_alike,
    batch,
    copies,
    local,
    mesh,
    named,
    optimizers_of,
    shard,
    update,
)
from tests.optim._distributed.training import Block
from tests.optim.compiling import by_hand, fresh, graphs
from tests.optim.problems import flat

MODES: dict[str, dict[str, Any]] = {
    "master": {"master_weights": True},
    "rounded": {"stochastic_rounding": True, "rounding_seed": 3},
    "both": {"master_weights": True, "stochastic_rounding": True, "state_dtype": torch.bfloat16},
    "neither": {},
}
# What is rounded at random shows a difference in the last bit. Here factors are powers of two: there is none.
EXACT: dict[str, Any] = {
    "SGD": functools.partial(optim.SGD, momentum=0.5),
    "Lion": functools.partial(optim.Lion, betas=(0.5, 0.75)),
}
MASTER, ROUNDED = ([f"{name} {mode}" for name in BY_OPTIMIZER] for mode in ("master", "rounded"))
NOISE = [f"{name} {mode}" for name in EXACT for mode in ("rounded", "both")]
SAVING = ["SGD rounded", "Lion both", "AdamW both", *(f"{x} master" for x in ("AdamW", "Lamb", "Adafactor", "Muon"))]
COMPILED = {"AdamW master": "update", "SGD rounded": "step"}
AT, STEPS = 2, 4  # there is a checkpoint after step 2


def odd() -> nn.Module:
    """In bfloat16; of some parameters a rank has nothing."""
    return Network().bfloat16()


def optimizers_for(case: str, model: nn.Module, other_lr: bool = False) -> Any:
    name, mode = case.split()
    if name in EXACT and mode != "master":
        return [EXACT[name](model.parameters(), lr=2**-9 if other_lr else 2**-11, **MODES[mode])]
    return optimizers_of(name, model, other_lr, **MODES[mode])


def bound(case: str) -> float:
    """For float32: four spacings at 1."""
    return max(CASES[case.partition(" ")[0]].bound, 2**-21)


def give_gradients(model: nn.Module, step: int) -> None:
    """Made in full, and distributed as the parameters are."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = distribute_like(torch.randn(p.shape, generator=generator).to(p.dtype), p)


def train(model: nn.Module, optimizers: Optimizers, first: int, last: int) -> None:
    for step in range(first, last + 1):
        give_gradients(model, step)
        update(optimizers)


@functools.cache
def alone(case: str) -> dict[str, Tensor]:
    """What a single process has in the end."""
    model = odd()
    optimizers = optimizers_for(case, model)
    train(model, optimizers, 1, STEPS)
    return copies(model, optimizers)


def bits(x: Tensor) -> Tensor:
    """As bytes, in which NaN equals itself."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def assert_bits(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert mine.keys() == other.keys(), sorted(mine.keys() ^ other.keys())
    for key, x in mine.items():
        assert x.dtype == other[key].dtype and torch.equal(bits(x), bits(other[key])), (key, x, other[key])


def assert_parts(model: nn.Module, optimizers: Optimizers, whole: dict[str, Tensor], most: float = 0.0) -> None:
    """This rank has its part of what a single process has: to the bit, or in float32 to within `most`."""
    mine = named(model, optimizers)
    assert mine.keys() == whole.keys(), sorted(mine.keys() ^ whole.keys())
    mine, other = copies(model, optimizers), {key: local(distribute_like(whole[key], x)) for key, x in mine.items()}
    if most:
        assert_alike(in_float32(mine), in_float32(other), most)
    else:
        assert_bits(mine, other)


def in_float32(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """With float32 values instead of parameters and their remainders, where there are any."""
    rest = {key: x for key, x in found.items() if not key.endswith(": remainder")}
    return {k: join(x, found[f"{k}: remainder"]) if f"{k}: remainder" in found else x for k, x in rest.items()}


def ddp(case: str, folder: Path) -> None:
    """Replicas have the same bits after every step, of what is rounded at random and of remainders too."""
    model = odd()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizers = optimizers_for(case, model)
    for step in range(1, STEPS + 1):
        x, y = (part.chunk(dist.get_world_size())[dist.get_rank()].bfloat16() for part in batch(step))
        (wrapped(x) - y).square().mean().backward()
        update(optimizers)
        mine = torch.cat([bits(x) for x in copies(model, optimizers).values()])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        assert all(torch.equal(mine, other) for other in everyone)


def sharded(case: str, folder: Path) -> None:
    """As a single process; float32_parameters() gathers what that has, and sets another optimizer to the same bits."""
    model, again = shard(odd()), shard(odd())
    optimizers, others = optimizers_for(case, model), optimizers_for(case, again)
    train(model, optimizers, 1, STEPS)
    whole = alone(case)
    if case in ROUNDED:  # what is off by a spacing of float32 is rounded otherwise once in 2**16 times
        found = {key: (local(p), local(distribute_like(whole[key], p))) for key, p in model.named_parameters()}
        assert sum(int((x != y).sum()) for x, y in found.values()) <= 2, found
        return
    assert_parts(model, optimizers, whole, bound(case))
    values = {p: value for one in optimizers for p, value in one.float32_parameters().items()}
    assert all(value.placements == p.placements for p, value in values.items())
    gathered = {key: values[p].full_tensor() for key, p in model.named_parameters()}
    assert_alike(gathered, {key: in_float32(whole)[key] for key in gathered}, bound(case))
    for one, other in zip(optimizers, others):
        other.load_float32_parameters({q: values[p] for p, q in zip(flat(one), flat(other))})
    mine, theirs = copies(model, optimizers), copies(again, others)
    keys = [key for key in mine if key in gathered or key.endswith(": remainder")]
    assert_bits({key: mine[key] for key in keys}, {key: theirs[key] for key in keys})


def placed(case: str, folder: Path) -> None:
    """The noise goes by the place in the full tensor: split along any dimension, or two, and in large shards."""
    grid = mesh() if dist.get_world_size() == 2 else mesh(2, 2)
    rows, columns, last, copied = Shard(0), Shard(1), Shard(2), [Replicate()] * grid.ndim
    flat_kinds = list(itertools.product((rows, columns, *copied[:1]), repeat=grid.ndim))
    kinds = [(shape, kind) for shape in ((7, 5), (3, 2), (1, 4), (5, 2, 3)) for kind in flat_kinds]
    kinds += [((5, 2, 3), (last,) * grid.ndim)]
    kinds += [((613, 1021), (kind,) * grid.ndim) for kind in (rows, columns)]  # half of it is more than a block
    generator = torch.Generator().manual_seed(0)
    whole = nn.ParameterList([torch.randn(shape, generator=generator).bfloat16() for shape, _ in kinds])
    everywhere = [DTensor.from_local(p.detach().clone(), grid, copied, run_check=False) for p in whole]
    compare(case, nn.ParameterList([x.redistribute(grid, kind) for x, (_, kind) in zip(everywhere, kinds)]), whole)


def tensor_parallel(case: str, folder: Path) -> None:
    """The same where rows of a layer are split twice, and so dealt out in strides."""
    model = Block().bfloat16()
    parallelize_module(model, mesh(2, 2)["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh(2, 2)["data"])
    compare(case, model, Block().bfloat16())


def compare(case: str, model: nn.Module, whole: nn.Module) -> None:
    optimizers, other = optimizers_for(case, model), optimizers_for(case, whole)
    train(model, optimizers, 1, 2)
    train(whole, other, 1, 2)
    assert_parts(model, optimizers, copies(whole, other))


def compiled(case: str, folder: Path) -> None:
    """The update, or the user's own step, on distributed tensors is one graph, which does what an eager step does."""
    torch.manual_seed(0)
    model, other = (shard(nn.Sequential(nn.Linear(5, 3)).bfloat16()) for _ in range(2))
    other.load_state_dict(model.state_dict())
    (optimizer,), eager = optimizers_for(case, model), optimizers_for(case, other)
    with fresh():
        if COMPILED[case] == "update":
            optimizer.compile(backend="eager")
            take = optimizer.step
        else:
            optimizer.hold_tensors()
            take = by_hand(optimizer.step, "eager")
        for step in range(1, AT + 1):
            give_gradients(model, step)
            take()
        assert graphs() == 1
    train(other, eager, 1, AT)
    mine, theirs = copies(model, [optimizer]), copies(other, eager)
    assert_alike(in_float32(mine), in_float32(theirs), bound(case))


# Checkpoints

UNINTERRUPTED: dict[str, dict[str, Tensor]] = {}  # what this rank had at the end of the run that saved


def save(case: str, folder: Path) -> None:
    """Two processes save on the way, in all forms, and beside them what there was."""
    model = shard(odd())
    optimizers = optimizers_for(case, model)
    train(model, optimizers, 1, AT)
    for form in (*checkpoints.OPTIONS, "full"):
        write(checkpoints.content(model, optimizers, form), form, folder / f"low {case} {form}")
    found = named(model, optimizers).items()
    write({key: x.full_tensor() if isinstance(x, DTensor) else x for key, x in found}, "full", folder / f"low {case}")
    train(model, optimizers, AT + 1, STEPS)
    UNINTERRUPTED[case] = copies(model, optimizers)


def write(there: dict[str, Any], form: str, path: Path) -> None:
    if form != "full":
        dcp.save(there, checkpoint_id=path)
    elif dist.get_rank() == 0:
        torch.save(there, path)


def load(case: str, folder: Path) -> None:
    """Sharded and in one piece, from all forms: the same bits in the same dtypes, and the run goes on."""
    for form, model in itertools.product((*checkpoints.OPTIONS, "full"), checkpoints.fresh_models(odd)):
        optimizers = optimizers_for(case, model, other_lr=True)
        train(model, optimizers, 7, 7)
        read = checkpoints.read_full if form == "full" else checkpoints.read
        read(model, optimizers, form, folder / f"low {case} {form}")
        assert_parts(model, optimizers, torch.load(folder / f"low {case}", weights_only=True))
        train(model, optimizers, AT + 1, STEPS)
        if dist.get_world_size() == 2 and isinstance(next(model.parameters()), DTensor):
            assert_bits(copies(model, optimizers), UNINTERRUPTED[case])
        elif case in (*MASTER, *NOISE):
            assert_parts(model, optimizers, alone(case), bound(case))


def handed_over(case: str, folder: Path) -> None:
    """As full tensors that every rank has, or the first, which hands them round."""
    model = shard(odd())
    optimizers = optimizers_for(case, model)
    train(model, optimizers, 1, AT)
    for offload, handed in ((False, False), (False, True), (True, True)):
        options = StateDictOptions(full_state_dict=True, cpu_offload=offload)
        there = get_optimizer_state_dict(model, optimizers, options=options)
        again = shard(odd())
        others = optimizers_for(case, again)
        train(again, others, 1, 1)
        options.broadcast_from_rank0 = handed
        set_optimizer_state_dict(again, others, there, options=options)
        again.load_state_dict(model.state_dict())
        assert_bits(copies(again, others), copies(model, optimizers))


def changed(case: str, folder: Path) -> None:
    """Between optimizers with and without master weights, and models in bfloat16 and float32: what fits is taken.

    For torch, the files of a run without master weights lack something, unless it is told to load what there is.
    """
    plain = f"{case.partition(' ')[0]} neither"
    kinds = [(case, torch.bfloat16), (plain, torch.bfloat16), (plain, torch.float32)]
    for (first, dtype), (second, other) in itertools.permutations(kinds, 2):
        model = shard(Network().to(dtype))
        optimizers = optimizers_for(first, model)
        train(model, optimizers, 1, AT)
        saved = copies(model, optimizers)
        for form in ("full", "in memory", *checkpoints.OPTIONS):
            again, path = shard(Network().to(other)), folder / f"low {first} {dtype} {second} {other} {form}"
            others = optimizers_for(second, again)
            expected = {k: saved.get(k, torch.zeros_like(x)).to(x.dtype) for k, x in copies(again, others).items()}
            there = checkpoints.content(model, optimizers, "sharded" if form == "in memory" else form)
            if form == "in memory":
                train(again, others, 1, 1)  # so that remainders are zeros no more
            else:
                write(there, form, path)
            if form == "full":
                checkpoints.read_full(again, others, form, path)
            else:
                if form != "in memory":
                    there = checkpoints.content(again, others, form)
                    dcp.load(there, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=True))
                states = {"model_state_dict": there["model"], "optim_state_dict": there["optimizer"]}
                set_state_dict(again, others, **states, options=checkpoints.OPTIONS.get(form))
            assert_bits(copies(again, others), expected)
            train(again, others, AT + 1, STEPS)
