"""Muon: what a matrix is, groups of other algorithms, coefficients, and the memory that its directions take."""

import copy
import warnings

import pytest
import torch
from torch.nn import Parameter

import optim
from optim import Muon, NorMuon
from optim.muon import muon, newton_schulz
from optim.muon.newton_schulz import JORDAN, TABLES
from tests.optim.compiling import BACKEND, LOWERED, fresh, graphs
from tests.optim.problems import PeakBytes, flat
from tests.optim.test_muon_golden import values
from timesched import findings

FORMS = ("cerebras", "original", "match_rms_adamw", "spectral_unclamped")


def trained(shape, steps=3, view=None, **options):
    """A parameter after some steps; `view`: the shape in which the optimizer gets it."""
    p = Parameter(values(shape, 0).reshape(view or shape))
    optimizer = Muon([p], lr=0.1, **options)
    for step in range(1, steps + 1):
        p.grad = values(shape, 0, step=step).reshape(p.shape)
        optimizer.step()
    return p.detach().reshape(shape)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_is_its_matrices(form):
    shape, options = (3, 4, 6), {"adjust_lr_fn": form, "weight_decay": 0.1, "ns_dtype": torch.float64}
    stack = trained(shape, **options)
    singles = [Parameter(x.clone()) for x in values(shape, 0)]
    optimizer = Muon(singles, lr=0.1, **options)
    for step in range(1, 4):
        for p, gradient in zip(singles, values(shape, 0, step=step)):
            p.grad = gradient
        optimizer.step()
    apart = torch.stack([p.detach() for p in singles])
    assert torch.allclose(stack, apart, rtol=0, atol=1e-12)  # products in a stack are summed in another order
    assert torch.equal(stack, trained(shape, flatten=False, **options))  # the default of three dimensions
    assert not torch.allclose(stack, trained(shape, flatten=True, **options))


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 3, 2, 2), (4, 3, 2, 1, 2)])
def test_a_flattened_parameter_is_the_matrix_of_its_rows(shape, form):
    """torch's forms scale it by its rows and columns; the form "cerebras" by the first two sizes."""
    flattened = trained(shape, flatten=True, adjust_lr_fn=form)
    assert torch.equal(flattened, trained(shape, view=(shape[0], -1), adjust_lr_fn=form))
    if len(shape) > 3:
        assert torch.equal(flattened, trained(shape, adjust_lr_fn=form))
        stacks = trained(shape, flatten=False, adjust_lr_fn=form)
        assert torch.equal(stacks, trained(shape, view=(-1, *shape[-2:]), adjust_lr_fn=form))


def test_flatten_is_an_option_of_a_group():
    stack, convolution = (Parameter(values((3, 4, 6), 0)) for _ in range(2))
    optimizer = Muon([{"params": [stack]}, {"params": [convolution], "flatten": True}], lr=0.1)
    stack.grad = convolution.grad = values((3, 4, 6), 0, step=1)
    optimizer.step()
    assert torch.equal(stack, trained((3, 4, 6), steps=1))
    assert torch.equal(convolution, trained((3, 4, 6), steps=1, flatten=True))
    with pytest.raises((TypeError, ValueError), match="flatten"):
        Muon([stack], flatten="yes")


@pytest.mark.parametrize("nesterov", [True, False])
def test_one_direction_is_held_at_a_time(nesterov, monkeypatch):
    """Six matrices that are too large to be stacked take as much beside them as one."""
    monkeypatch.setattr(muon, "TOGETHER", 1 << 16)
    held = []
    for count in (1, 6):
        params = [Parameter(torch.randn(256, 257)) for _ in range(count)]
        optimizer = Muon(params, nesterov=nesterov)
        for p in params:
            p.grad = torch.randn_like(p)
        with PeakBytes(*(x for p in params for x in (p, p.grad, optimizer.state[p]["momentum_buffer"]))) as mode:
            optimizer.step()
        held.append(mode.most)
    assert held[1] <= held[0] + 1024 and held[0] > params[0].nbytes  # + 1024: each has a few numbers of its own


# Blocks


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("kind", [Muon, NorMuon])
@pytest.mark.parametrize(
    ("shape", "options", "sizes"),
    [
        ((12, 5), {"split_sizes": (6, 3, 3)}, (6, 3, 3)),
        ((12, 5), {"split_sizes": [2, 10]}, (2, 10)),
        ((12, 5), {"num_heads": 4}, (3, 3, 3, 3)),
        ((2, 12, 5), {"split_sizes": (6, 4, 2)}, (6, 4, 2)),
        ((2, 12, 5), {"num_heads": 2}, (6, 6)),
    ],
)
def test_blocks_are_matrices_of_their_own(kind, shape, options, sizes, form):
    """Each is scaled by its own shape."""
    given = {"adjust_lr_fn": form, "weight_decay": 0.1, "lr": 0.1, "ns_dtype": torch.float64}
    p = Parameter(values(shape, 0))
    parts = [Parameter(x.clone()) for x in values(shape, 0).split(sizes, -2)]
    fused, apart = kind([p], **given, **options), kind(parts, **given)
    for step in range(1, 4):
        p.grad = values(shape, 0, step=step)
        for part, gradient in zip(parts, p.grad.split(sizes, -2), strict=True):
            part.grad = gradient.clone()
        fused.step(), apart.step()
    assert torch.allclose(p, torch.cat([x.detach() for x in parts], -2), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((12, 5), {"split_sizes": (6, 3)}, r"(?s)split_sizes=\(6, 3\).*12 rows"),
        ((12, 5), {"num_heads": 5}, "(?s)num_heads=5.*12 rows"),
        ((12, 5), {"split_sizes": (10, 2)}, "(?s)split_sizes=.*match_rms_adamw"),
        ((16, 4, 3, 3), {"split_sizes": (12, 4)}, "(?s)split_sizes=.*match_rms_adamw"),
        ((16, 4, 3), {"split_sizes": (12, 4), "flatten": True}, "(?s)split_sizes=.*match_rms_adamw"),
        ((5,), {}, r"shape \(5,\)"),
    ],
)
def test_parameters_that_do_not_fit(shape, options, words):
    optimizer = Muon([Parameter(torch.ones(3, 3))])
    for call in (lambda p: Muon([p], **options), lambda p: optimizer.add_param_group({"params": [p], **options})):
        with pytest.raises(ValueError, match=words):
            call(Parameter(torch.ones(shape)))
    assert len(optimizer.param_groups) == 1


def test_splits_in_the_default_form():
    """The decay is scaled too, which blocks of one scale allow."""
    p, q = Parameter(values((12, 8), 0)), Parameter(values((12, 8), 0))
    Muon([p], split_sizes=(6, 4, 2)), Muon([q], num_heads=3)


# Coefficients


def test_tables_are_their_lists():
    for name, (triples, factor) in TABLES.items():
        by_name, by_list = (
            trained((4, 6), ns_coefficients=given, ns_dtype=torch.float64)
            for given in (name, [list(x) for x in triples])
        )
        assert torch.equal(by_name, by_list) == (factor == 1.0)
    repeated = trained((4, 6), ns_coefficients=[JORDAN] * 3, ns_dtype=torch.float64)
    assert torch.equal(repeated, trained((4, 6), ns_steps=3, ns_dtype=torch.float64))


@pytest.mark.parametrize(("given", "count"), [("polar_express", 5), ("deepseek", 10), ([JORDAN] * 7, 7), (JORDAN, 5)])
def test_the_steps_that_a_list_has(given, count):
    p = Parameter(torch.ones(2, 2))
    assert Muon([p], ns_coefficients=given).param_groups[0]["ns_steps"] == count
    assert Muon([p], ns_coefficients=given, ns_steps=count)
    for options in ({"ns_coefficients": given, "ns_steps": 4}, {"ns_steps": 4}):
        if isinstance(given[0], float):
            assert Muon([{"params": [p], **options}]).param_groups[0]["ns_steps"] == 4
        elif "ns_coefficients" in options:
            with pytest.raises(ValueError, match="ns_steps=4: ns_coefficients="):
                Muon([{"params": [p], **options}])


def test_the_dtype_of_the_iterations():
    """On the CPU float32 by default; also by name."""
    found = {str(given): trained((6, 4), ns_dtype=given) for given in (None, torch.float32, "float32", torch.bfloat16)}
    assert torch.equal(found["None"], found["torch.float32"]) and torch.equal(found["None"], found["float32"])
    assert not torch.equal(found["None"], found["torch.bfloat16"])


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_autocast_of_the_caller_changes_no_bit(way):
    """Of a matrix, and of a stack of matrices."""
    results = []
    for enabled in (False, True):
        params = [Parameter(values(shape, 0).float()) for shape in ((6, 4), (3, 6, 4))]
        optimizer = Muon(params, lr=0.1, ns_steps=2)
        for p in params:
            p.grad = values(p.shape, 0, step=1).float()
        with fresh(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            if way == "compiled":
                optimizer.compile(backend=LOWERED)
            optimizer.step()
            assert torch.is_autocast_enabled("cpu") == enabled and (way == "eager" or graphs() == 1)
        results.append([p.detach() for p in params])
    assert all(map(torch.equal, *results))


def test_large_stacks_are_computed_in_parts(monkeypatch):
    """As alone: of the float32 products of a stack, the order of sums may differ."""
    monkeypatch.setattr(newton_schulz, "TOGETHER", 3 * 110 * 100)
    stack = torch.randn(5, 110, 100, generator=torch.Generator().manual_seed(0))
    p, q = Parameter(torch.zeros(5, 110, 100)), Parameter(torch.zeros(110, 100))
    p.grad, q.grad = stack, stack[4].clone()
    Muon([p], lr=0.1, ns_steps=2).step(), Muon([q], lr=0.1, ns_steps=2).step()
    assert torch.allclose(p[4], q, atol=1e-4)  # of steps of 0.2


# Groups of other algorithms


def hybrid(kind=Muon, dtype=torch.float64, **more):
    matrix, vector, third = (Parameter(values(shape, i).to(dtype)) for i, shape in enumerate([(4, 3), (5,), (2, 3)]))
    groups = [
        {"params": [matrix], "tags": "muon"},
        {"params": [vector], "algorithm": "adamw", "betas": (0.9, 0.95), "weight_decay": 0.1, "tags": "rest"},
        {"params": [third], "algorithm": "lion", "lr": 0.01},
    ]
    return kind(groups, lr=0.02, adamw={"lr": 3e-4, "eps": 1e-5}, lion={"weight_decay": 0.2}, **more)


def step_both(*optimizers, step=1):
    for optimizer in optimizers:
        for i, p in enumerate(flat(optimizer)):
            p.grad = values(p.shape, i, step=step).to(p.dtype)
        optimizer.step()


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_a_hybrid_is_its_optimizers(way):
    """Bit for bit: the rules of AdamW and Lion are theirs."""
    if way == "compiled" and torch.__version__ < "2.9":
        pytest.skip("graphs need torch 2.9")
    mine = hybrid()
    matrix, vector, third = (copy.deepcopy(p) for p in flat(mine))
    others = [
        Muon([matrix], lr=0.02),
        optim.AdamW([vector], lr=3e-4, eps=1e-5, betas=(0.9, 0.95), weight_decay=0.1),
        optim.Lion([third], lr=0.01, weight_decay=0.2),
    ]
    with fresh():
        if way == "compiled":
            mine.compile(backend=BACKEND)
        for step in range(1, 5):
            step_both(mine, step=step)
            for i, (one, p) in enumerate(zip(others, (matrix, vector, third), strict=True)):
                p.grad = values(p.shape, i, step=step)
                one.step()
        assert way == "eager" or graphs() == 1
    for p, q, one in zip(flat(mine), (matrix, vector, third), others, strict=True):
        assert torch.equal(p, q) if way == "eager" else torch.allclose(p, q, rtol=1e-9)
        assert mine.state[p].keys() == one.state[q].keys()


def test_what_a_group_takes_from_where():
    first, second, third = hybrid().param_groups
    assert first["lr"] == 0.02 and first["algorithm"] == "muon" and "betas" not in first
    assert second["lr"] == 3e-4 and second["eps"] == 1e-5 and tuple(second["betas"]) == (0.9, 0.95)
    assert third["lr"] == 0.01 and third["weight_decay"] == 0.2 and tuple(third["betas"]) == (0.9, 0.99)
    assert not {"momentum", "nesterov", "ns_steps"} & (second.keys() | third.keys())
    plain = Muon([{"params": [Parameter(torch.ones(2))], "algorithm": "adamw"}], lr=0.5, weight_decay=0.5)
    assert plain.param_groups[0]["lr"] == 1e-3 and plain.param_groups[0]["weight_decay"] == 0.0
    assert plain.param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: Muon([{"params": [p], "algorithm": "sgd"}]), "algorithm='sgd'"),
        (
            lambda p: Muon([{"params": [p], "betas": (0.9, 0.9)}]),
            "'betas' is no hyperparameter",
        ),
        (lambda p: Muon([{"params": [p], "algorithm": "lion", "momentum": 0.9}]), "'momentum' is no hyperparameter"),
        (lambda p: Muon([p], adamw={"lrr": 0.1}), "AdamW has no argument 'lrr'"),
        (lambda p: Muon([p], lion={"lr": -1.0}), "Lion.lr=-1.0"),
        (lambda p: Muon([{"params": [p], "algorithm": "adamw", "betas": (0.9, 1.0)}]), "betas"),
        (lambda p: optim.AdamW([{"params": [p], "algorithm": "muon"}]), "one algorithm for all"),
    ],
)
def test_wrong_groups(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(Parameter(torch.ones(2, 2)))


def test_state_dicts():
    """There and back, copies, of a Muon from before there were algorithms, and of other algorithms."""
    mine, other = hybrid(), hybrid()
    step_both(mine), other.load_state_dict(mine.state_dict())
    for p, q in zip(flat(mine), flat(other), strict=True):
        q.data.copy_(p)
    twin = copy.deepcopy(mine)
    step_both(mine, other, twin, step=2)
    for p, q, r in zip(flat(mine), flat(other), flat(twin), strict=True):
        assert torch.equal(p, q) and torch.equal(p, r)
    pure, saved = Muon([Parameter(values((4, 3), 0))], lr=0.5), Muon([Parameter(values((4, 3), 0))]).state_dict()
    for key in ("algorithm", "split_sizes", "num_heads", "transposed", "ns_dtype", "cautious_weight_decay"):
        del saved["param_groups"][0][key]
    pure.load_state_dict(saved)
    assert pure.param_groups[0]["lr"] == 0.02
    lone = Muon([{"params": [Parameter(values((4, 3), 0))], "algorithm": "adamw"}])
    with pytest.raises(ValueError, match="lacks"):
        lone.load_state_dict(Muon([Parameter(values((4, 3), 0))]).state_dict())


def test_schedulers_of_a_hybrid():
    """One for all, or one for each by tags."""
    optimizer = hybrid()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    step_both(optimizer), scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 1.5e-4, 0.005]
    optimizer = hybrid()
    linear = optim.lr_scheduler.LinearLR(
        optimizer, initial_learning_rate=1.0, end_learning_rate=0.0, total_iters=4, param_group_tags="rest"
    )
    linear.step()
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.02, 0.75, 0.01]


@pytest.mark.parametrize("kind", [Muon, NorMuon])
def test_bfloat16_options_are_for_all_groups(kind):
    mine = hybrid(kind, torch.bfloat16, master_weights=True)
    step_both(mine)
    assert all("remainder" in state and state["remainder"].dtype == torch.bfloat16 for state in mine.state.values())
    wide = hybrid(kind, torch.bfloat16)
    assert all("remainder" not in state for state in wide.state.values())


@pytest.mark.parametrize("kind", [Muon, NorMuon])
def test_dtypes_of_states_that_one_algorithm_has(kind):
    for name, keepers in (("momentum_buffer", 1), ("exp_avg", 2), ("exp_avg_sq", 1)):
        options = {"stochastic_rounding": True, "state_dtype": {name: torch.bfloat16}}
        states = hybrid(kind, torch.bfloat16, **options).state.values()
        assert [state[name].dtype for state in states if name in state] == [torch.bfloat16] * keepers
        assert sum(x.dtype == torch.bfloat16 for state in states for x in state.values()) == keepers
    for name in ("exp_av", "variance_neuron"):
        with pytest.raises(ValueError, match=f"'{name}' is not a state"):
            hybrid(kind, torch.bfloat16, stochastic_rounding=True, state_dtype={name: torch.bfloat16})


def test_a_number_for_each_row_stays_in_float32():
    """Also for a matrix with one column, where the second moments have the shape of the parameter."""
    for shape in ((8, 1), (8, 2)):
        optimizer = NorMuon([Parameter(torch.zeros(shape))], state_dtype="bfloat16")
        dtypes = {name: x.dtype for state in optimizer.state.values() for name, x in state.items()}
        assert dtypes == {"momentum_buffer": torch.bfloat16, "variance_neuron": torch.float32}


def test_a_group_that_is_added_later():
    optimizer = Muon([Parameter(torch.ones(2, 2))], adamw={"lr": 0.5})
    optimizer.add_param_group({"params": [Parameter(torch.ones(3))], "algorithm": "adamw"})
    assert optimizer.param_groups[1]["lr"] == 0.5 and optimizer.defaults["lr"] == 0.02
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(3))]})
    assert len(optimizer.param_groups) == 2


def test_where_the_decay_is_cautious():
    """Elements whose update moves them away from 0 do not decay; where it is 0 they do."""
    p, q = (Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0])) for _ in range(2))
    gradient = torch.tensor([1.0, 1.0, -1.0, 0.0])
    for parameter, cautious in ((p, True), (q, False)):
        optimizer = optim.Lion([parameter], lr=0.5, weight_decay=0.5, cautious_weight_decay=cautious)
        parameter.grad = gradient.clone()
        optimizer.step()
    assert p.tolist() == [0.25, -1.5, 1.5, -0.75] and q.tolist() == [0.25, -1.25, 1.25, -0.75]


def test_an_element_without_gradient_moves_nothing():
    """NorMuon of zeros, whose norms are 0."""
    p = Parameter(torch.ones(3, 2))
    optimizer = NorMuon([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.zeros(3, 2)
    optimizer.step()
    assert torch.equal(p, torch.ones(3, 2))


# A learning rate that suits another scale


def rest(**options):
    return {"params": [Parameter(torch.ones(300, 2))], "algorithm": "adamw", **options}


@pytest.mark.parametrize(
    ("shape", "options", "is_large"),
    [
        ((2, 256), {}, True),
        ((256, 2), {"lr": 0.011}, True),
        ((256, 2), {"lr": torch.tensor(0.02)}, True),
        ((3, 2, 256), {}, True),
        ((300, 2, 2), {"flatten": True}, True),
        ((2, 255), {}, False),
        ((300, 2, 2), {}, False),  # a stack of small matrices
        ((2, 256), {"lr": 0.01}, False),
        ((2, 256), {"lr": torch.tensor(0.02, device="meta")}, False),
        *(((2, 256), {"adjust_lr_fn": form}, False) for form in ("original", "match_rms_adamw", None)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Muon, NorMuon])
def test_updates_that_are_many_times_adamws(kind, shape, options, is_large, monkeypatch):
    """One warning in a process, whose place is the call."""
    monkeypatch.setattr(findings, "_given", {})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            kind([rest(lr=0.5), {"params": [Parameter(torch.ones(shape))]}], **options)
    rate = f"{float(options.get('lr', 0.02)):g}" if is_large else ""
    expected = [f"{kind.__name__}.lr={rate}: with adjust_lr_fn='cerebras', updates are about as large as AdamW's"]
    assert [str(x.message).partition(" at the same")[0] for x in said] == expected * is_large
    assert all(x.filename == __file__ for x in said)
