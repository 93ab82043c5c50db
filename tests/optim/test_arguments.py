"""Arguments: names and defaults are those of the table; what cannot be is refused before anything changes, by an error
that names the argument and shows the value: in the constructor, in a group, in one added later, in a state dict."""

import copy
import inspect

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.base.hyperparameters import BETAS, FRACTION, NON_NEGATIVE, SWITCH, Choice, Number, NumberTuple
from optim.precision.options import DEFAULTS
from tests.optim.problems import differences, give_gradients, ours, parameters, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import KEYWORD_ONLY, MATRICES, NAMES, REQUIRED, SIGNATURES

nan, inf = float("nan"), float("inf")
NAMED = pytest.mark.parametrize("name", NAMES)


def matrices(n=2):
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(3, 2, generator=generator)) for _ in range(n)]


def made(name, params, **kwargs):
    if SIGNATURES[name]["lr"] is REQUIRED:
        kwargs.setdefault("lr", 0.05)
    return getattr(optim, name)(params, **kwargs)


@NAMED
def test_names_and_defaults(name):
    said = inspect.signature(getattr(optim, name)).parameters
    expected = SIGNATURES[name]
    assert list(said) == ["params", *expected, "enable_global_step", *DEFAULTS]
    for key, default in expected.items():
        value = said[key].default
        assert value is inspect.Parameter.empty if default is REQUIRED else value == default, key
        keyword = said[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword == (key in KEYWORD_ONLY.get(name, ())), key
    switch = said["enable_global_step"]
    assert switch.default is False and switch.kind is inspect.Parameter.KEYWORD_ONLY
    lr = 0.25 if expected["lr"] is REQUIRED else expected["lr"]
    optimizer = getattr(optim, name)(matrices(), lr)
    held = {key: default for key, default in expected.items() if key not in ("adamw", "lion", "process_group")}
    held |= {"lr": lr, **({"ns_steps": 5} if name in MATRICES else {})}
    assert {key: optimizer.param_groups[0][key] for key in held} == held
    assert set(optimizer.defaults) >= set(held)


# What a rule accepts and what it refuses. A tensor holds a single floating-point number.
HALF_OPEN, WHOLE = Number(above=0, most=1), Number(least=1, most=9, integer=True)
RULES = [
    (
        NON_NEGATIVE,
        [0, 0.5, 1e300, torch.tensor(0.5), torch.tensor([0.5])],
        [-0.5, nan, inf, "fast", True, [0.1], None, 1j],
    ),
    (NON_NEGATIVE, [], [torch.tensor(x) for x in (nan, -0.25, [0.1, 0.2], [[0.1]], 1, True)]),
    (FRACTION, [0.0, 0.999], [1.0, 1.5, -0.1]),
    (HALF_OPEN, [1.0, 0.001], [0.0, 1.1]),
    (WHOLE, [1, 9], [0, 10, 2.5, True, torch.tensor(2.0)]),
    (Number(least=0, optional=True), [None, 0.0], [-1.0]),
    (
        BETAS,
        [(0.9, 0.0), [0.5, torch.tensor(0.5)]],
        [(0.9, 1.0), (-0.1, 0.9), (0.9,), (0.1, 0.2, 0.3), 0.9, "ab", None],
    ),
    (BETAS, [], [torch.tensor([0.9, 0.99]), (torch.tensor(0.9), torch.tensor(1.5)), (0.9, "x"), (0.9, None)]),
    (NumberTuple((NON_NEGATIVE, NON_NEGATIVE), ordered=True), [(0.1, 0.1), (0, 1)], [(1.0, 0.1)]),
    (SWITCH, [True, False], ["yes", None, 2, 1]),
    (Choice(("a", None)), ["a", None], ["b", 1]),
]


@pytest.mark.parametrize(("rule", "good", "bad"), RULES)
def test_a_rule(rule, good, bad):
    for value in good:
        assert rule.read("number", value) is value
    for value in bad:
        with pytest.raises((ValueError, TypeError), match=r"^number[=\[]") as caught:
            rule.read("number", value)
        assert ("tensor(" if isinstance(value, torch.Tensor) else str(value)) in str(caught.value)


EXAMPLES = [
    *[(WHOLE, 5), (Number(least=1, most=4, integer=True), 1), (Number(least=7, integer=True), 7)],
    *[(NON_NEGATIVE, 0.001), (Number(least=1), 5), (Number(above=1, most=2), 1.5), (Number(below=0), -0.5)],
]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_an_error_has_an_example_that_is_accepted(rule, example):
    with pytest.raises(TypeError, match=f"Pass {example}, for example\\.$"):
        rule.read("number", "fast")
    assert rule.read("number", example) == example


# One value beyond each end of each rule of an optimizer, with other arguments where they matter.
BELOW_ZERO = ("lr", "weight_decay", "eps", "momentum", "lr_decay", "momentum_decay", "initial_accumulator_value")
BAD = {name: [] for name in NAMES}
for _name, _known in SIGNATURES.items():
    BAD[_name] += [{key: -0.5} for key in BELOW_ZERO if key == "lr" or isinstance(_known.get(key), (int, float))]
    BAD[_name] += [{key: "yes"} for key, default in _known.items() if isinstance(default, bool)]
    BAD[_name] += [{"betas": (0.9, 1.0)}, {"betas": (1.0, 0.9)}] if "betas" in _known else []
BAD["SGD"] += [{"dampening": nan}, {"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.5}]
BAD["ASGD"] += [{"lambd": nan}, {"t0": "x"}, {"alpha": nan}]
BAD["Adadelta"] += [{"rho": 1.5}, {"rho": -0.1}]
BAD["RMSprop"] += [{"alpha": 1.5}, {"alpha": -0.1}]
BAD["Adafactor"] += [{"eps": (-1e-30, 1e-3)}, {"eps": (1e-30, -0.5)}, {"eps": 1e-30}, {"clip_threshold": 0.0}]
BAD["Adafactor"] += [{"decay_rate": 0.8}, {"beta1": 1.0}, {"beta1": -0.1}, {"lr": None}]
BAD["Adafactor"] += [{"relative_step": True, "lr": 0.05}, {"warmup_init": True}]
BAD["Muon"] += [{"ns_steps": 0}, {"ns_steps": 100}, {"momentum": 1.0}, {"ns_coefficients": (1.0, nan, 2.0)}]
BAD["Muon"] += [{"ns_coefficients": (1.0, 2.0)}, {"adjust_lr_fn": "arbitrary"}]
BAD["Muon"] += [{"ns_coefficients": "cans"}, {"ns_coefficients": [(1.0, 2.0, 3.0), (1.0, 2.0)]}, {"ns_dtype": "int8"}]
BAD["Muon"] += [{"split_sizes": (0, 2)}, {"split_sizes": (1.5, 1.5)}, {"split_sizes": 3}]
BAD["Muon"] += [{"num_heads": 0}]
BAD["Muon"] += [{"ns_steps": 4, "ns_coefficients": "quintic"}, {"ns_steps": 3, "ns_coefficients": [(2.0, -1.5, 0.5)]}]
BAD["Muon"] += [{"split_sizes": (1, 1), "num_heads": 2}, {"transposed": True, "adjust_lr_fn": "original"}]
BAD["NorMuon"] += [*BAD["Muon"][-10:], {"beta2": 1.0}, {"beta2": -0.1}, {"transposed": True}]
BAD["Rprop"] += [{"etas": etas} for etas in ((0.0, 1.2), (1.0, 1.2), (0.5, 1.0), (0.5,))]
BAD["Rprop"] += [{"step_sizes": sizes} for sizes in ((1.0, 0.1), (-1.0, 1.0))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["no", 0, None])
def test_the_global_step_is_a_switch(name, value):
    with pytest.raises(TypeError, match=f"^{name}.enable_global_step={value!r}:"):
        made(name, matrices(), enable_global_step=value)


@pytest.mark.parametrize(("name", "kwargs"), [(name, kwargs) for name in NAMES for kwargs in BAD[name]])
def test_a_bad_value(name, kwargs):
    """At every door: in the constructor, in a group, in one added later, in a state dict."""
    first, second = matrices()
    optimizer = made(name, [first])
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0].update(kwargs)
    before, (argument, value) = snapshot(optimizer), next(iter(kwargs.items()))
    for said, call in (
        ("", lambda: made(name, matrices(), **kwargs)),
        ("group 1: ", lambda: made(name, [{"params": matrices()}, {"params": [second], **kwargs}])),
        ("group 1: ", lambda: optimizer.add_param_group({"params": [second], **kwargs})),
        ("group 0 of the state dict: ", lambda: optimizer.load_state_dict(saved)),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        for word in (said, argument, str(value)):
            assert word in str(caught.value)
        assert caught.value.__cause__ is None  # one error, not a chain of them
    assert not differences(before, snapshot(optimizer)) and second not in optimizer.state


# What a constructor refuses, and the words of the error. Where there are none, torch raises its own.
BAD_PARAMETERS = {
    "a tensor": (lambda: torch.zeros(3, 2), ""),
    "nothing": (lambda: [], ""),
    "none": (lambda: None, "Adam.params=None: "),
    "numbers": (lambda: [0.1, 0.2], ""),
    "text": (lambda: "weights", ""),
    "not a leaf": (lambda: [matrices()[0] * 2], ""),
    "whole numbers": (
        lambda: [torch.zeros(3, 2, dtype=torch.int64)],
        "Adam, group 0: a parameter has dtype torch.int64",
    ),
    "sparse": (lambda: [torch.zeros(3, 2).to_sparse()], "Adam, group 0: a parameter has the layout torch.sparse_coo"),
    "twice": (lambda: [matrices()[0]] * 2, "Adam, group 0: params has a parameter twice"),
    "twice with names": (
        lambda: list(zip("ab", [matrices()[0]] * 2)),
        "Adam, group 0: params has a parameter twice",
    ),
    "some names": (lambda: [("weight", matrices()[0]), matrices()[1]], ""),
    "twice in groups": (lambda: [{"params": p} for p in [matrices()[0]] * 2], ""),
    "group without params": (lambda: [{"lr": 0.1}], "param_group={'lr': 0.1}: it has no 'params'"),
    "group with a set": (lambda: [{"params": set(matrices())}], ""),
    "group and tensor": (lambda: [{"params": matrices()}, matrices()[0]], "param_group=Parameter"),
    "names in some groups": (lambda: [{"params": [("weight", matrices()[0])]}, {"params": [matrices()[1]]}], ""),
    "group with a number as tags": (lambda: [{"params": matrices(), "tags": 3}], "Adam, group 0: tags=3: "),
    "group with numbers as tags": (lambda: [{"params": matrices(), "tags": [1, 2]}], "Adam, group 0: tags=[1, 2]: "),
}


@pytest.mark.parametrize("params", BAD_PARAMETERS)
def test_bad_parameters(params):
    """A group that comes later may hold a single tensor, or none; but none that the optimizer has."""
    optimizer = made("Adam", own := matrices())
    before, (make, words) = snapshot(optimizer), BAD_PARAMETERS[params]
    with pytest.raises((ValueError, TypeError)) as caught:
        made("Adam", make())
    assert words in str(caught.value)
    later = [({"params": own[1:]}, ""), ({"params": [*matrices(1), own[0]]}, ""), ([own[0]], "param_group=[Parameter")]
    later += [(None, "param_group=None: "), ({"lr": 0.1}, "param_group={'lr': 0.1}: it has no 'params'")]
    if "group" not in params and params not in ("nothing", "a tensor"):
        later.append(({"params": make()}, words.partition(": ")[2]))
    for group, said in later:
        with pytest.raises((ValueError, TypeError)) as caught:
            optimizer.add_param_group(group)
        assert said in str(caught.value)
    assert not differences(before, snapshot(optimizer)) and set(optimizer.state) == set(own)


def test_a_number_is_checked_before_the_parameters():
    """As in torch, where momentum=-0.5 is an error without parameters, too."""
    for module in (torch.optim, optim):
        with pytest.raises(ValueError, match="momentum"):
            module.SGD(None, lr=0.1, momentum=-0.5)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_muon_takes_matrices(shape):
    optimizer = optim.Muon(matrices())
    for call in (optim.Muon, lambda params: optimizer.add_param_group({"params": params})):
        with pytest.raises(ValueError, match=r"(?s)Muon.*matri"):
            call([torch.zeros(shape, requires_grad=True)])
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
def test_sparse_gradients_are_refused_and_nothing_is_changed(row):
    params = [p for p in parameters(row.name, torch.float32) if p.ndim == 2 and p.numel()]
    optimizer = ours(row, params)
    give_gradients(params, 3, missing={})
    before = snapshot(optimizer)
    params[-1].grad = params[-1].grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    params[-1].grad = params[-1].grad.to_dense()
    assert not differences(before, snapshot(optimizer))


def test_a_momentum_that_needs_state_is_refused_before_anything_changes():
    optimizer = made("SGD", params := matrices())
    optimizer.param_groups[0]["momentum"] = 0.9
    give_gradients(params, 3, missing={})
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="momentum_buffer"):
        optimizer.step()
    assert not differences(before, snapshot(optimizer))
