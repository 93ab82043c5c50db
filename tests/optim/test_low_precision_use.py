"""Master weights and stochastic rounding as they are used: options, refusals, resuming, casts, exports, graphs."""

import copy
import itertools
import pickle

import pytest
import torch
from torch.nn import Parameter
from torch.profiler import ProfilerActivity, profile

import optim
import optim.precision.options
from optim.precision.bits import join
from tests.building import save_and_load
from tests.extent import IS_DEEP
from tests.optim.compiling import BACKEND, fresh, graphs
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, snapshot
from tests.optim.rows import FULLEST, ROWS
from tests.optim.signatures import NAMES
from timesched import findings

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
WAYS = {
    "master": {"master_weights": True},
    "rounded": {"stochastic_rounding": True},
    "rounded_states": {"stochastic_rounding": True, "state_dtype": BFLOAT16},
    "both": {"master_weights": True, "stochastic_rounding": True, "state_dtype": BFLOAT16},
    "first_moment": {"master_weights": True, "state_dtype": {"exp_avg": BFLOAT16}},
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)


def weight(seed=0, dtype=BFLOAT16):
    return Parameter(torch.randn(40, generator=torch.Generator().manual_seed(seed)).to(dtype))


def built(way="master", seed=0, name="AdamW", **more):
    p = weight(seed)
    return p, getattr(optim, name)([p], lr=1e-3, **WAYS[way], **more)


def trained(optimizer, p, first, last):
    for step in range(first, last + 1):
        p.grad = torch.sin(torch.arange(40.0) * step).to(p.dtype)
        optimizer.step()


def same_bits(mine, other):
    if mine.dtype != BFLOAT16 or other.dtype != BFLOAT16:
        return torch.equal(mine, other)
    return torch.equal(mine.detach().view(torch.int16), other.detach().view(torch.int16))


def assert_same(p, optimizer, q, other):
    assert same_bits(p, q) and optimizer.state[p].keys() == other.state[q].keys()
    for key, value in optimizer.state[p].items():
        assert same_bits(value, other.state[q][key]), key


# Options


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_takes_them(name):
    given = {"master_weights": True, "stochastic_rounding": True, "rounding_seed": 3, "state_dtype": FLOAT32}
    first, second = (Parameter(torch.ones(2, 2, dtype=BFLOAT16)) for _ in range(2))
    optimizer = getattr(optim, name)([first], lr=0.1, **given)
    assert {key: optimizer.param_groups[0][key] for key in given} == given
    grouped = getattr(optim, name)([{"params": [first], **given}, {"params": [second], "master_weights": True}], lr=0.1)
    assert "remainder" in grouped.state[second] and grouped.state[first].keys() == optimizer.state[first].keys()
    assert "step" in optimizer.state[first]  # which the noise needs
    assert getattr(optim, name)([second.detach().float()], lr=0.1, master_weights=True).state.values()


@pytest.mark.parametrize(
    ("options", "dtypes"),
    [
        ({}, (BFLOAT16, BFLOAT16)),
        ({"master_weights": True}, (FLOAT32, FLOAT32)),
        ({"stochastic_rounding": True}, (FLOAT32, FLOAT32)),
        ({"state_dtype": FLOAT32}, (FLOAT32, FLOAT32)),
        ({"state_dtype": {"exp_avg_sq": "float32"}}, (BFLOAT16, FLOAT32)),
        ({"stochastic_rounding": True, "state_dtype": "bfloat16"}, (BFLOAT16, BFLOAT16)),
        ({"master_weights": True, "state_dtype": {"exp_avg": BFLOAT16}}, (BFLOAT16, FLOAT32)),
    ],
)
def test_dtypes_of_states(options, dtypes):
    p = weight()
    optimizer = optim.AdamW([p], **options)
    assert tuple(optimizer.state[p][key].dtype for key in ("exp_avg", "exp_avg_sq")) == dtypes
    trained(optimizer, p, 1, 2)
    assert tuple(optimizer.state[p][key].dtype for key in ("exp_avg", "exp_avg_sq")) == dtypes


def test_bfloat16_states_of_float32_parameters():
    p = weight(dtype=FLOAT32)
    optimizer = optim.AdamW([p], lr=1e-3, stochastic_rounding=True, state_dtype=BFLOAT16)
    q = weight(dtype=FLOAT32)
    other = optim.AdamW([q], lr=1e-3)
    trained(optimizer, p, 1, 20), trained(other, q, 1, 20)
    assert optimizer.state[p]["exp_avg_sq"].dtype == BFLOAT16 and p.dtype == FLOAT32
    assert not torch.equal(p, q) and torch.allclose(p, q, atol=2e-3)  # each step is 1e-3, its direction is 1 % off


@pytest.mark.parametrize("name", NAMES)
def test_float32_states_of_several_float32_parameters(name):
    """A precision option, and a dtype that they have anyway, change nothing."""
    found = []
    for options in ({}, {"state_dtype": FLOAT32}, {"stochastic_rounding": True, "state_dtype": FLOAT32}):
        params = [Parameter(torch.ones(3, 4) * i) for i in (1, 2)]
        optimizer = getattr(optim, name)(params, lr=0.1, **options)
        for p in params:
            p.grad = torch.sin(torch.arange(12.0)).view(3, 4)
        optimizer.step()
        found.append(torch.stack(params))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_initial_values_are_not_rounded_on_the_way():
    optimizer = optim.Adagrad([p := weight()], initial_accumulator_value=0.1, state_dtype=FLOAT32)
    assert torch.equal(optimizer.state[p]["sum"], torch.full((40,), 0.1))


@pytest.mark.parametrize(
    ("name", "dtype", "options", "words"),
    [
        ("AdamW", BFLOAT16, {"master_weights": 1}, "master_weights=1"),
        ("AdamW", BFLOAT16, {"rounding_seed": 2**31}, "rounding_seed=2147483648"),
        ("AdamW", BFLOAT16, {"state_dtype": torch.float16}, "state_dtype=torch.float16"),
        ("AdamW", BFLOAT16, {"state_dtype": {"exp_avg": "int8"}}, "int8"),
        (
            "AdamW",
            BFLOAT16,
            {"master_weights": True, "state_dtype": {"momentum": BFLOAT16}},
            "'momentum' is not a",
        ),
        ("AdamW", BFLOAT16, {"master_weights": True, "state_dtype": BFLOAT16}, "'exp_avg_sq' would stop changing"),
        ("Adagrad", FLOAT32, {"state_dtype": BFLOAT16}, "'sum' would stop changing"),
        ("Adamax", BFLOAT16, {"state_dtype": {"exp_inf": BFLOAT16}}, "'exp_inf' would stop changing"),
        ("RMSprop", BFLOAT16, {**WAYS["rounded_states"], "centered": True}, "centered=True"),
        ("RMSprop", FLOAT32, {"state_dtype": {"grad_avg": BFLOAT16}, "centered": True}, "centered=True"),
        ("SGD", BFLOAT16, {"stochastic_rounding": "no"}, "stochastic_rounding='no'"),
        ("AdamW", torch.float16, {"master_weights": True}, "float16"),
        ("SGD", torch.float16, {"stochastic_rounding": True}, "float16"),
        ("SGD", torch.float64, {"state_dtype": FLOAT32}, "float64"),
    ],
)
def test_what_is_refused(name, dtype, options, words):
    """In the constructor, and in a group that is added, which changes nothing."""
    make = getattr(optim, name)
    with pytest.raises((ValueError, TypeError), match=words):
        make([weight(dtype=dtype)], lr=0.1, **options)
    optimizer = make([weight(dtype=FLOAT32)], lr=0.1, **{k: x for k, x in options.items() if k == "centered"})
    before = snapshot(optimizer)
    with pytest.raises((ValueError, TypeError), match=words):
        optimizer.add_param_group({"params": [weight(dtype=dtype)], **options})
    assert not differences(before, snapshot(optimizer)) and len(optimizer.param_groups) == 1


def test_unknown_arguments_and_a_switch_too_late():
    with pytest.raises(TypeError, match="no argument 'master_weight'"):
        optim.AdamW([weight()], master_weight=True)
    p, optimizer = weight(dtype=BFLOAT16), None
    optimizer = optim.AdamW([p], state_dtype=FLOAT32)
    optimizer.param_groups[0]["master_weights"] = True
    with pytest.raises(ValueError, match="needs the state 'remainder'"):
        trained(optimizer, p, 1, 1)


def test_one_warning_in_a_process(monkeypatch, recwarn):
    monkeypatch.setattr(findings, "_given", {})
    optim.AdamW([weight()], master_weights=True), optim.AdamW([weight()], stochastic_rounding=True)
    optim.AdamW([weight(dtype=FLOAT32)])
    assert not recwarn.list
    optim.AdamW([weight()]), optim.SGD([weight()], lr=0.1)
    (warning,) = recwarn.list
    for words in ("lose every update", "master_weights=True", "stochastic_rounding=True"):
        assert words in str(warning.message)


def test_bytes():
    for options, expected in (({}, 4), (WAYS["master"], 10), (WAYS["rounded"], 8), (WAYS["both"], 6)):
        optimizer = optim.AdamW([Parameter(torch.zeros(1000, dtype=BFLOAT16))], **options)
        assert optim.state_bytes(optimizer) == 1000 * expected + 4  # the count of steps
        meta = torch.zeros(1000, dtype=BFLOAT16, device="meta")
        assert optim.state_bytes((optim.AdamW, [meta], options)) == 1000 * expected + 4


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch 2.10 has grad_dtype")
@EACH_WAY
def test_float32_gradients_are_used_as_they_are(way):
    p, optimizer = built(way)
    p.grad_dtype = FLOAT32
    q = Parameter(p.detach().float())
    other = optim.AdamW([q], lr=1e-3)
    p.grad = torch.full((40,), 1 / 3)
    q.grad = p.grad.clone()
    optimizer.step(), other.step()
    rounded = other.state[q]["exp_avg"].to(optimizer.state[p]["exp_avg"].dtype)
    assert torch.allclose(optimizer.state[p]["exp_avg"], rounded, rtol=2**-7, atol=0)
    if way == "master":
        assert torch.equal(join(p.detach(), optimizer.state[p]["remainder"]), q.detach())


def test_parameters_of_other_dtypes_are_stepped_as_ever():
    p, q, r = weight(), weight(dtype=FLOAT32), weight(dtype=torch.float64)
    optimizer = optim.AdamW([p, q, r], lr=1e-3, master_weights=True)
    alone = weight(dtype=FLOAT32)
    other = optim.AdamW([alone], lr=1e-3)
    for x in (p, q, r, alone):
        x.grad = torch.ones_like(x)
    optimizer.step(), other.step()
    assert torch.equal(q, alone) and optimizer.state[q].keys() == other.state[alone].keys()
    found = optimizer.float32_parameters()
    assert [found[x].dtype for x in (p, q, r)] == [FLOAT32, FLOAT32, torch.float64] and torch.equal(found[q], q)


# Going on


@EACH_WAY
@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("through", [copy.deepcopy, save_and_load])
def test_a_run_goes_on_exactly(way, at, through):
    p, whole = built(way)
    trained(whole, p, 1, at)
    state, weights = through(whole.state_dict()), p.detach().clone()
    trained(whole, p, at + 1, 9)
    q, again = built(way, seed=1)
    q.data.copy_(weights)
    again.load_state_dict(state)
    trained(again, q, at + 1, 9)
    assert_same(p, whole, q, again)


@EACH_WAY
def test_copies_and_pickles(way):
    p, optimizer = built(way)
    trained(optimizer, p, 1, 2)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (q,) = flat(other)
        trained(other, q, 3, 4)
        reference = copy.deepcopy(optimizer)
        (r,) = flat(reference)
        trained(reference, r, 3, 4)
        assert_same(r, reference, q, other)


def test_into_an_optimizer_without_master_weights_and_back():
    p, optimizer = built()
    trained(optimizer, p, 1, 3)
    plain = optim.AdamW([p], lr=1e-3)
    plain.load_state_dict(optimizer.state_dict())
    assert "remainder" not in plain.state[p] and plain.state[p]["exp_avg"].dtype == BFLOAT16
    back = optim.AdamW([p], lr=1e-3, **WAYS["master"])
    back.load_state_dict(plain.state_dict())
    assert back.state[p]["exp_avg"].dtype == FLOAT32 and not back.state[p]["remainder"].view(torch.int16).any()


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("package", [torch.optim, optim])
@EACH_WAY
def test_from_another_run(way, package, dtype):
    """States of a run in float32 or bfloat16, of torch's optimizer or ours, become what they are here."""
    q = weight(dtype=dtype)
    other = package.AdamW([q], lr=1e-3)
    trained(other, q, 1, 3)
    p, optimizer = built(way)
    optimizer.load_state_dict(other.state_dict())
    for key in ("exp_avg", "exp_avg_sq"):
        mine = optimizer.state[p][key]
        assert torch.equal(mine, other.state[q][key].to(mine.dtype))
    trained(optimizer, p, 4, 5)
    assert optimizer.state[p]["step"] == 5


@pytest.mark.parametrize("name", ["Lion", "Lamb", "SGD"])
def test_counts_that_the_noise_needs_begin_at_zero(name):
    """Where a run had none."""
    p, optimizer = built("rounded", name=name)
    q, other = built("master", name=name)
    trained(other, q, 1, 3)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.state[p]["step"] == (name == "SGD")  # there, whether there was a first step
    trained(optimizer, p, 1, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_noise_goes_on_without_it(name):
    """The count that the noise alone needs is dropped, as remainders are; one that the formula needs is kept."""

    def built(**options):
        p = Parameter(torch.ones(4, 3, dtype=BFLOAT16))
        return p, getattr(optim, name)([p], lr=1e-2, **options)

    (p, rounded), (q, plain) = built(stochastic_rounding=True), built(master_weights=True)
    p.grad = torch.arange(12.0).view(4, 3).bfloat16()
    rounded.step()
    keys = plain.state[q].keys() - {"remainder"}
    plain.load_state_dict(rounded.state_dict())
    assert plain.state[q].keys() - {"remainder"} == keys
    assert all(torch.equal(plain.state[q][key], rounded.state[p][key]) for key in keys)


@pytest.mark.parametrize("wrong", [lambda x: x.float(), lambda x: x.view(torch.int16)])
def test_a_remainder_in_another_dtype_is_refused(wrong):
    p, optimizer = built()
    trained(optimizer, p, 1, 2)
    saved, before = optimizer.state_dict(), snapshot(optimizer)
    saved["state"] = {0: {**saved["state"][0], "remainder": wrong(saved["state"][0]["remainder"])}}
    with pytest.raises(ValueError, match="remainder has dtype"):
        optimizer.load_state_dict(saved)
    assert not differences(before, snapshot(optimizer))


@EACH_WAY
def test_the_weights_were_replaced(way):
    """What was kept of the old ones adds half a bfloat16 at most; reset_state drops it."""
    p, optimizer = built(way)
    trained(optimizer, p, 1, 5)
    new = weight(seed=7).detach()
    p.data.copy_(new)
    found = optimizer.float32_parameters()[p]
    assert ((found - new.float()).abs() <= new.float().abs() * 2**-8).all()
    optimizer.reset_state([p])
    assert torch.equal(optimizer.float32_parameters()[p], new.float())


def test_weights_that_were_set_to_zero():
    """Beside a zero, an old remainder makes no NaN."""
    params = [Parameter(torch.randn(size).bfloat16()) for size in (1000, 3)]
    optimizer = optim.SGD(params, lr=0.01, master_weights=True)
    for zero in (0.0, -0.0):
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer.step()
        for p in params:
            with torch.no_grad():
                p.fill_(zero)
            p.grad = torch.zeros_like(p)
        assert "remainder" in optimizer.state_names_to_sparsify()
        for value in optimizer.float32_parameters().values():
            assert (value.abs() <= 2**-133).all()  # half of the least bfloat16
        optimizer.step()
        assert all((p.abs() <= 2**-133).all() for p in params)


def test_float32_parameters_there_and_back():
    p, optimizer = built()
    trained(optimizer, p, 1, 3)
    found = optimizer.float32_parameters()
    assert found[p].dtype == FLOAT32 and torch.equal(found[p], join(p.detach(), optimizer.state[p]["remainder"]))
    q, other = built(seed=1)
    other.load_float32_parameters({q: found[p]})
    assert same_bits(q, p) and same_bits(other.state[q]["remainder"], optimizer.state[p]["remainder"])
    exact = torch.linspace(-1, 1, 40)
    other.load_float32_parameters({q: exact})
    assert torch.equal(other.float32_parameters()[q], exact)
    for wrong in ({p: exact}, {q: exact[:3]}, {q: exact.int()}, {q: exact.to("meta")}, {q: 1.0}, {"weight": exact}):
        with pytest.raises(ValueError, match="^AdamW: .*float32_parameters"):
            other.load_float32_parameters(wrong)
    assert torch.equal(other.float32_parameters()[q], exact)


def test_a_cast_away_from_bfloat16_says_what_is_lost():
    p, optimizer = built()
    trained(optimizer, p, 1, 2)
    average = optimizer.state[p]["exp_avg"].clone()
    p.data = p.data.float()
    p.grad = None
    with pytest.warns(UserWarning, match="float32_parameters"):
        optimizer.step()
    assert "remainder" not in optimizer.state[p] and torch.equal(optimizer.state[p]["exp_avg"], average)
    p.data = p.data.bfloat16()
    trained(optimizer, p, 3, 3)
    assert "remainder" in optimizer.state[p]


# Graphs


@pytest.mark.skipif(torch.__version__ < "2.9", reason="graphs need torch 2.9")
@pytest.mark.parametrize(
    ("row", "way"),
    [(row, way) for row in FULLEST for way in WAYS if way == "both" or row.name == "AdamW" or IS_DEEP],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_graph(row, way):
    """Captured once while the rate changes; as close to the eager step as float32 and a flip of a rounding are.

    AdamW in every way, the others in the one that has all of it; test_low_precision.py has theirs in eager mode.
    """
    options = WAYS[way]
    if row.kwargs.get("centered") and options.get("state_dtype"):
        options = {**options, "state_dtype": {"momentum_buffer": BFLOAT16}}  # all that it may have
    optimizers = [ours(row, small(row), **options) for _ in range(2)]
    mine, eager = optimizers
    with fresh():
        mine.compile(backend=BACKEND)
        for step in range(1, 6):
            for optimizer in optimizers:
                give_gradients(flat(optimizer), step, missing={})
                for group in optimizer.param_groups:
                    if isinstance(group["lr"], torch.Tensor):
                        group["lr"].fill_(0.01 * step)
                    elif group["lr"] is not None:
                        group["lr"] = 0.01 * step
                optimizer.step()
        assert graphs() == 1
    for p, q in zip(flat(mine), flat(eager)):
        assert torch.allclose(p.float(), q.float(), rtol=2**-6, atol=2**-7)
        for key, value in mine.state[p].items():
            assert value.dtype == eager.state[q][key].dtype


def small(row):
    return [Parameter(p.detach().bfloat16()) for p in parameters(row.name, FLOAT32)[:2]]


@pytest.mark.skipif(torch.__version__ < "2.9", reason="graphs need torch 2.9")
def test_with_inductor():
    """Master weights have the bits of float32 training in the same graph, and rounding those of the eager step."""

    def build():
        params = [Parameter(weight().detach().float()), weight(), weight()]
        options = ({}, WAYS["master"], WAYS["rounded_states"])
        groups = [{"params": [p], **chosen} for p, chosen in zip(params, options)]
        return params, optim.AdamW(groups, lr=1e-3)

    (plain, master, rounded), mine = build()
    (*_, rounded_in_eager), eager = build()
    with fresh():
        mine.compile()
        for step in range(1, 5):
            gradient = torch.sin(torch.arange(40.0) * step).bfloat16()
            for optimizer in (mine, eager):
                for p in flat(optimizer):
                    p.grad = gradient.to(p.dtype)
                optimizer.step()
        assert graphs() == 1
    assert torch.equal(mine.float32_parameters()[master], plain.detach())
    assert (rounded != rounded_in_eager).sum() <= 2  # where float32 values that differ in the last bit are rounded


def test_rows_cover_every_optimizer():
    assert {row.name for row in ROWS} == set(NAMES)


def peak(function):
    """The most MiB that tensors made in a call take at once: what torch's allocator gives less what it gets back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        function()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert changes
    return max(itertools.accumulate(changes)) / (1 << 20)


LARGE = [("AdamW", 1, 1 << 13, 8), ("RAdam", 1, 1 << 13, 8), ("Lamb", 16, 1 << 10, 32)]


@pytest.mark.parametrize("way", ["master", "rounded", "both"])
@pytest.mark.parametrize(("name", "n", "size", "limit"), LARGE)
def test_memory_of_a_step(name, n, size, limit, way):
    """Blocks of 1 MiB, where one float32 copy of the parameters would be 32 (of Lamb 64): what needs the norm of a
    whole one has the largest parameter, 4 MiB, some times over."""
    params = [Parameter(torch.zeros(size, 1024, dtype=BFLOAT16)) for _ in range(n)]
    optimizer = getattr(optim, name)(params, lr=0.1, **WAYS[way])
    for p in params:
        p.grad = torch.ones_like(p)
    assert peak(optimizer.step) < limit
