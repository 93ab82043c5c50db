"""State follows its parameter: what becomes of it when the parameter is cast, resized, replaced, frozen or removed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.torch_version import TorchVersion

import optim
from tests.optim.problems import assert_close, differences, snapshot
from tests.optim.signatures import NAMES

# As much state as each optimizer can have.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adafactor": {"lr": 0.1, "beta1": 0.9},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "centered": True},
    "Lion": {"lr": 0.1},
    "ASGD": {"lr": 0.1, "lambd": 0.1, "t0": 2},
}
SHAPES = ((4, 6), (3, 5), (6, 2))
# Compiling takes most of the time: on one torch is enough, for one optimizer of each kind of state (a moment alone,
# with counters and a maximum, factors of a matrix, numbers, matrices only). A graph of the user's own is tried on all.
FEW = ("SGD", "Adam", "Adafactor", "ASGD", "Muon")
WAYS = {"eager": NAMES, "compiled": FEW if TorchVersion(torch.__version__) >= "2.9" else ()}
IN_TORCH = [name for name in NAMES if hasattr(torch.optim, name) and name not in ("Adafactor", "Muon")]  # same formula

WITH = [(name, way) for way, names in WAYS.items() for name in names]
EACH = pytest.mark.parametrize(("name", "way"), WITH)
NAMED = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def some(way: str, *choices: Any) -> tuple[Any, ...]:
    """All of them, or where each takes seconds to compile the first alone."""
    return choices if way == "eager" else choices[:1]


class Training:
    """An optimizer over three matrices, with gradients that depend on the step and the shapes alone."""

    def __init__(self, name: str, way: str, values: list[Tensor] | None = None, **extra: Any) -> None:
        self.name, self.way = name, way
        generator = torch.Generator().manual_seed(0)
        values = values or [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.params = [Parameter(value.clone()) for value in values]
        groups = [{"params": self.params[:2]}, {"params": self.params[2:]}]
        self.optimizer = getattr(optim, name)(groups, **ARGUMENTS.get(name, {}), **extra)
        if way == "compiled":
            self.optimizer.compile(backend="eager")

    def gradients(self, step: int, skip: tuple[int, ...] = ()) -> None:
        for i, p in enumerate(self.params):
            generator = torch.Generator().manual_seed(10 * step + i)
            p.grad = None if i in skip else torch.randn(p.shape, generator=generator).to(p.dtype)

    def run(self, *steps: int, skip: tuple[int, ...] = ()) -> Training:
        for step in steps:
            self.gradients(step, skip)
            self.optimizer.step()
        return self

    def resize(self, i: int, rows: int) -> None:
        """As transformers resizes embeddings: the same Parameter, with other data."""
        generator = torch.Generator().manual_seed(rows)
        self.params[i].data = torch.randn(rows, self.params[i].shape[1], generator=generator)

    def cast(self, dtype: torch.dtype) -> None:
        """As `model.to(dtype)` does."""
        for p in self.params:
            p.data = p.data.to(dtype)
            p.grad = None if p.grad is None else p.grad.to(dtype)

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.params]

    def fresh(self, **extra: Any) -> Training:
        """Another optimizer, over copies of these parameters as they are."""
        return Training(self.name, self.way, self.values(), **extra)

    def loaded(self, source: dict[str, Any]) -> Training:
        """Another optimizer, over copies of these parameters, with a state dict of this one."""
        other = self.fresh()
        other.optimizer.load_state_dict(source)
        return other


def same(mine: Training, other: Training) -> None:
    """The same parameters, state and groups, bit for bit; and state for these parameters alone."""
    for training in (mine, other):
        assert set(training.optimizer.state) == set(training.params)
        for p, state in training.optimizer.state.items():
            for key, x in state.items():
                assert x.device == p.device, key
    found = differences(*(snapshot(training.optimizer) for training in (mine, other)))
    assert not [key for key in found if "params" not in key], found


@contextmanager
def refused(training: Training, *words: Any) -> Iterator[None]:
    """The step raises, names these words, and changes nothing."""
    before = snapshot(training.optimizer)
    tensors = {id(x) for state in training.optimizer.state.values() for x in state.values()}
    with pytest.raises((ValueError, RuntimeError)) as caught:
        yield
    assert_names(caught.value, *words)
    assert not differences(before, snapshot(training.optimizer))
    assert tensors == {id(x) for state in training.optimizer.state.values() for x in state.values()}


def assert_names(error: BaseException, *words: Any) -> None:
    missing = [word for word in words if str(word) not in str(error)]
    assert not missing, f"{missing} not in {error}"


@EACH
def test_cast_before_the_first_step(name: str, way: str) -> None:
    for dtype in some(way, torch.float64, torch.bfloat16):
        training = Training(name, way)
        training.cast(dtype)
        other = training.fresh()
        same(training.run(1, 2, 3), other.run(1, 2, 3))


@EACH
def test_cast_later(name: str, way: str) -> None:
    for dtype in some(way, torch.float64, torch.bfloat16):
        training = Training(name, way).run(1, 2)
        saved = copy.deepcopy(training.optimizer.state_dict())
        training.cast(dtype)
        other = training.loaded(saved)
        same(training.run(3, 4), other.run(3, 4))


@pytest.mark.parametrize(("name", "way"), [each for each in WITH if each[0] in IN_TORCH])
def test_cast_later_as_torch_loads_it(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2)
    saved = copy.deepcopy(training.optimizer.state_dict())
    training.cast(torch.float64)
    params = [Parameter(value) for value in training.values()]
    theirs = getattr(torch.optim, name)([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    for group in saved["param_groups"]:  # what a graph holds in tensors, torch's eager step takes as numbers
        for key, value in group.items():
            pair = isinstance(value, tuple) and all(isinstance(x, Tensor) for x in value)
            group[key] = tuple(map(float, value)) if pair else float(value) if isinstance(value, Tensor) else value
    theirs.load_state_dict(saved)
    for step in (3, 4):
        training.gradients(step)
        for p, q in zip(params, training.params, strict=True):
            p.grad = q.grad.clone()
        training.optimizer.step()
        theirs.step()
    for p, q in zip(training.params, params, strict=True):
        assert_close(p, q, 1e-6)  # the counts and factors of ASGD and NAdam stay in float32, where torch casts them
        for key, value in theirs.state[q].items():
            mine = training.optimizer.state[p][key]
            assert key == "step" or not mine.dim() or mine.dtype == value.dtype, key
            assert_close(mine, value, 1e-6, key)


@EACH
def test_resized_before_the_first_step(name: str, way: str) -> None:
    for rows in some(way, 64, 9, 1):
        training = Training(name, way)
        training.resize(0, rows)
        other = training.fresh()
        same(training.run(1, 2, 3), other.run(1, 2, 3))


@EACH
def test_saved_after_it_was_resized(name: str, way: str) -> None:
    training = Training(name, way)
    training.resize(0, 9)
    other = training.loaded(training.optimizer.state_dict())
    training.optimizer.load_state_dict(training.optimizer.state_dict())  # as accelerate does with every optimizer
    same(training.run(1, 2), other.run(1, 2))


@EACH
def test_resized_and_cast_before_the_first_step(name: str, way: str) -> None:
    training = Training(name, way)
    training.resize(2, 9)
    training.cast(torch.float64)
    other = training.fresh()
    same(training.run(1, 2, 3), other.run(1, 2, 3))


@EACH
def test_resized_while_only_others_had_gradients(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2, skip=(1,))
    training.resize(1, 8)
    saved = training.optimizer.state_dict()
    saved["state"].pop(1)
    other = training.loaded(saved)
    same(training.run(3, 4), other.run(3, 4))


@EACH
def test_resized_later(name: str, way: str) -> None:
    for rows in some(way, 64, 9, 1):
        training = Training(name, way).run(1, 2)
        training.resize(0, rows)
        training.gradients(3)
        with refused(training, name, "parameter 0 of group 0", (4, 6), (rows, 6), "reset_state"):
            training.optimizer.step()
        training.optimizer.reset_state(training.params[:1])
        saved = training.optimizer.state_dict()
        saved["state"].pop(0)
        other = training.loaded(saved)
        same(training.run(3, 4), other.run(3, 4))


@EACH
def test_gradient_from_before_it_was_resized(name: str, way: str) -> None:
    training = Training(name, way)
    training.gradients(1)
    training.resize(0, 64)
    with pytest.raises(RuntimeError) as caught:
        training.optimizer.step()
    assert_names(caught.value, "(64, 6)", "(4, 6)", "zero_grad")
    training.optimizer.zero_grad()
    other = training.fresh()
    same(training.run(1, 2), other.run(1, 2))


@EACH
def test_gradient_from_before_it_was_cast_or_turned(name: str, way: str) -> None:
    """Nothing is counted, and no parameter moves, also not those that come first."""
    for change, shown in some(way, (Tensor.double, "torch.float64"), (lambda x: x.t().contiguous(), "(2, 6)")):
        training = Training(name, way)
        training.gradients(1)
        training.params[2].data = change(training.params[2].data)
        before = training.values()
        with pytest.raises(RuntimeError) as caught:
            training.optimizer.step()
        assert_names(caught.value, shown, "(6, 2)", "zero_grad")
        assert all(map(torch.equal, before, training.values()))
        training.optimizer.zero_grad()
        other = training.fresh()
        same(training.run(1, 2), other.run(1, 2))


@EACH
def test_another_parameter_in_the_group(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2)
    kept = training.optimizer.state_dict()
    kept["state"].pop(1)
    training.params[1] = training.optimizer.param_groups[0]["params"][1] = Parameter(torch.ones(7, 7))
    other = training.loaded(kept)
    same(training.run(3, 4), other.run(3, 4))
    training = Training(name, way).run(1, 2)
    training.params = [Parameter(torch.full((i + 2, i + 3), 0.5)) for i in range(3)]
    for group, params in zip(training.optimizer.param_groups, (training.params[:2], training.params[2:]), strict=True):
        group["params"] = params
    other = training.fresh()
    same(training.run(3, 4), other.run(3, 4))


@NAMED
def test_one_parameter_more_than_names(name: str) -> None:
    """Named parameters, and one that is put into the group without a name."""
    first, second = Parameter(torch.ones(4, 6)), Parameter(torch.ones(3, 5))
    optimizer = getattr(optim, name)([("first", first)], **{"lr": 0.1, **ARGUMENTS.get(name, {})})
    optimizer.param_groups[0]["params"].append(second)
    for p in (first, second):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert set(optimizer.state) == {first, second} and not torch.equal(second, torch.ones(3, 5))


@EACH
def test_a_parameter_fewer(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2)
    gone = training.params.pop(0)
    del training.optimizer.param_groups[0]["params"][0]
    training.run(3)
    assert gone not in training.optimizer.state
    assert set(training.optimizer.state) == set(training.params)
    assert len(training.optimizer.state_dict()["state"]) == 2


@EACH
def test_cleared(name: str, way: str) -> None:
    def empty(state: Any) -> None:
        for one in state.values():
            one.clear()

    for clear in some(way, dict.clear, empty):
        training = Training(name, way).run(1, 2)
        clear(training.optimizer.state)
        other = training.fresh()
        same(training.run(3, 4), other.run(3, 4))


@EACH
def test_reset(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2)
    before = [id(x) for state in training.optimizer.state.values() for x in state.values()]
    training.optimizer.reset_state()
    assert before == [id(x) for state in training.optimizer.state.values() for x in state.values()]
    other = training.fresh()
    same(training.run(3, 4), other.run(3, 4))
    with refused(training, name, (2, 2), "in none of the groups"):
        training.optimizer.reset_state([torch.ones(2, 2)])


@NAMED
def test_numbers_in_place_of_state(name: str) -> None:
    """As where somebody sets a step counter back by hand; nothing is changed before it is right again."""
    for number in (0, 0.5, None):
        training = Training(name, "eager").run(1, 2)
        p, before = training.params[0], training.values()
        key = sorted(training.optimizer.state[p])[0]
        training.optimizer.state[p][key] = number
        training.gradients(3)
        with pytest.raises(ValueError) as caught:
            training.optimizer.step()
        words = f"lacks the state {key!r} as a tensor"
        assert_names(caught.value, name, "parameter 0 of group 0", words, "reset_state")
        assert all(map(torch.equal, before, training.values()))
        training.optimizer.reset_state(p)
        training.optimizer.step()
        assert isinstance(training.optimizer.state[p][key], Tensor) and not torch.equal(before[0], p)


@NAMED
def test_state_is_of_parameters_alone(name: str) -> None:
    training = Training(name, "eager")
    training.optimizer.state["global"] = {"x": torch.ones(1)}
    training.gradients(1)
    with pytest.raises(ValueError, match=f"{name}: optimizer.state has the key 'global', and its keys are parameters"):
        training.optimizer.step()


@EACH
def test_state_that_does_not_fit(name: str, way: str) -> None:
    """Put there by hand: in place of the tensor, or into it."""
    for put in (lambda state, key, x: state.update({key: x}), lambda state, key, x: setattr(state[key], "data", x)):
        training = Training(name, way).run(1, 2)
        p = training.params[0]
        key = next(key for key, x in training.optimizer.state[p].items() if x.dim() == p.dim() or name == "Adafactor")
        put(training.optimizer.state[p], key, torch.ones(70, 70))
        training.gradients(3)
        with refused(training, name, "parameter 0 of group 0", repr(key), (70, 70), "reset_state"):
            training.optimizer.step()
    training = Training(name, way).run(1, 2)
    state = training.optimizer.state[training.params[0]]
    if len(state) > 1:  # else it is cleared
        state.pop(key := sorted(state)[0])
        training.gradients(3)
        with refused(training, name, "parameter 0 of group 0", "lacks", repr(key), "reset_state"):
            training.optimizer.step()
    training = Training(name, way).run(1, 2)
    saved = copy.deepcopy(training.optimizer.state_dict())
    for state in training.optimizer.state.values():
        state.update({key: x.double() for key, x in state.items() if x.dim()})
    other = training.loaded(saved)
    same(training.run(3, 4), other.run(3, 4))


@EACH
def test_load_into_changed_parameters(name: str, way: str) -> None:
    def cast(training: Training) -> None:
        training.cast(torch.float64)

    def clear(training: Training) -> None:
        training.optimizer.state.clear()

    def resize(training: Training) -> None:
        training.resize(0, 9)

    def replace(training: Training) -> None:
        training.params[1] = training.optimizer.param_groups[0]["params"][1] = Parameter(torch.ones(3, 5))

    for change in some(way, resize, cast, clear, replace):
        for steps in some(way, (1, 2), ()):
            training = Training(name, way).run(*steps)
            change(training)
            source = training.fresh().run(5)
            saved = copy.deepcopy(source.optimizer.state_dict())
            other = training.loaded(saved)
            training.optimizer.load_state_dict(saved)
            for state, fitting in zip(training.optimizer.state.values(), other.optimizer.state.values(), strict=False):
                assert {key: x.dtype for key, x in state.items()} == {key: x.dtype for key, x in fitting.items()}
            same(training.run(6, 7), other.run(6, 7))
    training = Training(name, way).run(1, 2)
    saved = training.fresh().run(1).optimizer.state_dict()
    training.resize(0, 9)
    with refused(training, name, "shape"):
        training.optimizer.load_state_dict(saved)


@EACH
def test_copies(name: str, way: str) -> None:
    training = Training(name, way).run(1, 2)
    other = copy.deepcopy(training)
    for one in (training, other):
        if way == "compiled":
            one.optimizer.compile(backend="eager")
        one.cast(torch.float64)
    same(training.run(3), other.run(3))
    other.resize(0, 9)
    other.gradients(4)
    with refused(other, name, (4, 6), (9, 6)):
        other.optimizer.step()


@EACH
def test_frozen_and_relaid_parameters(name: str, way: str) -> None:
    """Nothing that state depends on has changed."""
    training, other = Training(name, way).run(1, 2), Training(name, way).run(1, 2)
    before = [id(x) for state in training.optimizer.state.values() for x in state.values()]
    training.params[0].requires_grad_(False)
    training.params[1].data = training.params[1].data.clone()
    training.params[2].data = training.params[2].data.t().contiguous().t()
    training.run(3)
    training.params[0].requires_grad_(True)
    training.run(4)
    other.run(3, 4)
    assert before == [id(x) for state in training.optimizer.state.values() for x in state.values()]
    for p, q in zip(training.params, other.params, strict=True):
        assert_close(p, q, 1e-5)  # a transposed matrix may be summed up in another order


SWAPPING = hasattr(torch.optim, "swap_in_optimizer_params_and_state")  # torch 2.13 has it


@pytest.mark.parametrize(("name", "way"), WITH if SWAPPING else [])
def test_swapped_in(name: str, way: str) -> None:
    """Other parameters and their state for a while."""
    training, untouched = Training(name, way).run(1, 2), Training(name, way).run(1, 2)
    guest = Training(name, way).run(1, 2, 3)
    host = Training(name, way).run(1, 2, 3)
    params = {str(i): p for i, p in enumerate(guest.params)}
    saved = guest.optimizer.state_dict()
    with torch.optim.swap_in_optimizer_params_and_state(training.optimizer, params, saved):
        guest.gradients(4)
        training.optimizer.step()
    same(host.run(4), guest)
    same(training.run(3, 4), untouched.run(3, 4))


@NAMED
def test_meta_parameters_that_get_values(name: str) -> None:
    training = Training(name, "eager", [torch.empty(shape, device="meta") for shape in SHAPES])
    training.run()
    for i, p in enumerate(training.params):
        torch.utils.swap_tensors(p, Parameter(torch.full(SHAPES[i], 0.5)))
    other = training.fresh()
    same(training.run(1, 2), other.run(1, 2))


@EACH
def test_unfit_parameters(name: str, way: str) -> None:
    """A parameter that this optimizer cannot take is refused where it comes into a group by assignment, too."""
    training = Training(name, way).run(1, 2)
    training.optimizer.param_groups[0]["params"][1] = torch.ones(3, 5, dtype=torch.int64)
    training.gradients(3)
    with refused(training, name, "parameter 1 of group 0", "int64"):
        training.optimizer.step()


def replaces(training: Training) -> None:
    training.params[1] = training.optimizer.param_groups[0]["params"][1] = Parameter(torch.ones(7, 7))


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda training: training.cast(torch.float64), ("float64", "float32")),
        (lambda training: training.resize(0, 9), ("(9, 6)",)),
        (lambda training: training.optimizer.state.clear(), ("has no state",)),
        (replaces, ("has no state",)),
    ],
)
def test_a_graph_of_ones_own(name: str, change: Callable[[Training], Any], words: tuple[str, ...]) -> None:
    """It is compiled anew after a change, and the error says what to do; torch puts it into one of its own."""
    training = Training(name, "eager")
    training.gradients(1)
    step = torch.compile(training.optimizer.step, fullgraph=True, backend="eager")
    step()
    change(training)
    training.gradients(2)
    params = training.values()
    with pytest.raises(Exception) as caught:
        step()
    assert_names(caught.value, *words, "graph")
    assert all(map(torch.equal, params, training.values()))
