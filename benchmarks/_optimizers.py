"""What the benchmarks of optimizers share: parameter sets, what each optimizer is compared with, the memory limit.

Hyperparameters are the same for all in a row, as far as they have them; weight decay is on where it is decoupled, and
state is float32. Where a peer computes something else under the same name, the comment at its row says what.
Some peers (optimi's foreach, pytorch_optimizer's Muon) use the gradients as scratch space: nothing depends on the
numbers here, so they may.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import inspect
import math
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _timing import in_turn

import optim

Shapes = tuple[tuple[int, ...], ...]
Step = Callable[[], Any]


def transformer(width: int = 512, layers: int = 8, vocabulary: int = 8192, context: int = 512) -> Shapes:
    """A GPT, embeddings, then layers with biases and two norms each: 29.7 million parameters in 100 tensors."""
    attention: Shapes = ((3 * width, width), (3 * width,), (width, width), (width,))
    perceptron: Shapes = ((4 * width, width), (4 * width,), (width, 4 * width), (width,))
    norm: Shapes = ((width,), (width,))
    return ((vocabulary, width), (context, width), *(norm + attention + norm + perceptron) * layers, *norm)


SETS: dict[str, Shapes] = {
    **{f"{count}x{side}": ((side, side),) * count for count in (12, 100) for side in (8, 64)},
    "small": ((64, 64),) * 300,
    "transformer": transformer(),
    "one": ((4096, 4096),),
}
LEAST = 2e-3  # seconds that a round lasts at least


@dataclass(frozen=True)
class Row:
    """One optimizer: its arguments, the same for torch's class of the same name, and the peers that have it."""

    arguments: dict[str, Any]
    peers: tuple[tuple[str, str, dict[str, Any]], ...] = ()  # (package, class, arguments)
    torchs: dict[str, Any] | None = None  # torch's arguments where they differ
    fused: bool = False  # torch has a fused kernel on CPU
    elementwise: bool = True


_ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
_DECAYED = {**_ADAM, "weight_decay": 0.01}
_LION = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.01}
_MUON = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.01, "nesterov": True, "ns_steps": 5}
_FACTORED = {"betas": (None, 0.999), "relative_step": False}
_BALL = {"consume_grad": False}  # heavyball otherwise drops the gradients in the step

ROWS: dict[str, Row] = {
    "SGD": Row(
        {"lr": 1e-3, "momentum": 0.9},
        (
            ("optimi", "SGD", {"lr": 1e-3, "momentum": 0.9}),
            ("pytorch_optimizer", "SGDW", {"lr": 1e-3, "momentum": 0.9}),
            ("heavyball", "SGD", {"lr": 1e-3, "beta": 0.9, **_BALL}),
        ),
        fused=True,
    ),
    # pytorch_optimizer's ASGD is another algorithm.
    "ASGD": Row({"lr": 0.01}),
    "Adadelta": Row({"lr": 1.0}, (("pytorch_optimizer", "AdaDelta", {"lr": 1.0}),)),
    # torch's Adafactor is another variant (no clipping by a moving threshold, another floor of the learning rate)
    # of about as much work; pytorch_optimizer's is ours: relative to the parameter's scale, without momentum.
    "Adafactor": Row(
        {"lr": 1e-3, "weight_decay": 0.01},
        (("pytorch_optimizer", "AdaFactor", {"lr": 1e-3, "weight_decay": 0.01, **_FACTORED}),),
        elementwise=False,
    ),
    "Adagrad": Row({"lr": 0.01, "eps": 1e-10}, fused=True),
    "Adam": Row(_ADAM, (("optimi", "Adam", _ADAM),), fused=True),
    # heavyball's division clamps the denominator from below where the others add eps.
    "AdamW": Row(_DECAYED, (("optimi", "AdamW", _DECAYED), ("heavyball", "AdamW", {**_DECAYED, **_BALL})), fused=True),
    "Adamax": Row(_ADAM, (("pytorch_optimizer", "AdaMax", _ADAM),)),
    "Lamb": Row(_DECAYED, (("pytorch_optimizer", "Lamb", _DECAYED),), elementwise=False),
    "Lion": Row(_LION, (("optimi", "Lion", _LION), ("pytorch_optimizer", "Lion", _LION))),
    # The peers orthogonalise with the same number of steps; heavyball scales and averages a little differently.
    # All iterate in bfloat16.
    "Muon": Row(
        {**_MUON, "ns_dtype": "bfloat16"},
        (
            ("pytorch_optimizer", "Muon", {**_MUON, "use_adjusted_lr": True}),
            ("heavyball", "Muon", {"lr": 0.02, "betas": (0.95, 0.99), "weight_decay": 0.01, **_BALL}),
        ),
        torchs={**_MUON, "adjust_lr_fn": "match_rms_adamw"},
        elementwise=False,
    ),
    "NAdam": Row({**_ADAM, "lr": 2e-3}, (("heavyball", "NAdam", {**_ADAM, **_BALL, "lr": 2e-3}),)),
    # pytorch_optimizer leaves parameters alone in the first five steps, which do not count here.
    "RAdam": Row(_ADAM, (("optimi", "RAdam", _ADAM), ("pytorch_optimizer", "RAdam", _ADAM))),
    # heavyball's RMSprop corrects the bias of the second moment as Adam does.
    "RMSprop": Row(
        {"lr": 0.01, "alpha": 0.99, "eps": 1e-8},
        (("heavyball", "RMSprop", {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, **_BALL}),),
    ),
    "Rprop": Row({"lr": 1e-3}),
}


@functools.cache
def _numbers(shapes: Shapes, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator(device).manual_seed(1)
    pairs = [[torch.randn(shape, generator=random, device=device) for _ in range(2)] for shape in shapes]
    return [(p.mul_(0.02), g.mul_(1e-3)) for p, g in pairs]


def parameters(name: str, shapes: Shapes, device: str = "cpu") -> list[torch.Tensor]:
    """Fresh parameters with gradients; for Muon those of two dimensions. The same numbers at every call."""
    made: list[torch.Tensor] = []
    for numbers, grad in _numbers(shapes, device):
        if name != "Muon" or numbers.dim() > 1:
            p = torch.nn.Parameter(numbers.clone())
            p.grad = grad.clone()
            made.append(p)
    return made


def ours(name: str, params: list[torch.Tensor]) -> Any:
    """Our optimizer over these parameters."""
    return getattr(optim, name)(params, **ROWS[name].arguments)


def torchs(name: str, params: list[torch.Tensor]) -> dict[str, Callable[..., Any]]:
    """Torch's optimizer in each way it can run here; none if it has no such optimizer."""
    made = getattr(torch.optim, name, None)
    if made is None:
        return {}
    accepted = inspect.signature(made).parameters
    ways: dict[str, dict[str, Any]] = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}}
    if params[0].is_cuda:
        ways |= {"fused": {"fused": True}, "capturable": {"foreach": True, "capturable": True}}
        del ways["for-loop"]
    elif ROWS[name].fused:
        ways["fused"] = {"fused": True}
    ways = {way: switches for way, switches in ways.items() if accepted.keys() >= switches.keys()} or {"only way": {}}
    arguments = ROWS[name].torchs or ROWS[name].arguments
    return {f"torch {way}": functools.partial(made, **arguments, **switches) for way, switches in ways.items()}


def peers(name: str, compiled: bool = False) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """What else has the optimizer, in each way it can run, and notes on what is not installed.

    Compiled, this is heavyball alone: it compiles its own kernels, in the mode of its default.
    """
    found, notes = dict[str, Callable[..., Any]](), []
    for package, called, arguments in ROWS[name].peers:
        if compiled and package != "heavyball":
            continue
        try:
            module = importlib.import_module(package)
        except ImportError:
            notes.append(f"{package} is not installed: its {called} is left out")
            continue
        made = getattr(module, called)
        if package == "heavyball":
            if not compiled:
                module.utils.compile_mode = None  # it compiles by default
            found["heavyball"] = functools.partial(made, **arguments)
        elif (package, called) == ("pytorch_optimizer", "Muon"):
            # It takes parameters of any shape, and wants to be told which ones are for Muon.
            found[package] = lambda params, made=made, arguments=arguments: made(
                [{"params": params, "use_muon": True}], **arguments
            )
        else:
            for foreach in (False, True):
                way = f"{package} {'foreach' if foreach else 'for-loop'}"
                found[way] = functools.partial(made, foreach=foreach, **arguments)
    return found, notes


def stepping(make: Callable[..., Any], name: str, shapes: Shapes, device: str = "cpu") -> Callable[[], Step]:
    """What makes an optimizer over fresh parameters, takes its first step, and returns what takes the next.

    Each step has a new learning rate, as with a schedule.
    """

    def build() -> Step:
        optimizer = make(parameters(name, shapes, device))
        optimizer.step()

        def step() -> None:
            for group in optimizer.param_groups:
                group["lr"] *= 1 - 1e-9
            optimizer.step()

        return step

    return build


def built(builders: dict[str, Callable[[], Step]], notes: list[str]) -> dict[str, Step]:
    """What could be built; the notes get the others, unless it is ours: that raises."""
    steps: dict[str, Step] = {}
    for label, build in builders.items():
        try:
            steps[label] = build()
        except Exception as error:  # other people's code may raise anything: it is left out, and said so
            if label.startswith("ours"):
                raise
            notes.append(f"{label} left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return steps


def medians(candidates: dict[str, Step], seconds: float) -> dict[str, float]:
    """Interleaved medians, in as many rounds as fit in about so many seconds, at most 41 and at least 3.

    Of what takes so long that this would be far exceeded: a single call, after one that does not count.
    """
    single = {}
    for label, call in candidates.items():
        call()
        start = time.perf_counter()
        call()
        single[label] = time.perf_counter() - start
    turn = sum(max(each, LEAST) for each in single.values()) * 1.2
    if turn > 4 * seconds:
        return single
    return in_turn(candidates, max(3, min(41, math.ceil(seconds / turn))), LEAST)


def rebuilt(builders: dict[str, Callable[[], Step]], seconds: float, notes: list[str]) -> dict[str, float]:
    """The means of three such medians, everything built anew for each, in a rotated order.

    Which memory an optimizer happens to get makes it up to 15 % faster or slower, the first one built being the
    slowest (seen with four of the same). What takes very long is built only once.
    """
    labels, times = list(builders), dict[str, list[float]]()
    start = time.perf_counter()
    for i in range(3):
        turned = i * len(labels) // 3
        steps = built({label: builders[label] for label in labels[turned:] + labels[:turned]}, notes)
        for label, median in medians(steps, seconds / 3).items():
            times.setdefault(label, []).append(median)
        labels = [label for label in labels if label in steps]
        del steps
        gc.collect()
        if time.perf_counter() - start > 5 * seconds:
            break
    return {label: fmean(each) for label, each in times.items()}


def state_streams(optimizer: torch.optim.Optimizer) -> int:
    """How many arrays of the parameters' size the state is, rounded: 2 for Adam, 0 for Adafactor."""
    values = chain.from_iterable(state.values() for state in optimizer.state.values())
    held: int = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    size: int = sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
    return round(held / size)


def one_pass(elements: int, streams: int) -> Step:
    """One pass over contiguous float32 arrays, a few multiply-adds each: gradient read, parameter and states updated.

    In C, by as many threads as torch has; without a compiler in torch, over pieces that stay in the cache.
    """
    p, g, *states = (torch.full((elements,), 1e-3) for _ in range(streams + 2))
    library = compiled_pass(streams)
    if library is not None:
        arrays = (p, g, *states)  # kept by the function below
        return lambda: library.one_pass(ctypes.c_long(elements), *(ctypes.c_void_p(x.data_ptr()) for x in arrays))
    pieces = list(zip(*(torch.split(each, 1 << 16) for each in (p, g, *states))))

    def in_pieces() -> None:
        for param, grad, *moments in pieces:
            for moment in moments:
                moment.lerp_(grad, 0.1)
            param.sub_(moments[-1] if moments else grad, alpha=1e-3)

    return in_pieces


@functools.cache
def compiled_pass(streams: int) -> Any:
    """The library with the pass over so many states; None where there is no C compiler with OpenMP."""
    names = [f"s{i}" for i in range(streams)]
    arrays = ", ".join(f"float *restrict {name}" for name in ["p", "g", *names])
    updates = " ".join(f"{s}[i] = 0.9f * {s}[i] + 0.1f * u; u += {s}[i];" for s in names)
    source = (
        f"void one_pass(long n, {arrays}) {{\n"
        '_Pragma("omp parallel for simd schedule(static)")\n'
        f"for (long i = 0; i < n; i++) {{ float u = g[i]; {updates} p[i] -= 1e-3f * u; }} }}\n"
    )
    # Linked without OpenMP's library: its functions are found in the one that torch has loaded. A second one would
    # bring a second pool of threads, which spin against the first.
    with tempfile.TemporaryDirectory() as directory:
        try:
            (Path(directory) / "one_pass.c").write_text(source)
            compiling = ["cc", "-O3", "-march=native", "-fopenmp", "-fPIC", "-c", "one_pass.c", "-o", "one_pass.o"]
            for command in (compiling, ["cc", "-shared", "one_pass.o", "-o", "one_pass.so"]):
                subprocess.run(command, cwd=directory, check=True, capture_output=True)
            return ctypes.CDLL(str(Path(directory) / "one_pass.so"))
        except (OSError, subprocess.CalledProcessError):
            return None
