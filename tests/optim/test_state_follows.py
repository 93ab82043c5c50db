"""State follows its parameter: what becomes of it when the parameter is moved, cast, resized, replaced or removed."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.extent import IS_DEEP
from tests.optim.problems import assert_close, differences, flat, give_gradients, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import NAMES

ARGUMENTS = {row.name: row.kwargs for row in FULLEST}
SHAPES = ((4, 6), (3, 5), (6, 2))
NAMED = pytest.mark.parametrize("name", NAMES)
EACH = pytest.mark.parametrize(("name", "way"), [*((name, "eager") for name in NAMES), ("Adam", "compiled")])


def made(name, way="eager", values=None):
    """An optimizer over three matrices in two groups."""
    generator = torch.Generator().manual_seed(0)
    values = values or [torch.randn(shape, generator=generator) for shape in SHAPES]
    first, second, third = (Parameter(value.clone()) for value in values)
    optimizer = getattr(optim, name)([{"params": [first, second]}, {"params": [third]}], **ARGUMENTS[name])
    if way == "compiled":
        torch._dynamo.reset()
        optimizer.compile(backend="eager")
    return optimizer


def trained(optimizer, *steps):
    """With gradients that depend on the step and the shapes alone."""
    for step in steps:
        give_gradients(flat(optimizer), step, missing={})
        optimizer.step()
    return optimizer


def anew(optimizer, way="eager"):
    """Another optimizer, over copies of the parameters as they are."""
    return made(type(optimizer).__name__, way, [p.detach() for p in flat(optimizer)])


def resize(optimizer, i, rows):
    """As transformers resizes embeddings: the same Parameter, with other data."""
    p = flat(optimizer)[i]
    p.data = torch.full((rows, p.shape[1]), 0.5)


def addresses(optimizer):
    return [id(x) for state in optimizer.state.values() for x in state.values()]


def same(mine, other):
    """The same parameters, state and groups, bit for bit; and state for these parameters alone."""
    assert all(set(one.state) == set(flat(one)) for one in (mine, other))
    found = differences(snapshot(mine), snapshot(other))
    assert not [key for key in found if "params" not in key], found


@contextmanager
def refused(optimizer, *words):
    """The step raises, names these words, and changes nothing."""
    before, places = snapshot(optimizer), addresses(optimizer)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        yield
    assert not [word for word in words if str(word) not in str(caught.value)], caught.value
    assert not differences(before, snapshot(optimizer)) and places == addresses(optimizer)


def cast(optimizer, dtype):
    """As `model.to(dtype)` does."""
    for p in flat(optimizer):
        p.data = p.data.to(dtype)
        p.grad = None if p.grad is None else p.grad.to(dtype)


def replace(optimizer, *new):
    """From the second parameter on, or all of them."""
    params = [*flat(optimizer)[: 3 - len(new)], *map(Parameter, new)]
    optimizer.param_groups[0]["params"], optimizer.param_groups[1]["params"] = params[:2], params[2:]


def reset_resized(optimizer):
    resize(optimizer, 1, 9)
    optimizer.reset_state(flat(optimizer)[1])


# What a program does between steps, and the parameters whose state is then as at construction.
CHANGES = {
    "float64": (lambda one: cast(one, torch.float64), ()),
    "bfloat16": (lambda one: cast(one, torch.bfloat16), ()),
    "two replaced": (lambda one: replace(one, torch.ones(7, 7), torch.ones(2, 5)), (1, 2)),
    "all replaced": (lambda one: replace(one, *(torch.full((i, 3), 0.5) for i in (2, 3, 4))), (0, 1, 2)),
    "one cleared": (lambda one: one.state[flat(one)[1]].clear(), (1,)),
    "all cleared": (lambda one: one.state.clear(), (0, 1, 2)),
    "resized and reset": (reset_resized, (1,)),
    "all reset": (lambda one: one.reset_state(), (0, 1, 2)),
}


# A graph of another dtype, of other parameters, and of new state for one of them; make test-deep has them all.
COMPILED = CHANGES if IS_DEEP else ("float64", "two replaced", "resized and reset")
WALKS = [(change, name, "eager") for change in CHANGES for name in NAMES]
WALKS += [(change, "Adam", "compiled") for change in COMPILED]


@pytest.mark.parametrize(("change", "name", "way"), WALKS)
def test_state_follows(change, name, way):
    """As an optimizer over the new parameters that loads what was kept; for a copy, the original notices nothing."""
    make, begins = CHANGES[change]
    for steps in [(), (1, 2)] if way == "eager" else [(1, 2)]:
        original = trained(made(name, way), *steps)
        optimizer = copy.deepcopy(original) if way == "eager" else original
        saved = copy.deepcopy(optimizer.state_dict())
        make(optimizer)
        saved["state"] = {i: state for i, state in saved["state"].items() if i not in begins}
        (other := anew(optimizer, way)).load_state_dict(saved)
        same(trained(optimizer, 3, 4), trained(other, 3, 4))
        if way == "eager":
            same(trained(original, 3, 4), trained(made(name), *steps, 3, 4))


@pytest.mark.parametrize("name", ["Adam", "Adafactor"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_load_into_changed_parameters(name, change):
    optimizer = trained(made(name), 1, 2)
    CHANGES[change][0](optimizer)
    saved, other = copy.deepcopy(trained(anew(optimizer), 5).state_dict()), anew(optimizer)
    for one in (optimizer, other):
        one.load_state_dict(saved)
    same(trained(optimizer, 6, 7), trained(other, 6, 7))


@NAMED
def test_meta_parameters_that_get_values(name):
    optimizer = made(name, values=[torch.empty(shape, device="meta") for shape in SHAPES])
    for p in flat(optimizer):
        torch.utils.swap_tensors(p, Parameter(torch.full(p.shape, 0.5)))
    other = anew(optimizer)
    same(trained(optimizer, 1, 2), trained(other, 1, 2))


@EACH
def test_state_of_another_shape_is_an_error(name, way):
    """Until it is asked for anew: the step, a save and a load say so, and change nothing."""
    optimizer = trained(made(name, way), 1, 2)
    fitting = optimizer.state_dict()
    resize(optimizer, 0, 64)
    for call in (optimizer.step, optimizer.state_dict, lambda: optimizer.load_state_dict(fitting)):
        with refused(optimizer, name, "parameter 0 of group 0", "(64, 6)", "reset_state"):
            call()
    optimizer.reset_state(flat(optimizer)[:1])
    trained(optimizer, 3)


SPOILT = {
    "number": lambda state, key: state.update({key: 0}),
    "nothing": lambda state, key: state.update({key: None}),
    "another shape": lambda state, key: state.update({key: torch.ones(70, 70)}),
    "another shape in place": lambda state, key: setattr(state[key], "data", torch.ones(70, 70)),
    "one too many": lambda state, key: state.update(mystery=torch.ones(())),
    "one lacks": lambda state, key: (state.pop(key), state.update(other=torch.ones(()))),
}


@NAMED
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_state_that_does_not_fit(name, spoil):
    """Put there by hand; `reset_state` makes it right again."""
    optimizer = trained(made(name), 1, 2)
    p = flat(optimizer)[0]
    kinds = {key: (x.shape, x.dtype) for key, x in optimizer.state[p].items()}
    spoil(optimizer.state[p], max(kinds))
    with refused(optimizer, name, "parameter 0 of group 0", "reset_state"):
        optimizer.step()
    optimizer.reset_state(p)
    trained(optimizer, 3)
    assert {key: (x.shape, x.dtype) for key, x in optimizer.state[p].items()} == kinds


def test_what_else_is_refused():
    optimizer = trained(made("Adam"), 1)
    optimizer.state["global"] = {"x": torch.ones(1)}
    with pytest.raises(ValueError, match="optimizer.state has the key 'global'"):
        optimizer.step()
    optimizer = trained(made("Adam"), 1)
    with refused(optimizer, "Adam", (2, 2), "in none of the groups"):
        optimizer.reset_state([torch.ones(2, 2)])
    optimizer.param_groups[0]["params"][1] = torch.ones(3, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"parameter 1 of group 0.*int64"):
        optimizer.step()


@NAMED
@pytest.mark.parametrize("place", ["two groups", "one group"])
def test_a_parameter_twice(name, place):
    """The error names both places, in each call that would use the state. Without the second place, all goes on."""
    optimizer, other = trained(made(name), 1), trained(made(name), 1)
    saved = copy.deepcopy(other.state_dict())
    if place == "two groups":
        optimizer.param_groups.extend(optimizer.param_groups)
        match = "parameter 0 of group 0 is also parameter 0 of group 2. Put"
    else:
        optimizer.param_groups[1]["params"].append(flat(optimizer)[1])
        match = "parameter 1 of group 0 is also parameter 1 of group 1. Put"
    before = snapshot(optimizer)
    for call in (optimizer.state_dict, optimizer.step, optimizer.reset_state, lambda: optimizer.load_state_dict(saved)):
        with pytest.raises(ValueError, match=f"^{name}: {match}"):
            call()
    assert not differences(before, snapshot(optimizer))
    if place == "two groups":
        del optimizer.param_groups[2:]
    else:
        optimizer.param_groups[1]["params"].pop()
    same(trained(optimizer, 2), trained(other, 2))


@NAMED
def test_gradient_from_before_its_parameter_was_cast(name):
    """Nothing is counted, and no parameter moves, also not those that come first."""
    optimizer = made(name)
    give_gradients(flat(optimizer), 1, missing={})
    flat(optimizer)[2].data = flat(optimizer)[2].data.double()
    other = anew(optimizer)
    with pytest.raises(RuntimeError, match=r"float64 of shape \(6, 2\), but its grad"):
        optimizer.step()
    optimizer.zero_grad()
    same(trained(optimizer, 1, 2), trained(other, 1, 2))


@NAMED
def test_parameters_come_and_go(name):
    """Also one without a name among named ones."""
    first, second = Parameter(torch.ones(4, 6)), Parameter(torch.ones(3, 5))
    optimizer = getattr(optim, name)([("first", first)], **ARGUMENTS[name])
    params = optimizer.param_groups[0]["params"]
    params.append(second)
    for p in (first, second):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert set(optimizer.state) == {first, second} and not torch.equal(second, torch.ones(3, 5))
    params.remove(first)
    optimizer.step()
    assert set(optimizer.state) == {second} and list(optimizer.state_dict()["state"]) == [0]


@NAMED
def test_state_stays_where_it_is(name):
    """When parameters are frozen or laid out otherwise in memory, and after a reset."""
    optimizer, other = (trained(made(name), 1, 2) for _ in range(2))
    before, params = addresses(optimizer), flat(optimizer)
    params[0].requires_grad_(False)
    params[1].data = params[1].data.clone()
    params[2].data = params[2].data.t().contiguous().t()
    for p, q in zip(flat(trained(optimizer, 3, 4)), flat(trained(other, 3, 4)), strict=True):
        assert_close(p, q, 1e-5)  # a transposed matrix may be summed up in another order
    assert before == addresses(optimizer)
    optimizer.reset_state()
    assert before == addresses(optimizer)


@NAMED
def test_swapped_in(name):
    """Other parameters and their state for a while, as torch 2.13 puts them there."""
    optimizer, untouched = (trained(made(name), 1, 2) for _ in range(2))
    guest, host = (trained(made(name), 1, 2, 3) for _ in range(2))
    params = {str(i): p for i, p in enumerate(flat(guest))}
    with torch.optim.swap_in_optimizer_params_and_state(optimizer, params, guest.state_dict()):
        give_gradients(flat(guest), 4, missing={})
        optimizer.step()
    same(trained(host, 4), guest)
    same(trained(optimizer, 3, 4), trained(untouched, 3, 4))


@pytest.mark.parametrize("change", ["float64", "two replaced", "all cleared"])
def test_a_graph_of_ones_own(change):
    """It is compiled anew after a change, and the error says what to do; torch puts it into one of its own."""
    optimizer = made("Adam")
    give_gradients(flat(optimizer), 1, missing={})
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    step()
    CHANGES[change][0](optimizer)
    give_gradients(flat(optimizer), 2, missing={})
    before = [p.detach().clone() for p in flat(optimizer)]
    with pytest.raises(Exception, match="state does not fit"):
        step()
    assert all(map(torch.equal, before, flat(optimizer)))


def test_a_reset_makes_the_state_that_a_momentum_needs_by_now():
    p = Parameter(torch.ones(3))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.0)
    optimizer.param_groups[0]["momentum"] = 0.9
    optimizer.reset_state()
    assert torch.equal(optimizer.state[p]["momentum_buffer"], torch.zeros(3))
