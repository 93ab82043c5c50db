"""What one eager step launches on a CUDA GPU: as many kernels for 100 tensors as for 10, and no host traffic."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import optim
from optim import lr_scheduler
from optim.core.known_counts import KnownCounts
from tests.cuda.launches import recorded
from tests.optim.signatures import NAMES, SIGNATURES
from timesched import Clock, CosineAnnealingScheduler, bind

FUSED = {"SGD": 1, "Adagrad": 2, "Adam": 2, "AdamW": 2}  # torch's fused step: its kernel, and one for the counts
STACKED = ("Adafactor", "Lamb", "Muon", "Rprop")
# What torch's foreach has no such form of, or reads the GPU for.
ALONE = ("ASGD", "Adafactor", "Muon", "Rprop")

SWITCHES = [
    (name, {key: True})
    for name in NAMES
    for key in ("amsgrad", "maximize", "decoupled_weight_decay", "centered", "relative_step")
    if key in SIGNATURES[name]
]


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    def refuse(x):
        raise AssertionError("tolist() waits for the GPU")

    monkeypatch.setattr(torch.Tensor, "tolist", refuse)
    with FakeTensorMode(allow_non_fake_inputs=True):  # constants of ours on the host
        yield


def parameters(n, dtype=torch.float32, device="cuda", shape=(64, 64)):
    made = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for _ in range(n)]
    for p in made:
        p.grad = torch.empty_like(p)
    return made


def built(name, params, **arguments):
    needed = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adafactor": {"lr": 0.1}}.get(name, {})
    if arguments.get("relative_step"):
        needed = {"lr": None}
    return getattr(optim, name)(params, **{**needed, **arguments})


def launches(optimizer, keys=()):
    """Those of the third step, with tensors on the GPU as the named hyperparameters."""
    for group in optimizer.param_groups:
        for key in keys:
            group[key] = torch.empty((), dtype=torch.float64, device="cuda")
    for _ in range(2):
        recorded(optimizer.step)
    return recorded(optimizer.step).launches


@pytest.mark.parametrize("name", NAMES)
def test_as_many_for_100_tensors_as_for_10(name):
    few, many = (launches(built(name, parameters(n))) for n in (10, 100))
    assert few == many
    if name in FUSED:
        assert many == FUSED[name]
    if name in STACKED:
        assert many <= 40
    if name not in ALONE and hasattr(torch.optim, name):
        torchs = {"lr": 0.1, "momentum": 0.9} if name == "SGD" else {}
        theirs = getattr(torch.optim, name)(parameters(100), foreach=True, **torchs)
        assert many <= 1.2 * launches(theirs) + 5


@pytest.mark.parametrize(("name", "switch"), SWITCHES)
def test_so_too_with_the_switches(name, switch):
    few, many = (launches(built(name, parameters(n), **switch)) for n in (10, 30))
    assert few == many <= FUSED.get(name, 40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_as_learning_rate(name, dtype):
    few, many = (launches(built(name, parameters(n, dtype)), ["lr"]) for n in (10, 30))
    assert few == many <= 100
    if name in FUSED and dtype != torch.float64:  # the kernels read the rate as float32
        assert many == FUSED[name] + 1  # the rate in float32


@pytest.mark.parametrize("name", NAMES)
def test_with_counts_that_the_host_does_not_know(name, monkeypatch):
    """As while a CUDA graph is captured."""
    monkeypatch.setattr(KnownCounts, "of", lambda self, counters: None)
    few, many = (launches(built(name, parameters(n)), ["lr"]) for n in (10, 30))
    assert few == many <= 100


@pytest.mark.parametrize("name", NAMES)
def test_tensors_as_all_hyperparameters(name):
    def held(n):
        optimizer = built(name, parameters(n), **({"weight_decay": 0.1} if "weight_decay" in SIGNATURES[name] else {}))
        optimizer.hold_tensors()
        return optimizer

    assert launches(held(10)) == launches(held(30)) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_several_dtypes_and_devices(name):
    def mixed(n):
        kinds = [("float32", "cuda:0"), ("bfloat16", "cuda:0"), ("float64", "cuda:1"), ("float32", "cpu")]
        return [p for dtype, device in kinds for p in parameters(n, getattr(torch, dtype), device)]

    assert launches(built(name, mixed(3))) == launches(built(name, mixed(30)))


@pytest.mark.parametrize("name", STACKED)
def test_several_shapes(name):
    shapes = [(64, 64), (32, 64), (64, 32)]
    one, three = ([p for shape in used for p in parameters(12, shape=shape)] for used in (shapes[:1], shapes))
    assert launches(built(name, three)) <= 4 * launches(built(name, one))


@pytest.mark.parametrize("name", NAMES)
def test_after_another_gradient_was_missing(name):
    """The counts differ: a few more kernels, but still no traffic."""
    params = parameters(20)
    optimizer = built(name, params)
    params[0].grad = None
    recorded(optimizer.step)
    params[0].grad = torch.empty_like(params[0])
    assert launches(optimizer) <= 2 * launches(built(name, parameters(20))) + 5


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_writes_a_float(name):
    optimizer = built(name, parameters(3), **({"lr": 0.1} if "lr" in SIGNATURES[name] else {}))
    scheduler = bind(CosineAnnealingScheduler(), optimizer, Clock("10ba"))
    expected = launches(optimizer)
    assert recorded(scheduler.step).launches == 0
    assert launches(optimizer) == expected


def test_a_scheduler_in_closed_form():
    """It writes a number that the host computes; with tensors it computes the rate on the GPU, from a count there."""
    optimizer = built("AdamW", parameters(3))
    scheduler = lr_scheduler.CosineDecayLR(optimizer, 0.1, 0.0, 10)
    assert recorded(scheduler.step).launches == 0
    assert launches(optimizer) == FUSED["AdamW"]
    optimizer = built("AdamW", parameters(3))
    scheduler = lr_scheduler.CosineDecayLR(optimizer, 0.1, 0.0, 10)
    optimizer.hold_tensors()
    assert recorded(scheduler.step).launches <= 12
    assert launches(optimizer) <= 40


@pytest.mark.parametrize("name", list(FUSED))
def test_a_grad_scaler_costs_one_kernel_and_no_read(name):
    optimizer = built(name, parameters(100))
    assert optimizer._step_supports_amp_scaling
    optimizer.grad_scale, optimizer.found_inf = (torch.empty((), device="cuda") for _ in range(2))
    assert launches(optimizer) == FUSED[name] + (name != "SGD")
