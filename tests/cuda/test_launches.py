"""What one eager step launches on a CUDA GPU: as many kernels for 100 tensors as for 10, and no host traffic."""

import inspect

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import optim
from optim import lr_scheduler
from tests.cuda.launches import recorded
from tests.optim.problems import ours
from tests.optim.rows import FULLEST
from tests.optim.signatures import NAMES, SIGNATURES
from timesched import Clock, CosineAnnealingScheduler, bind

FUSED = {"SGD": 1, "Adagrad": 2, "Adam": 2, "AdamW": 2}  # torch's fused step: its kernel, and one for the counts
STACKED = ("Adafactor", "Lamb", "Muon", "NorMuon")
ROWS = {row.name: row for row in FULLEST}
EACH = pytest.mark.parametrize("name", NAMES)


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


def built(name, params, package=optim, **arguments):
    needed = {"SGD": {"lr": 0.1, "momentum": 0.9}}.get(name, {"lr": 0.1})
    return getattr(package, name)(params, **{**needed, **arguments})


def with_a_rate_there(dtype):
    def build(name, n):
        optimizer = built(name, parameters(n, dtype))
        optimizer.param_groups[0]["lr"] = torch.empty((), dtype=torch.float64, device="cuda")
        return optimizer

    return build


def with_tensors(name, n):
    """All hyperparameters are tensors."""
    optimizer = built(name, parameters(n), **({"weight_decay": 0.1} if "weight_decay" in SIGNATURES[name] else {}))
    optimizer.hold_tensors()
    return optimizer


def of_several_kinds(name, n):
    kinds = [("float32", "cuda:0"), ("bfloat16", "cuda:0"), ("float64", "cuda:1"), ("float32", "cpu")]
    return built(name, [p for dtype, device in kinds for p in parameters(n, getattr(torch, dtype), device)])


def launches(optimizer, refuse=True):
    """Those of the third step."""
    for _ in range(2):
        recorded(optimizer.step, refuse)
    return recorded(optimizer.step, refuse).launches


@EACH
def test_no_more_than_torch(name):
    few, many = (launches(built(name, parameters(n))) for n in (10, 100))
    assert many == FUSED.get(name, many)
    assert many == few <= (45 if name == "NorMuon" else 40) or name == "Rprop"  # its plain form is a third of torch's
    if hasattr(torch.optim, name):
        given = inspect.signature(getattr(torch.optim, name)).parameters
        ways = [{key: True} for key in ("foreach", "fused") if key in given] or [{}]
        best = min(launches(built(name, parameters(100), torch.optim, **way), refuse=False) for way in ways)
        assert many <= best + (name not in FUSED)  # one for the counts, which torch's foreach keeps on the host


FORMS = {
    "fullest": lambda name, n: ours(ROWS[name], parameters(n)),
    "rate": with_a_rate_there(torch.float32),
    "rate_float64": with_a_rate_there(torch.float64),
    "rate_bfloat16": with_a_rate_there(torch.bfloat16),
    "tensors": with_tensors,
    "captured": with_a_rate_there(torch.float32),
    "kinds": of_several_kinds,
}


@pytest.mark.parametrize("form", FORMS)
@EACH
def test_no_host_traffic_in_any_form(name, form, monkeypatch):
    """Nor more kernels for more tensors, but where a multi-tensor kernel takes no tensors of this kind as factors."""
    optimizers = [FORMS[form](name, n) for n in (10, 30)]
    with monkeypatch.context() as patch:
        if form == "captured":
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        few, many = map(launches, optimizers)
    if form == "captured":  # a replay advances the counts without a sign: the host never takes them for known
        assert launches(optimizers[1]) == many
    one_by_one = name == "Rprop" or (
        name in ("ASGD", "NAdam") and form in ("rate", "rate_float64", "tensors", "captured")
    )
    assert few == many <= (130 if name == "NorMuon" else 110) or one_by_one or form == "rate_bfloat16"
    if name in FUSED and form in ("rate", "rate_bfloat16", "captured"):  # the kernels read the rate as float32
        assert many == FUSED[name] + 1


@pytest.mark.parametrize("name", STACKED)
def test_several_shapes(name):
    shapes = [(64, 64), (32, 64), (64, 32)]
    one, three = ([p for shape in used for p in parameters(12, shape=shape)] for used in (shapes[:1], shapes))
    assert launches(built(name, three)) <= 4 * launches(built(name, one))


@EACH
def test_after_another_gradient_was_missing(name):
    """The counts differ: a few more kernels, but still no traffic."""
    params = parameters(20)
    optimizer = built(name, params)
    params[0].grad = None
    recorded(optimizer.step)
    params[0].grad = torch.empty_like(params[0])
    assert launches(optimizer) <= 2 * launches(built(name, parameters(20))) + 5


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: bind(CosineAnnealingScheduler(), optimizer, Clock("10ba")),
        lambda optimizer: lr_scheduler.CosineDecayLR(optimizer, 0.1, 0.0, 10),
    ],
    ids=["bound", "closed form"],
)
def test_a_scheduler(schedule):
    """It writes a number that the host computes."""
    optimizer = built("AdamW", parameters(3))
    scheduler = schedule(optimizer)
    assert recorded(scheduler.step).launches == 0
    assert launches(optimizer) == FUSED["AdamW"]


def test_a_scheduler_of_tensors():
    """It computes the rate on the GPU, from a count there."""
    optimizer = built("AdamW", parameters(3))
    scheduler = lr_scheduler.CosineDecayLR(optimizer, 0.1, 0.0, 10)
    optimizer.hold_tensors()
    assert recorded(scheduler.step).launches <= 12
    assert launches(optimizer) <= 40


def test_a_clock_and_tensors():
    """The number that the host computes is filled in: a copy would wait for the GPU."""
    optimizer, clock = built("AdamW", parameters(3)), Clock("10ba")
    scheduler = bind(CosineAnnealingScheduler(), optimizer, clock)
    optimizer.hold_tensors()
    clock.tick()
    assert recorded(scheduler.step).launches == 1


@pytest.mark.parametrize("captured", [False, True])
@EACH
def test_master_weights(name, captured, monkeypatch):
    """Ten more kernels for a list, however many tensors, and nothing is read: 3 to join, 7 to split."""
    build = with_a_rate_there(torch.float32) if captured else lambda name, n: built(name, parameters(n))
    plain = build(name, 30)
    rate = plain.param_groups[0]["lr"]
    few, many = (built(name, parameters(n, torch.bfloat16), master_weights=True) for n in (10, 30))
    few.param_groups[0]["lr"] = many.param_groups[0]["lr"] = rate
    if captured:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert launches(many) <= launches(plain) + 10
    assert launches(few) == launches(many) or name == "Rprop" or (captured and name in ("ASGD", "NAdam"))


@EACH
def test_stochastic_rounding(name):
    """The seeds and the hash are 50 kernels for a list, and each tensor has two of its own; nothing is read."""
    plain = launches(built(name, parameters(30)))
    assert launches(built(name, parameters(30, torch.bfloat16), stochastic_rounding=True)) <= plain + 50 + 2 * 30


def test_lists_are_limited():
    """Two lists of at most 2**26 elements, though the tensors are one group."""
    four, five = (parameters(n, torch.bfloat16, shape=(1 << 12, 1 << 12)) for n in (4, 5))
    counts = [recorded(built("AdamW", each, master_weights=True).step).kernels for each in (four, five)]
    assert [each["aten::_fused_adamw_"] for each in counts] == [1, 2]


@EACH
def test_a_prepared_step_launches_the_same(name):
    """With a frozen parameter, and a new learning rate before each step."""
    optimizers = [built(name, parameters(10)) for _ in range(2)]
    for optimizer in optimizers:
        optimizer.param_groups[0]["params"][3].grad = None
        for step in range(3):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            recorded(optimizer.step)
    prepared, unprepared = optimizers
    assert (prepared._stepper._prepared is None) == (name in ("Muon", "NorMuon"))
    unprepared._stepper._prepared = None
    assert recorded(prepared.step).kernels == recorded(unprepared.step).kernels
    assert prepared._stepper._unprepared_steps == (4 if name in ("Muon", "NorMuon") else 0)
    assert unprepared._stepper._unprepared_steps == (4 if name in ("Muon", "NorMuon") else 1)
