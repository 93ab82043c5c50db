"""Arguments: names and defaults are those of the table; what cannot be is refused before anything changes, by an error
that names the argument and shows the value: in the constructor, in a group, in one added later, in a state dict."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import KEYWORD_ONLY, NAMES, REQUIRED, SIGNATURES

nan, inf = float("nan"), float("inf")


@dataclass(frozen=True, eq=False)
class Bad:
    name: str
    argument: str
    kwargs: Mapping[str, Any]
    shown: str  # how the error shows the value

    @property
    def id(self) -> str:
        return f"{self.name}-" + "-".join(f"{key}={value!r}" for key, value in self.kwargs.items()).replace(
            " ", ""
        ).replace("'", "")

    @property
    def base(self) -> dict[str, Any]:
        """Good arguments, where some are required."""
        return {"lr": 0.05} if SIGNATURES[self.name]["lr"] is REQUIRED else {}


def bad(name: str, argument: str, value: Any, shown: str | None = None, **others: Any) -> Bad:
    return Bad(name, argument, {argument: value, **others}, str(value) if shown is None else shown)


NOT_RATES: list[tuple[Any, str]] = [
    (-0.5, "-0.5"),
    (nan, "nan"),
    (inf, "inf"),
    ("fast", "fast"),
    (True, "True"),
    ([0.1], "[0.1]"),
    (torch.tensor(nan), "nan"),
    (torch.tensor(-0.25), "-0.25"),
    (torch.tensor([0.1, 0.2]), "0.1"),
    (torch.tensor(1), "1"),
    (1j, "1j"),
]
NOT_FRACTIONS = [(1.5, "1.5"), (-0.1, "-0.1"), (nan, "nan"), ("x", "x"), (None, "None")]
NOT_SWITCHES = [("yes", "yes"), (None, "None"), (2, "2")]

BAD = [bad(name, "lr", value, shown) for name in NAMES for value, shown in NOT_RATES]
for _name in NAMES:
    _known = SIGNATURES[_name]
    for _argument in ("weight_decay", "eps", "momentum", "lr_decay", "momentum_decay", "initial_accumulator_value"):
        if isinstance(_known.get(_argument), (int, float)):
            BAD += [bad(_name, _argument, *pair) for pair in [*NOT_RATES[:4], (None, "None")]]
    for _argument in ("rho", "alpha"):
        if _argument in _known:
            # torch takes any alpha in ASGD, and those above 1 in RMSprop.
            BAD += [bad(_name, _argument, *pair) for pair in NOT_FRACTIONS[{"RMSprop": 1, "ASGD": 2}.get(_name, 0) :]]
    for _argument, _default in _known.items():
        if isinstance(_default, bool):
            BAD += [bad(_name, _argument, *pair) for pair in NOT_SWITCHES]
    if "betas" in _known:
        BAD += [bad(_name, "betas", (0.9, value), shown) for value, shown in [*NOT_FRACTIONS, (1.0, "1.0")]]
        BAD += [bad(_name, "betas", (value, 0.9), shown) for value, shown in [*NOT_FRACTIONS, (1.0, "1.0")]]
        BAD += [
            bad(_name, "betas", (0.9,)),
            bad(_name, "betas", (0.9, 0.99, 0.999)),
            bad(_name, "betas", 0.9),
            bad(_name, "betas", "ab"),
            bad(_name, "betas", None),
            bad(_name, "betas", torch.tensor([0.9, 0.99]), "0.9"),
            bad(_name, "betas", (torch.tensor(0.9), torch.tensor(1.5)), "1.5"),
        ]
    if "etas" in _known:
        _etas = [(1.0, 0.5), (0.0, 1.2), (0.5, 1.0), (-0.5, 1.2), (0.5, nan), (nan, 1.2), (0.5, inf), (0.5,), 0.5, "ab"]
        _sizes = [(1.0, 0.1), (-1.0, 1.0), (nan, 1.0), (0.1, nan), (inf, inf), (0.1,), 3.0, (1, "x")]
        BAD += [bad(_name, "etas", value, "") for value in _etas]
        BAD += [bad(_name, "step_sizes", value, "") for value in _sizes]

BAD += [
    bad("SGD", "nesterov", True),
    bad("SGD", "nesterov", True, momentum=0.9, dampening=0.5),
    bad("Adafactor", "lr", None),
    bad("Adafactor", "relative_step", True),  # lr is given
    bad("Adafactor", "warmup_init", True),
    bad("Adafactor", "eps", (-1e-30, 1e-3), "-1e-30"),
    bad("Adafactor", "eps", (1e-30, -0.5), "-0.5"),
    bad("Adafactor", "eps", (nan, 1e-3), "nan"),
    bad("Muon", "ns_coefficients", (1.0, nan, 2.0), "nan"),
]
BAD += [
    bad(_name, _argument, value)
    for _name, _argument, _values in (
        ("SGD", "dampening", [nan, inf, "x"]),
        ("ASGD", "lambd", [nan, "x"]),
        ("ASGD", "t0", [nan, "x"]),
        ("Adafactor", "eps", [1e-30, (1e-30,)]),
        ("Adafactor", "clip_threshold", [0.0, -1.0, nan, "x"]),
        ("Adafactor", "decay_rate", [0.8, nan]),
        ("Adafactor", "beta1", [1.0, -0.1, nan, "x"]),
        ("Muon", "ns_steps", [0, -1, 100, 2.5, True, "five"]),
        ("Muon", "ns_coefficients", [(1.0, 2.0), 3.0]),
        ("Muon", "adjust_lr_fn", ["arbitrary", 1]),
    )
    for value in _values
]

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
NAMED = pytest.mark.parametrize("name", NAMES)


def matrices(n=2):
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(3, 2, generator=generator)) for _ in range(n)]


def good(name, params, **kwargs):
    if SIGNATURES[name]["lr"] is REQUIRED:
        kwargs.setdefault("lr", 0.05)
    return getattr(optim, name)(params, **kwargs)


@NAMED
def test_names_and_defaults(name):
    said = inspect.signature(getattr(optim, name)).parameters
    expected = SIGNATURES[name]
    assert next(iter(said)) == "params"
    assert [key for key in said if key not in ("params", "enable_global_step")] == list(expected)
    for key, default in expected.items():
        value = said[key].default
        assert value is inspect.Parameter.empty if default is REQUIRED else value == default, key
        keyword = said[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword == (key in KEYWORD_ONLY.get(name, ())), key
    switch = said["enable_global_step"]
    assert switch.default is False and switch.kind is inspect.Parameter.KEYWORD_ONLY


@NAMED
def test_positional_arguments(name):
    arguments = SIGNATURES[name]
    lr = 0.25 if arguments["lr"] is REQUIRED else arguments["lr"]
    optimizer = getattr(optim, name)([Parameter(torch.ones(2, 2))], lr)
    group = optimizer.param_groups[0]
    assert {key: group[key] for key in arguments} == {**arguments, "lr": lr}
    assert set(optimizer.defaults) >= set(arguments)


def test_the_table_is_large_enough():
    assert len(BAD) >= 100 and {row.name for row in BAD} == set(NAMES)
    assert len({row.id for row in BAD}) == len(BAD)


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.id)
def test_a_bad_value(row):
    first, second = matrices()

    def refused(call):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert row.argument in str(caught.value)
        return caught.value

    optimizer = good(row.name, [first])
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0].update(row.kwargs)
    before = snapshot(optimizer)
    for call in (
        lambda: getattr(optim, row.name)(matrices(), **{**row.base, **row.kwargs}),
        lambda: good(row.name, [{"params": [first]}, {"params": [second], **row.kwargs}]),
        lambda: optimizer.add_param_group({"params": [second], **row.kwargs}),
    ):
        error = refused(call)
        assert row.shown in str(error)
        assert error.__cause__ is None  # one error, not a chain of them
    refused(lambda: optimizer.load_state_dict(saved))
    assert len(optimizer.param_groups) == 1 and second not in optimizer.state
    assert not differences(before, snapshot(optimizer))
    optimizer.add_param_group({"params": [second]})


@NAMED
@pytest.mark.parametrize("switch", ["foreach", "fused", "capturable", "differentiable", "momentumm"])
def test_there_are_no_execution_switches(name, switch):
    with pytest.raises(TypeError, match=switch):
        good(name, matrices(), **{switch: True})


@pytest.mark.parametrize("name", [name for name in NAMES if SIGNATURES[name]["lr"] is REQUIRED])
def test_lr_is_required(name):
    with pytest.raises(TypeError, match="lr"):
        getattr(optim, name)(matrices())


BAD_PARAMETERS = {
    "a_tensor": lambda: torch.zeros(3, 2),
    "a_parameter": lambda: matrices()[0],
    "nothing": lambda: [],
    "none": lambda: None,
    "a_number": lambda: 3,
    "numbers": lambda: [0.1, 0.2],
    "text": lambda: "weights",
    "strings": lambda: ["weight"],
    "not_a_leaf": lambda: [matrices()[0] * 2],
    "whole_numbers": lambda: [torch.zeros(3, 2, dtype=torch.int64)],
    "truth_values": lambda: [torch.zeros(3, 2, dtype=torch.bool)],
    "sparse": lambda: [torch.zeros(3, 2).to_sparse()],
    "twice": lambda: [matrices()[0]] * 2,
    "twice_in_groups": lambda: [{"params": p} for p in [matrices()[0]] * 2],
    "group_without_params": lambda: [{"lr": 0.1}],
    "group_of_text": lambda: [{"params": "weights"}],
    "group_with_a_set": lambda: [{"params": set(matrices())}],
    "group_and_tensor": lambda: [{"params": matrices()}, matrices()[0]],
    "some_names": lambda: [("weight", matrices()[0]), matrices()[1]],
    "names_in_some_groups": lambda: [{"params": [("weight", matrices()[0])]}, {"params": [matrices()[1]]}],
    "tags_of_a_number": lambda: [{"params": matrices(), "tags": 3}],
    "tags_of_numbers": lambda: [{"params": matrices(), "tags": [1, 2]}],
}


@pytest.mark.parametrize("params", BAD_PARAMETERS)
def test_bad_parameters(params):
    for name in NAMES:
        with pytest.raises((ValueError, TypeError)):
            good(name, BAD_PARAMETERS[params]())


# A group may hold a single tensor, or none.
LATER = [key for key in BAD_PARAMETERS if key not in ("nothing", "a_tensor", "a_parameter")]


@pytest.mark.parametrize("params", [key for key in LATER if "group" not in key and key[:4] != "tags"])
def test_bad_parameters_added_later(params):
    for name in NAMES:
        optimizer = good(name, matrices())
        before = snapshot(optimizer)
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group({"params": BAD_PARAMETERS[params]()})
        assert not differences(before, snapshot(optimizer)) and len(optimizer.param_groups) == 1
        assert set(optimizer.state) == set(flat(optimizer))


@NAMED
def test_a_parameter_of_another_group_added_later(name):
    params = matrices()
    optimizer = good(name, params)
    before = snapshot(optimizer)
    for again in ({"params": params[1:]}, {"params": [*matrices(1), params[0]]}, [params[0]], None):
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group(again)
    assert not differences(before, snapshot(optimizer)) and set(optimizer.state) == set(params)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_muon_takes_matrices(shape):
    with pytest.raises(ValueError, match=r"(?s)Muon.*matri"):
        optim.Muon([torch.zeros(shape, requires_grad=True)])
    optimizer = optim.Muon(matrices())
    with pytest.raises(ValueError, match=r"(?s)Muon.*matri"):
        optimizer.add_param_group({"params": [torch.zeros(shape, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1


@BY_NAME
def test_sparse_gradients_are_refused_and_nothing_is_changed(row):
    params = [p for p in parameters(row.name, torch.float32) if p.ndim == 2 and p.numel()]
    optimizer = ours(row, params)
    run(optimizer, params, 1, 2)
    give_gradients(params, 3, missing={})
    params[-1].grad = params[-1].grad.to_sparse()
    before = snapshot(optimizer)
    with pytest.raises((RuntimeError, ValueError, TypeError), match="sparse"):
        optimizer.step()
    after = snapshot(optimizer)
    for key in list(before):
        if key[0] == "grad" and before[key] is not None and before[key].is_sparse:
            assert torch.equal(before.pop(key).to_dense(), after.pop(key).to_dense())
    assert not differences(before, after)


def test_the_error_names_the_group():
    with pytest.raises(ValueError, match=r"(?s)group 1.*lr"):
        good("Adam", [{"params": matrices(1)}, {"params": matrices(1), "lr": -1.0}])


def test_a_momentum_that_needs_state_is_refused_before_anything_changes():
    (p,) = matrices(1)
    optimizer = optim.SGD([p], lr=0.1)
    optimizer.param_groups[0]["momentum"] = 0.9
    p.grad = torch.ones_like(p)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="momentum_buffer"):
        optimizer.step()
    assert not differences(before, snapshot(optimizer))
