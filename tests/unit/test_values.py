"""bind for any object: which value is written, what it starts with, who controls it, and how it is saved."""

import copy
import gc
import pickle
import re
import warnings
import weakref
from collections import namedtuple
from dataclasses import dataclass, field, make_dataclass
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.building import sgd, tick
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.integrations.common import Binding, Schedulers

Pair = namedtuple("Pair", "weight rest")
Frozen = make_dataclass("Frozen", [("p", float, 0.5)], frozen=True)


class Slots:
    __slots__ = ("p",)

    def __init__(self):
        self.p = 0.5


@dataclass
class Loss:
    """It compares by value, so it cannot be hashed."""

    p: float = 0.5
    weights: list = field(default_factory=lambda: [0.25, 0.5])
    pair: Pair = field(default_factory=lambda: Pair(0.5, ("a", 0.5)))
    options: dict = field(default_factory=lambda: {"p": 0.5, "any.text": 0.5, "items": 0.5})


class Setter:
    """The value is a property, which refuses some numbers."""

    _p = 0.5

    @property
    def p(self):
        return self._p

    @p.setter
    def p(self, value):
        if value < 0.4:
            raise RuntimeError("too small")
        self._p = value

    @property
    def read_only(self):
        return self._p

    @property
    def new_list(self):
        return [0.5]


def dropouts():
    return torch.nn.Sequential(torch.nn.ModuleDict({"drop": torch.nn.Dropout(0.5)}), torch.nn.Dropout(0.5))


def buffer(value=0.5, dtype=torch.float32):
    module = torch.nn.Module()
    module.register_buffer("p", torch.tensor(value, dtype=dtype))
    return module


# The path and the value


@pytest.mark.parametrize(
    ("target", "key", "read", "name"),
    [
        (torch.nn.Dropout(0.5), "p", lambda x: x.p, "Dropout.p"),
        (dropouts(), "0.drop.p", lambda x: x[0]["drop"].p, "Sequential.0.drop.p"),
        (dropouts(), "[0]['drop'].p", lambda x: x[0]["drop"].p, "Sequential[0]['drop'].p"),
        (Loss(), "weights[1]", lambda x: x.weights[1], "Loss.weights[1]"),
        ([0.25, 0.5], "[1]", lambda x: x[1], "list[1]"),
        ({"a": {"p": 0.5}}, "a.p", lambda x: x["a"]["p"], "dict.a.p"),
        ({1: 0.5}, "[1]", lambda x: x[1], "dict[1]"),
        (Loss(), "options['any.text']", lambda x: x.options["any.text"], "Loss.options['any.text']"),
        (Loss(), 'options["any.text"]', lambda x: x.options["any.text"], 'Loss.options["any.text"]'),
        (Loss(), "options.items", lambda x: x.options["items"], "Loss.options.items"),
        (Loss(), "pair.weight", lambda x: x.pair.weight, "Loss.pair.weight"),
        (Loss(), "pair[0]", lambda x: x.pair.weight, "Loss.pair[0]"),
        (Loss(), "pair.rest[1]", lambda x: x.pair.rest[1], "Loss.pair.rest[1]"),
        (Slots(), "p", lambda x: x.p, "Slots.p"),
        (Setter(), "p", lambda x: x.p, "Setter.p"),
        (SimpleNamespace(größe=0.5), "größe", lambda x: x.größe, "SimpleNamespace.größe"),
        (buffer(), "p", lambda x: float(x.p), "Module.p"),
    ],
)
def test_the_value_is_the_initial_value_times_the_multiplier(target, key, read, name):
    clock = Clock("8ba")
    scheduler = bind(LinearScheduler(), target, clock, key=key)
    assert read(target) == 0.5 and scheduler.named_values() == {name: 0.5}
    tick(clock, 1, scheduler)
    assert read(target) == 0.4375 == float(scheduler.get()[0]) and scheduler.get_last_value() == [0.4375]
    assert repr(scheduler).startswith(f"<Bound of {key!r} in {type(target).__name__}: LinearScheduler(")
    assert scheduler.last_epoch == 1 and scheduler.factors == scheduler.base_lrs == [0.5]


def test_a_tuple_keeps_its_class_and_its_other_items():
    loss, clock = Loss(), Clock("4ba")
    tick(clock, 1, bind(LinearScheduler(), loss, clock, key="pair.rest[1]"))
    assert loss.pair == Pair(0.5, ("a", 0.375)) and type(loss.pair) is Pair


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_is_filled_in_place(dtype, shape):
    tensor = torch.full(shape, 0.5, dtype=dtype)
    clock = Clock("4ba")
    tick(clock, 1, bind(LinearScheduler(), {"p": tensor}, clock, key="p"))
    assert tensor.dtype is dtype and tensor.shape == shape and float(tensor) == 0.375


def test_a_buffer_that_moves_is_followed():
    module, clock = buffer(), Clock("4ba")
    scheduler = bind(LinearScheduler(), module, clock, key="p")
    module.double()
    tick(clock, 1, scheduler)
    assert module.p.item() == 0.375 and module.p.dtype is torch.float64


def test_a_half_life_is_written_as_it_is():
    target, clock = SimpleNamespace(momentum=0.9), Clock("4ba")
    scheduler = bind(HalfLife("1ba"), target, clock, key="momentum")
    assert target.momentum == 0.5 and scheduler.factors == [1.0] and "base" not in scheduler.state_dict()
    target.lr = 0.1
    bind(HalfLife("2ba"), target, clock, key="lr")  # it is no learning rate
    assert target.lr == 0.5**0.5


# A whole number


@pytest.mark.parametrize(("initial", "multiple"), [(100, 1), (4096, 64), (100, 64), (7, 7), (10**15, 1)])
def test_a_whole_number_is_rounded_down_to_a_multiple(initial, multiple):
    """Against integers: the line from the initial value to 0 in n steps, of which the last is one multiple."""
    n = 100
    target, clock = SimpleNamespace(length=initial), Clock(f"{n}ba")
    scheduler = bind(LinearScheduler(), target, clock, key="length", multiple_of=multiple)
    for step in range(n + 1):
        exact = initial * (n - step) // n
        assert target.length == max(multiple, exact // multiple * multiple) and type(target.length) is int
        if step < n:
            tick(clock, 1, scheduler)


def test_a_growing_length():
    target, clock, lengths = {"length": 512}, Clock("8ba"), []
    scheduler = bind(LinearScheduler(1, 4), target, clock, key="length", multiple_of=64)
    while not clock.done:
        lengths.append(target["length"])
        tick(clock, 1, scheduler)
    assert lengths == [512, 704, 896, 1088, 1280, 1472, 1664, 1856] and scheduler.get() == [2048]


# The initial value


@pytest.mark.parametrize("make", [lambda: torch.nn.Dropout(0.5), Loss, buffer, lambda: buffer(0.3, torch.bfloat16)])
def test_a_second_run_starts_where_the_first_started(make):
    target = make()
    initial = float(target.p)
    for _ in range(2):
        clock = Clock("3ba")
        scheduler = bind(LinearScheduler(1, 0.1), target, clock, key="p")
        assert float(target.p) == initial and scheduler.factors == [initial]
        tick(clock, 3, scheduler)
        del scheduler
        gc.collect()


def test_a_second_run_starts_with_a_value_that_the_user_changed():
    target, clock = Loss(), Clock("2ba")
    tick(clock, 1, bind(LinearScheduler(), target, clock, key="p"))
    target.p = 0.75
    assert bind(LinearScheduler(), target, Clock("2ba"), key="p").factors == [0.75]
    target.p = 0.25
    bind(HalfLife("1ba"), target, Clock("2ba"), key="p")
    assert target.p == 0.5 and bind(LinearScheduler(), target, Clock("2ba"), key="p").factors == [0.25]


def test_a_holder_without_weak_references_has_no_note():
    target, clock = {"p": 0.5}, Clock("2ba")
    tick(clock, 1, bind(LinearScheduler(), target, clock, key="p"))
    assert bind(LinearScheduler(), target, Clock("2ba"), key="p").factors == [0.25]


def test_a_multiple_may_be_above_what_an_earlier_scheduler_wrote():
    """The initial value counts, which is used again."""
    loss, clock = Loss(p=1024), Clock("4ba")
    tick(clock, 4, bind(LinearScheduler(), loss, clock, key="p", multiple_of=64))
    assert loss.p == 64
    bind(LinearScheduler(), loss, Clock("4ba"), key="p", multiple_of=128)
    assert loss.p == 1024


def test_nothing_is_kept_alive():
    target, clock = Loss(), Clock("2ba")
    scheduler, other = (bind(LinearScheduler(), target, clock, key=key) for key in ("p", "weights[0]"))
    references = [weakref.ref(item) for item in (target, scheduler, other)]
    del target, scheduler, other
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


# Control


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (lambda: (model := SimpleNamespace(d=Slots()), model.d), "d.p", "p"),
        (lambda: (model := SimpleNamespace(d={"p": 0.5}), model.d), "d['p']", "p"),
        (lambda: (model := {"d": [0.5]}, model["d"]), "d[0]", "[0]"),
        (lambda: (loss := Loss(), loss), "pair.weight", "pair[0]"),
        (lambda: (module := buffer(), {"same": module.p}), "p", "same"),
    ],
)
def test_the_scheduler_created_last_controls_the_value(make, first, second):
    (one, other), clock = make(), Clock("4ba")
    earlier = bind(LinearScheduler(), one, clock, key=first)
    later = bind(ConstantScheduler(0.5), other, clock, key=second)
    tick(clock, 1, later)
    for act in (earlier.step, earlier.refresh, lambda: earlier.load_state_dict(later.state_dict())):
        with pytest.raises(
            ValueError, match=rf"key={re.escape(repr(first))}: .* no longer controls it, since Constant"
        ):
            act()
    assert list(later.named_values().values()) == [0.25]


def test_different_values_have_different_owners():
    clock, equal = Clock("4ba"), [Loss(), Loss()]  # equal, and two objects
    schedulers = [bind(LinearScheduler(), loss, clock, key=key) for loss in equal for key in ("p", "weights[0]")]
    tick(clock, 1, *schedulers)
    assert [(loss.p, loss.weights) for loss in equal] == [(0.375, [0.1875, 0.5])] * 2
    schedulers[0].unbind()
    with pytest.raises(ValueError, match="was unbound"):
        schedulers[0].step()


@pytest.mark.parametrize(
    ("key", "replace"),
    [
        ("d.p", lambda model: setattr(model, "d", Slots())),
        ("d.p", lambda model: delattr(model, "d")),
        ("items[0][0]", lambda model: model.items.__setitem__(0, [0.5])),
        ("pair[1].p", lambda model: setattr(model, "pair", (0, Slots()))),
    ],
)
def test_an_object_that_was_replaced_is_an_error(key, replace):
    model, clock = SimpleNamespace(d=Slots(), items=[[0.5]], pair=(0, Slots())), Clock("4ba")
    scheduler = bind(LinearScheduler(), model, clock, key=key)
    replace(model)
    clock.tick()
    for act in (scheduler.step, scheduler.refresh, scheduler.get, scheduler.get_last_value):
        with pytest.raises(ValueError, match=rf"key={re.escape(repr(key))}: an object .* was replaced"):
            act()
    assert scheduler.last_epoch == 0


# Saved states, copies and pickles


def test_resuming_at_every_step():
    def make():
        model, clock = torch.nn.Dropout(0.5), Clock("6ba")
        return model, clock, bind(LinearScheduler(), model, clock, key="p")

    model, clock, scheduler = make()
    for step in range(6):
        resumed_model, resumed_clock, resumed = make()
        resumed.load_state_dict(scheduler.state_dict())
        for k in range(step, 6):
            assert resumed_model.p == 0.5 * (1 - k / 6) and (k > step or resumed_model.p == model.p)
            tick(resumed_clock, 1, resumed)
        tick(clock, 1, scheduler)


def test_the_state_has_the_name():
    model, clock = dropouts(), Clock("4ba")
    scheduler = bind(LinearScheduler(), model, clock, key="1.p", name="dropout")
    state = scheduler.state_dict()
    assert (state["key"], state["name"], state["tags"]) == ("1.p", "dropout", None)
    assert scheduler.named_values() == {"dropout": 0.5} and scheduler.is_of(state)
    for key, name, words in (
        ("1.p", None, "name='Sequential.1.p': the state is of name='dropout'"),
        ("0.drop.p", "dropout", "key='0.drop.p': the state is of key='1.p'"),
    ):
        other = bind(LinearScheduler(), dropouts(), clock, key=key, name=name)
        assert not other.is_of(state)
        with pytest.raises(ValueError, match=re.escape(words)):
            other.load_state_dict(state)
    group_scheduler = bind(LinearScheduler(), sgd(), clock)
    assert "name" not in group_scheduler.state_dict()
    target = bind(LinearScheduler(), SimpleNamespace(lr=1.0), clock, key="lr")
    for one, another in ((group_scheduler, target), (target, group_scheduler)):
        with pytest.raises(ValueError, match="the state is of name="):
            one.load_state_dict(another.state_dict())
    with pytest.raises(ValueError, match="2 initial values"):
        scheduler.load_state_dict({**state, "base": [0.5, 0.5]})


def test_another_schedule_or_initial_value():
    state = bind(LinearScheduler(), Loss(), Clock("4ba"), key="p").state_dict()
    other = Loss(p=0.25)
    scheduler = bind(LinearScheduler(), other, Clock("4ba"), key="p")
    with pytest.warns(UserWarning, match=r"the initial value was \[0.25\], and the state has \[0.5\]"):
        scheduler.load_state_dict(state)
    assert other.p == 0.5
    scheduler = bind(ConstantScheduler(0.5), Loss(), Clock("4ba"), key="p")
    with pytest.raises(ValueError, match="different schedule"):
        scheduler.load_state_dict(state)
    kept = bind(LinearScheduler(), Loss(p=0.25), Clock("4ba"), key="p", on_change="new")
    kept.load_state_dict(state)
    assert kept.factors == [0.25]


COPIES = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


@pytest.mark.parametrize("duplicate", COPIES, ids=["copy", "pickle"])
@pytest.mark.parametrize(
    ("make", "key", "read"),
    [
        (dropouts, "1.p", lambda x: x[1].p),
        (lambda: {"a": [0.5]}, "a[0]", lambda x: x["a"][0]),
        (Loss, "pair.weight", lambda x: x.pair.weight),
        (buffer, "p", lambda x: x.p.item()),
        (Slots, "p", lambda x: x.p),
    ],
)
def test_a_copy_follows_the_copy(duplicate, make, key, read):
    target, clock = make(), Clock("4ba")
    scheduler = bind(LinearScheduler(), target, clock, key=key)
    copied, copied_clock, copied_scheduler = duplicate((target, clock, scheduler))
    tick(copied_clock, 2, copied_scheduler)
    tick(clock, 1, scheduler)
    assert (read(target), read(copied)) == (0.375, 0.25)


@pytest.mark.parametrize("duplicate", COPIES, ids=["copy", "pickle"])
@pytest.mark.parametrize("make", [dropouts, lambda: SimpleNamespace(__dict__={}), lambda: {}])
def test_a_target_that_holds_its_scheduler(duplicate, make):
    target, clock = make(), Clock("4ba")
    store = target if isinstance(target, dict) else vars(target)
    store.update(p=0.5, clock=clock)
    store["scheduler"] = bind(LinearScheduler(), target, clock, key="p")
    tick(clock, 1, store["scheduler"])
    copied = duplicate(target)
    copied_store = copied if isinstance(copied, dict) else vars(copied)
    tick(copied_store["clock"], 1, copied_store["scheduler"])
    assert (store["p"], copied_store["p"]) == (0.375, 0.25)


def test_a_shallow_copy_of_the_scheduler_takes_over():
    target, clock = Loss(), Clock("4ba")
    scheduler = bind(LinearScheduler(), target, clock, key="p")
    copied = copy.copy(scheduler)
    tick(clock, 1, copied)
    assert target.p == 0.375
    with pytest.raises(ValueError, match="no longer controls"):
        scheduler.step()


# Errors


def gradient():
    return SimpleNamespace(p=torch.nn.Parameter(torch.tensor(0.5)))


WRONG = [
    (Loss, {"key": None}, "bind.key=None: the target is a Loss, not a torch.optim.Optimizer"),
    *(
        (Loss, {"key": key}, f"bind.key={key!r}: it is not a path")
        for key in ("", ".p", "p.", "a b", "p[-1]", "p[x]", 3)
    ),
    (Loss, {"key": ("betas", 0)}, "it is not a path"),
    (Loss, {"key": "q"}, "bind.key='q': Loss has no 'q'"),
    (Loss, {"key": "weights[2]"}, "list has no 2"),
    (Loss, {"key": "options.q"}, "dict has no 'q'"),
    (Loss, {"key": "weights"}, "not a finite number"),
    *(
        (lambda value=value: SimpleNamespace(p=value), {}, "not a finite number")
        for value in (float("nan"), float("inf"), "0.5", None, True, 1j, torch.tensor(1), torch.zeros(2), 10**400)
    ),
    (lambda: SimpleNamespace(p=torch.zeros(1, device="meta")), {}, "not a finite number"),
    (gradient, {}, "bind.key='p': the tensor requires a gradient"),
    (Frozen, {}, "bind.key='p': Frozen cannot be written"),
    (Setter, {"key": "read_only"}, "Setter cannot be written"),
    (Setter, {"key": "new_list[0]"}, "was replaced"),
    (lambda: MappingProxyType({"p": 0.5}), {}, "mappingproxy cannot be written"),
    (lambda: (0.5,), {"key": "[0]"}, "a tuple cannot be written"),
    (lambda: SimpleNamespace(p=512), {}, "the value 512 is a whole number. Pass multiple_of=1"),
    *(
        (lambda: SimpleNamespace(p=512), {"multiple_of": n}, f"bind.multiple_of={n!r}: it is")
        for n in (0, -1, 1.5, True)
    ),
    (lambda: SimpleNamespace(p=512), {"multiple_of": 513}, "bind.multiple_of=513: it is above the value, 512"),
    (Loss, {"multiple_of": 1}, "bind.multiple_of=1: the value 0.5 is not a whole number"),
    (buffer, {"multiple_of": 1}, "bind.multiple_of=1: the value tensor"),
    (lambda: SimpleNamespace(p=512), {"multiple_of": 1, "schedule": HalfLife("1ba")}, "a half-life gives"),
    (Loss, {"tags": "head"}, "bind.tags='head': the target is an object of the class Loss"),
    *((Loss, {"name": name}, f"bind.name={name!r}: it is not a name") for name in ("", 3)),
    (sgd, {"key": "lr", "multiple_of": 1}, "bind.multiple_of=1: the target is an optimizer"),
    (sgd, {"key": "lr", "name": "x"}, "bind.name='x': the target is an optimizer"),
    (Loss, {"schedule": [ConstantScheduler(1e300)] * 2}, "key='p': .* would set it to inf"),
    (Loss, {"on_change": "force"}, "on_change='force'"),
]


@pytest.mark.parametrize(("make", "arguments", "words"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_refused_before_anything_changes(make, arguments, words):
    target = make()
    before = repr(target)
    earlier = bind(ConstantScheduler(1.0), target, Clock("4ba"), key="p") if isinstance(target, Loss) else None
    with pytest.raises(ValueError, match=words if ".*" in words else re.escape(words)):
        bind(**{"schedule": LinearScheduler(0.5), "target": target, "clock": Clock("4ba"), "key": "p", **arguments})
    assert repr(target) == before
    if earlier is not None:
        earlier.step()  # it still controls the value


def test_a_parameter_without_gradient_is_a_value():
    target, clock = gradient(), Clock("4ba")
    target.p.requires_grad_(False)
    tick(clock, 1, bind(LinearScheduler(), target, clock, key="p"))
    assert target.p.item() == 0.375


def test_a_value_that_stays_zero_is_a_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bind(LinearScheduler(), Loss(p=0.0), Clock("4ba"), key="p")
    texts = [str(warning.message) for warning in caught]
    assert texts == ["bind.key='p': the initial value is 0. Multiplied, it stays 0: begin with another value."]
    assert caught[0].filename == __file__


# The properties of schedules, over an object

SCHEDULES = st.sampled_from(
    [
        "LinearScheduler(1, 0.1, t_max={end})",
        "CosineAnnealingWithWarmupScheduler({start}, t_max={end}, scale_warmup=True)",
        "MultiStepScheduler([{start}, {end}], gamma=0.5)",
        "[LinearScheduler(t_max={end}), StepScheduler({start}, gamma=0.5)]",
    ]
)


def run_values(text, unit, batches, ratio=1, amounts=(1, 1)):
    """The value of an object at every batch of a run; the times of the schedule are in one unit."""
    samples, tokens = amounts
    size = {"ba": 1, "sp": samples, "tok": samples * tokens}[unit]
    start, end = (repr(f"{count * size}{unit}") for count in (4, batches))
    target = SimpleNamespace(p=0.3)
    clock = Clock(f"{batches}ba", samples_per_batch=samples, tokens_per_sample=tokens, ssr=ratio)
    scheduler = bind(eval(text.format(start=start, end=end)), target, clock, key="p")
    found = [target.p]
    while not clock.done:
        tick(clock, 1, scheduler, samples=samples, tokens=samples * tokens)
        found.append(target.p)
    return found


@settings(deadline=None)
@given(SCHEDULES, st.integers(2, 6), st.integers(1, 5), st.integers(1, 7), st.integers(1, 9))
def test_ratio_and_units(text, quarters, ratio, samples, tokens):
    """Stretched, the value at a stretched time is the same; and so it is in batches, samples and tokens."""
    batches = 4 * quarters
    values = run_values(text, "ba", batches)
    assert run_values(text, "ba", batches, ratio)[::ratio] == values
    for unit in ("sp", "tok"):
        assert run_values(text, unit, batches, amounts=(samples, tokens)) == values


@settings(deadline=None, max_examples=20)
@given(SCHEDULES, st.integers(2, 4))
def test_purity_and_resuming_at_every_step(text, quarters):
    """The value follows from the time alone: a run that is resumed at any step has the same values, bit for bit."""
    batches = 4 * quarters
    schedule = eval(text.format(start="'4ba'", end=f"'{batches}ba'"))

    def make():
        target, clock = Loss(p=0.3), Clock(f"{batches}ba")
        return target, clock, bind(schedule, target, clock, key="p")

    target, clock, scheduler = make()
    values, states = [target.p], [scheduler.state_dict()]
    while not clock.done:
        tick(clock, 1, scheduler)
        values.append(target.p)
        states.append(scheduler.state_dict())
    for step, state in enumerate(states):
        target, clock, scheduler = make()
        scheduler.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert target.p == values[step]
        if not clock.done:
            tick(clock, 1, scheduler)
            assert target.p == values[step + 1]


# Compiled models


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("buffer", torch.tensor(scale))
        self.scale = scale
        self.drop = torch.nn.Dropout(scale)


class ByBuffer(Scaled):
    def forward(self, x):
        return x * self.buffer


class ByFloat(Scaled):
    def forward(self, x):
        return x * self.scale


class ByDropout(Scaled):
    def forward(self, x):
        return self.drop(x)


@pytest.mark.parametrize(
    ("kind", "key", "compilations"), [(ByBuffer, "buffer", 1), (ByFloat, "scale", 2), (ByDropout, "drop.p", 8)]
)
def test_how_often_a_model_is_compiled(kind, key, compilations):
    """The numbers of docs/values.md. The optimizing backend is left out, since it changes no number."""
    torch._dynamo.reset()
    graphs = []
    model = torch.compile(kind(0.5), backend=lambda graph, inputs: graphs.append(graph) or graph)
    clock = Clock("10ba")
    scheduler = bind(LinearScheduler(1, 0.1), model, clock, key=key)
    while not clock.done:
        result = model(torch.ones(4))
        assert kind is ByDropout or result[0] == pytest.approx(float(scheduler.get_last_value()[0]))
        tick(clock, 1, scheduler)
    assert len(graphs) == compilations


# Binding, for the adapters


def test_a_binding_with_a_target():
    """Its text has no target, since a model may be long. With `on_change="new"` a state is found by its name."""
    losses = [Loss(), Loss()]
    entries = [Binding(LinearScheduler(), "p", target=loss, name=name) for loss, name in zip(losses, "ab")]
    assert "target" not in repr(entries[0]) and "Loss" not in repr(entries[0])
    saved = Schedulers(sgd(), Clock("4ba"), [LinearScheduler(), *entries])
    tick(saved.clock, 1, saved)
    assert [loss.p for loss in losses] == [0.375] * 2
    assert saved.named_values() == {"lr": 0.75, "a": 0.375, "b": 0.375}
    other = Loss(p=0.25)
    entry = Binding(ConstantScheduler(0.5), "p", target=other, name="b")
    resumed = Schedulers(sgd(), Clock("4ba"), [entry], on_change="new")
    resumed.load_state_dict(saved.state_dict())
    assert other.p == 0.125 and resumed.bound[0].last_epoch == 1 and resumed.clock.timestamp.batch == 1


def test_a_binding_that_is_refused():
    losses = [Loss(), Loss()]
    with pytest.raises(ValueError, match="Binding.name='Loss.p': two entries have this name. Pass name="):
        Schedulers(sgd(), Clock("4ba"), [Binding(LinearScheduler(), "p", target=loss) for loss in losses])
    entries = [LinearScheduler(), Binding(LinearScheduler(), "p", target=losses[0], name="lr")]
    with pytest.raises(ValueError, match="Binding.name='lr': two entries have this name"):
        Schedulers(sgd(), Clock("4ba"), entries)
    for arguments, words in (
        ({"tags": "head", "target": Loss()}, "bind.tags='head'"),
        ({"multiple_of": 2}, "bind.multiple_of=2: the target is an optimizer"),
        ({"name": "x"}, "bind.name='x': the target is an optimizer"),
    ):
        key = "p" if "target" in arguments else "lr"
        with pytest.raises(ValueError, match=words):
            Schedulers(sgd(), Clock("4ba"), [Binding(LinearScheduler(), key, **arguments)])
    with pytest.raises(ValueError, match="names no key"):
        Binding(LinearScheduler(), "loss.p")
