"""State follows its parameter: what becomes of it when the parameter is moved, cast, resized, replaced or removed."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import assert_close, differences, give_gradients, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import NAMES

ARGUMENTS = {row.name: row.kwargs for row in FULLEST}
SHAPES = ((4, 6), (3, 5), (6, 2))
NAMED = pytest.mark.parametrize("name", NAMES)
EACH = pytest.mark.parametrize(("name", "way"), [*((name, "eager") for name in NAMES), ("Adam", "compiled")])


class Training:
    """An optimizer over three matrices, with gradients that depend on the step and the shapes alone."""

    def __init__(self, name, way="eager", values=None):
        self.name, self.way = name, way
        generator = torch.Generator().manual_seed(0)
        values = values or [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.params = [Parameter(value.clone()) for value in values]
        groups = [{"params": self.params[:2]}, {"params": self.params[2:]}]
        self.optimizer = getattr(optim, name)(groups, **ARGUMENTS[name])
        if way == "compiled":
            torch._dynamo.reset()
            self.optimizer.compile(backend="eager")

    def gradients(self, step):
        give_gradients(self.params, step, missing={})

    def run(self, *steps):
        for step in steps:
            self.gradients(step)
            self.optimizer.step()
        return self

    def resize(self, i, rows):
        """As transformers resizes embeddings: the same Parameter, with other data."""
        self.params[i].data = torch.full((rows, self.params[i].shape[1]), 0.5)

    def values(self):
        return [p.detach().clone() for p in self.params]

    def anew(self, saved=None):
        """Another optimizer, over copies of these parameters as they are, with the state of a dict."""
        other = Training(self.name, self.way, self.values())
        if saved is not None:
            other.optimizer.load_state_dict(saved)
        return other

    def addresses(self):
        return [id(x) for state in self.optimizer.state.values() for x in state.values()]


def same(mine, other):
    """The same parameters, state and groups, bit for bit; and state for these parameters alone."""
    for training in (mine, other):
        assert set(training.optimizer.state) == set(training.params)
    found = differences(snapshot(mine.optimizer), snapshot(other.optimizer))
    assert not [key for key in found if "params" not in key], found


@contextmanager
def refused(training, *words):
    """The step raises, names these words, and changes nothing."""
    before, addresses = snapshot(training.optimizer), training.addresses()
    with pytest.raises((ValueError, RuntimeError)) as caught:
        yield
    assert not [word for word in words if str(word) not in str(caught.value)], caught.value
    assert not differences(before, snapshot(training.optimizer)) and addresses == training.addresses()


def cast(training, dtype):
    """As `model.to(dtype)` does."""
    for p in training.params:
        p.data = p.data.to(dtype)
        p.grad = None if p.grad is None else p.grad.to(dtype)


def replace(training, *new):
    """From the second parameter on, or all of them."""
    training.params[-len(new) :] = map(Parameter, new)
    training.optimizer.param_groups[0]["params"][:] = training.params[:2]
    training.optimizer.param_groups[1]["params"][:] = training.params[2:]


def reset_resized(training):
    training.resize(1, 9)
    training.optimizer.reset_state(training.params[1])


# What a program does between steps, and the parameters whose state is then as at construction.
CHANGES = {
    "float64": (lambda training: cast(training, torch.float64), ()),
    "bfloat16": (lambda training: cast(training, torch.bfloat16), ()),
    "two replaced": (lambda training: replace(training, torch.ones(7, 7), torch.ones(2, 5)), (1, 2)),
    "all replaced": (lambda training: replace(training, *(torch.full((i, 3), 0.5) for i in (2, 3, 4))), (0, 1, 2)),
    "one cleared": (lambda training: training.optimizer.state[training.params[1]].clear(), (1,)),
    "all cleared": (lambda training: training.optimizer.state.clear(), (0, 1, 2)),
    "resized and reset": (reset_resized, (1,)),
    "all reset": (lambda training: training.optimizer.reset_state(), (0, 1, 2)),
}


@EACH
@pytest.mark.parametrize("change", CHANGES)
def test_state_follows(name, way, change):
    """As an optimizer over the new parameters that loads what was kept; for a copy, the original notices nothing."""
    for steps in [(), (1, 2)] if way == "eager" else [(1, 2)]:
        original = Training(name, way).run(*steps)
        training = copy.deepcopy(original) if way == "eager" else original
        saved = copy.deepcopy(training.optimizer.state_dict())
        make, anew = CHANGES[change]
        make(training)
        saved["state"] = {i: state for i, state in saved["state"].items() if i not in anew}
        other = training.anew(saved)
        same(training.run(3, 4), other.run(3, 4))
        if way == "eager":
            same(original.run(3, 4), Training(name).run(*steps, 3, 4))


@pytest.mark.parametrize("name", ["Adam", "Adafactor"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_load_into_changed_parameters(name, change):
    training = Training(name).run(1, 2)
    CHANGES[change][0](training)
    saved = copy.deepcopy(training.anew().run(5).optimizer.state_dict())
    other = training.anew(saved)
    training.optimizer.load_state_dict(saved)
    same(training.run(6, 7), other.run(6, 7))


@NAMED
def test_meta_parameters_that_get_values(name):
    training = Training(name, values=[torch.empty(shape, device="meta") for shape in SHAPES]).run()
    for i, p in enumerate(training.params):
        torch.utils.swap_tensors(p, Parameter(torch.full(SHAPES[i], 0.5)))
    other = training.anew()
    same(training.run(1, 2), other.run(1, 2))


@EACH
def test_state_of_another_shape_is_an_error(name, way):
    """Until it is asked for anew: the step, a save and a load say so, and change nothing."""
    training = Training(name, way).run(1, 2)
    optimizer, fitting = training.optimizer, training.optimizer.state_dict()
    training.resize(0, 64)
    for call in (optimizer.step, optimizer.state_dict, lambda: optimizer.load_state_dict(fitting)):
        with refused(training, name, "parameter 0 of group 0", "(64, 6)", "reset_state"):
            call()
    training.optimizer.reset_state(training.params[:1])
    training.run(3)


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
    training = Training(name).run(1, 2)
    state = training.optimizer.state[training.params[0]]
    kinds = {key: (x.shape, x.dtype) for key, x in state.items()}
    spoil(state, max(state))
    training.gradients(3)
    with refused(training, name, "parameter 0 of group 0", "reset_state"):
        training.optimizer.step()
    training.optimizer.reset_state(training.params[0])
    training.run(3)
    assert {key: (x.shape, x.dtype) for key, x in training.optimizer.state[training.params[0]].items()} == kinds


def test_what_else_is_refused():
    training = Training("Adam").run(1)
    training.optimizer.state["global"] = {"x": torch.ones(1)}
    with pytest.raises(ValueError, match="Adam: optimizer.state has the key 'global', and its keys are parameters"):
        training.optimizer.step()
    training = Training("Adam").run(1)
    with refused(training, "Adam", (2, 2), "in none of the groups"):
        training.optimizer.reset_state([torch.ones(2, 2)])
    training.optimizer.param_groups[0]["params"][1] = torch.ones(3, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"parameter 1 of group 0.*int64"):
        training.optimizer.step()


@NAMED
def test_gradient_from_before_its_parameter_was_cast(name):
    """Nothing is counted, and no parameter moves, also not those that come first."""
    training = Training(name)
    training.gradients(1)
    training.params[2].data = training.params[2].data.double()
    before = training.anew()
    with pytest.raises(RuntimeError, match=r"(?s)float64 of shape \(6, 2\).*float32.*zero_grad"):
        training.optimizer.step()
    training.optimizer.zero_grad()
    same(training.run(1, 2), before.run(1, 2))


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
    training, other = Training(name).run(1, 2), Training(name).run(1, 2)
    before = training.addresses()
    training.params[0].requires_grad_(False)
    training.params[1].data = training.params[1].data.clone()
    training.params[2].data = training.params[2].data.t().contiguous().t()
    training.run(3, 4)
    other.run(3, 4)
    assert before == training.addresses()
    for p, q in zip(training.params, other.params, strict=True):
        assert_close(p, q, 1e-5)  # a transposed matrix may be summed up in another order
    training.optimizer.reset_state()
    assert before == training.addresses()


@NAMED
def test_swapped_in(name):
    """Other parameters and their state for a while, as torch 2.13 puts them there."""
    training, untouched = Training(name).run(1, 2), Training(name).run(1, 2)
    guest, host = Training(name).run(1, 2, 3), Training(name).run(1, 2, 3)
    params = {str(i): p for i, p in enumerate(guest.params)}
    with torch.optim.swap_in_optimizer_params_and_state(training.optimizer, params, guest.optimizer.state_dict()):
        guest.gradients(4)
        training.optimizer.step()
    same(host.run(4), guest)
    same(training.run(3, 4), untouched.run(3, 4))


@pytest.mark.parametrize("change", ["float64", "two replaced", "all cleared"])
def test_a_graph_of_ones_own(change):
    """It is compiled anew after a change, and the error says what to do; torch puts it into one of its own."""
    training = Training("Adam")
    training.gradients(1)
    torch._dynamo.reset()
    step = torch.compile(training.optimizer.step, fullgraph=True, backend="eager")
    step()
    CHANGES[change][0](training)
    training.gradients(2)
    before = training.values()
    with pytest.raises(Exception, match=r"(?s)has no state that fits it.*one step outside the graph"):
        step()
    assert all(map(torch.equal, before, training.values()))
