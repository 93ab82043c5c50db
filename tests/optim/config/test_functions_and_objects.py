"""Functions and objects in place of entries: what is called with what, in which order, and what may come back."""

from functools import partial

import pytest
import torch

import optim
from optim import lr_scheduler
from optim.config import build, configure_lr_scheduler
from tests.optim.config.objects import network, train, values
from timesched import Clock, LinearScheduler, bind
from timesched.binding import bound_to


def test_the_order_of_calls():
    model, calls = network(), []

    def optimizer(given):
        calls.append(("optimizer", given))
        return optim.SGD(given.parameters(), lr=0.1)

    def scheduler(name, made):
        calls.append((name, made))
        return lr_scheduler.ConstantLR(made, 0.2) if name == "first" else weight_decay(made)

    def weight_decay(made):
        return optim.weight_decay_scheduler.ConstantWD(made, 0.3)

    built = build(
        model, {"schedulers": [partial(scheduler, "first"), partial(scheduler, "second")], "optimizer": optimizer}
    )
    assert calls == [("optimizer", model), ("first", built.optimizer), ("second", built.optimizer)]
    assert values(built.optimizer) == [0.2] and values(built.optimizer, "weight_decay") == [0.3]
    assert [type(each).__name__ for each in built.schedulers] == ["ConstantLR", "ConstantWD"]


@pytest.mark.parametrize("cls", [torch.optim.AdamW, optim.AdamW])
def test_instances_pass_through(cls):
    model = network()
    optimizer = cls(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.4, 0.0, 4)
    plain = torch.optim.lr_scheduler.StepLR(cls(network().parameters()), 2)
    built = build(model, {"optimizer": optimizer, "schedulers": [scheduler, {"ConstantWD": {"val": 0.5}}]})
    assert built.optimizer is optimizer and built.schedulers[0] is scheduler
    train(model, optimizer, built.schedulers, 2)
    assert values(optimizer) == [0.2] and values(optimizer, "weight_decay") == [0.5]
    assert build(None, {"optimizer": plain.optimizer, "schedulers": [plain]}).schedulers == [plain]


def test_schedulers_of_torch_and_bound_schedules():
    clock = Clock("4ba")
    config = {
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "schedulers": [
            partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
            lambda optimizer: bind(LinearScheduler(), optimizer, clock, key="momentum"),
        ],
    }
    model = network()
    built = build(model, config)
    train(model, built.optimizer, built.schedulers, 2, clock)
    assert values(built.optimizer) == [0.025] and values(built.optimizer, "momentum") == [0.45]


class Meter:
    """No scheduler of torch, but one in what it does."""

    def __init__(self):
        self.steps = 0

    def step(self):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def test_what_else_steps_is_a_scheduler():
    meter = Meter()
    assert build(network(), {"optimizer": "AdamW", "schedulers": [meter]}).schedulers == [meter]


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"optimizer": lambda model: model}, "optimizer: <lambda>(model) returned a Sequential, and no optimizer"),
        ({"optimizer": lambda model: None}, "returned a NoneType"),
        ({"optimizer": optim.SGD}, "optimizer: SGD is a class: write its name, or pass a function of the model"),
        ({"optimizer": sgd, "schedulers": [lambda made: made]}, "schedulers[0]: <lambda>(optimizer) returned a SGD"),
        ({"optimizer": sgd, "schedulers": [lambda made: [1]]}, "schedulers[0]: <lambda>(optimizer) returned a list"),
        (
            {"optimizer": sgd, "schedulers": [lambda made: LinearScheduler()]},
            "write the schedule itself, or return bind",
        ),
        ({"optimizer": sgd, "schedulers": [lr_scheduler.ConstantLR]}, "schedulers[0]: ConstantLR is a class"),
        ({"optimizer": sgd, "schedulers": [0.1]}, "schedulers[0]=0.1: write the name of a class"),
        ({"optimizer": 0.1}, "optimizer=0.1: write the name of a class"),
    ],
)
def test_what_may_not_come_back(config, message):
    with pytest.raises(TypeError) as raised:
        build(network(), config)
    assert message in str(raised.value)


def test_errors_inside_functions_have_their_place():
    def fails(model):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):  # other errors are as they are
        build(network(), {"optimizer": fails})
    with pytest.raises(TypeError, match=r"^optimizer: <lambda>\(model\): .*takes 0 positional arguments"):
        build(network(), {"optimizer": lambda: None})
    with pytest.raises(ValueError, match=r"^schedulers\[1\]: <lambda>\(optimizer\): No parameter group carries"):
        tagged = partial(lr_scheduler.ConstantLR, learning_rate=0.1, param_group_tags="a")
        build(network(), {"optimizer": sgd, "schedulers": [Meter(), lambda made: tagged(made)]})
    with pytest.raises(AttributeError):
        build(network(), {"optimizer": sgd, "schedulers": [lambda state: state.timestamp.batch]})


@pytest.mark.parametrize("turned", [False, True])
def test_a_scheduler_of_torch_beside_one_of_ours(turned):
    """Torch's writes the learning rate of all groups."""
    both = [partial(torch.optim.lr_scheduler.StepLR, step_size=1), {"ConstantLR": {"learning_rate": 0.3}}]
    optimizer = sgd(network())
    before = dict(optimizer.param_groups[0])
    with pytest.raises(ValueError, match=r"schedulers\[1\]: 'lr' of parameter group 0 is bound already"):
        build(None, {"optimizer": optimizer, "schedulers": both[::-1] if turned else both})
    assert optimizer.param_groups[0] == before
    both[1] = {"ConstantWD": {"val": 0.3}}
    assert len(build(None, {"optimizer": optimizer, "schedulers": both}).schedulers) == 2


class Broken(lr_scheduler.LRScheduler):
    """Fails when it schedules the optimizer already."""

    def __init__(self, optimizer, x=1):
        super().__init__(optimizer)
        if x < 2:
            raise ValueError("x has to be 2 or more")

    def _get_closed_form_lr(self):
        return torch.tensor(0.3)


def test_nothing_is_left_of_a_build_that_failed_while_its_error_is_handled():
    optimizer, clock = sgd(network()), Clock("4ba")
    entries = [lambda made: bind(LinearScheduler(), made, clock, key="momentum"), {"Broken": {}}]
    for attempt in (
        lambda: build(None, {"optimizer": optimizer, "schedulers": entries}),
        lambda: configure_lr_scheduler(optimizer, [{"scheduler": "Broken", "x": 2}, {"scheduler": "Broken"}]),
        lambda: configure_lr_scheduler(optimizer, {"scheduler": "Broken"}),
    ):
        with pytest.raises(ValueError) as raised:
            attempt()
        assert raised.value.__traceback__ is not None and bound_to(optimizer) == []
        clock.load_state_dict(clock.state_dict())  # tells those that follow it
        assert values(optimizer) == [0.1] and values(optimizer, "momentum") == [0.0]
        again = lr_scheduler.ConstantLR(optimizer, 0.2)
        again.step(), again.unbind()
        optimizer.param_groups[0]["lr"] = 0.1


def test_a_scheduler_of_another_optimizer():
    other = lr_scheduler.ConstantLR(sgd(network()), 0.1)
    with pytest.raises(ValueError, match=r"schedulers\[0\]: ConstantLR has another optimizer"):
        build(network(), {"optimizer": sgd, "schedulers": [other]})


@pytest.mark.parametrize("given", ["instance", "function"])
@pytest.mark.parametrize("cls", [torch.optim.SGD, optim.SGD])
def test_an_error_leaves_the_optimizer_as_it_was(cls, given):
    model = network()
    optimizer = cls(model.parameters(), lr=0.1, weight_decay=0.2)
    before = dict(optimizer.param_groups[0])
    config = {
        "optimizer": optimizer if given == "instance" else lambda model: optimizer,
        "schedulers": [
            {"ConstantLR": {"learning_rate": 0.5}},
            lambda made: bind(LinearScheduler(), made, Clock("4ba"), key="weight_decay"),
            {"ConstantLR": {"learning_rate": 0.7}},
        ],
    }
    with pytest.raises(ValueError, match=r"schedulers\[2\]"):
        build(model, config)
    assert optimizer.param_groups[0] == before and type(before["lr"]) is float
    config["schedulers"].pop()
    optimizer, schedulers = build(model, config)
    assert values(optimizer) == [0.5] and len(schedulers) == 2
