"""Classes of one's own: found by name once they are defined, checked by their own signatures, built again."""

import pytest
import torch

import optim
from optim import lr_scheduler, scheduler
from optim.config import build, configure_lr_scheduler, configure_optimizer
from tests.building import values
from tests.optim.config.objects import description, network, outline, train
from timesched import Clock, LinearScheduler
from timesched.cli.schedules import read_entry


class Velocity(optim.Optimizer):
    """An optimizer as a user writes one."""

    def __init__(self, params, rate, drag=0.1, pair=(1, 2), enable_global_step=False):
        self.pair = pair
        super().__init__(params, {"lr": rate, "rate": rate, "drag": drag}, enable_global_step)

    def preinitialize(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["velocity"] = torch.zeros_like(p)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(self.state[p]["velocity"].mul_(1 - group["drag"]).add_(p.grad), alpha=float(group["lr"]))

    def state_names_to_sparsify(self):
        return ["velocity"]


class SlowerVelocity(Velocity):
    """Hands its arguments on."""

    def __init__(self, params, *, factor, **kwargs):
        super().__init__(params, **kwargs)
        self.factor = factor


class RootLR(lr_scheduler.LRScheduler):
    """The scheduler of the reference's page on custom schedulers, with arguments."""

    def __init__(self, optimizer, peak, power=0.5, total_iters=None, param_group_tags=None):
        self.peak, self.power = peak, power
        super().__init__(optimizer, total_iters=total_iters, param_group_tags=param_group_tags)

    def _get_closed_form_lr(self):
        return self.peak / (1.0 + self.last_epoch.double()) ** self.power


class FirstBeta(scheduler.Scheduler):
    """A closed form of another key."""

    param_group_key = "betas[0]"

    def __init__(self, opt, start, schedule="a text that is no schedule"):
        self.start, self.given = start, schedule
        super().__init__(opt)

    def _get_closed_form(self):
        return self.start - 0.1 * self.last_epoch.double()


class HalfLine(LinearScheduler):
    """A schedule over times."""

    def resolve(self, frame):
        line = super().resolve(frame)
        return lambda counts: line(counts) / 2


def round_trip(config, clock=None):
    built = build(network(), config, clock)
    again = build(network(), built.config, clock)
    assert outline(again.optimizer) == outline(built.optimizer)
    assert list(map(description, again.schedulers)) == list(map(description, built.schedulers))
    return built


def test_an_optimizer_by_its_name():
    config = {"optimizer": {"Velocity": {"rate": 0.1, "pair": [3, 4], "params": [{"params": "*bias", "drag": 0.5}]}}}
    built = round_trip(config)
    assert type(built.optimizer) is Velocity and built.optimizer.pair == (3, 4)
    assert values(built.optimizer, "drag") == [0.1, 0.5]
    model = network()
    losses = train(model, configure_optimizer("velocity", model.parameters(), rate=0.05), steps=20)
    assert losses[-1] < 0.9 * losses[0]


def test_arguments_that_a_constructor_does_not_name_are_refused():
    """Nobody could tell a wrong one from a right one. A function makes such an object."""
    with pytest.raises(ValueError, match="SlowerVelocity has no argument 'rate'"):
        build(network(), {"optimizer": {"SlowerVelocity": {"factor": 2, "rate": 0.1}}})
    made = build(network(), {"optimizer": lambda model: SlowerVelocity(model.parameters(), factor=2, rate=0.1)})
    assert (made.optimizer.factor, made.optimizer.defaults["lr"]) == (2, 0.1)


@pytest.mark.parametrize("name", ["RootLR", "rootlr", "Root", f"{__name__}.RootLR"])
def test_a_scheduler_by_its_name(name):
    made = configure_lr_scheduler(optim.AdamW([torch.zeros(1)]), {"scheduler": name, "peak": 0.4})
    expected = pytest.approx([0.4 / (1 + t) ** 0.5 for t in range(4)], rel=1e-15)  # torch's root and Python's
    assert type(made) is RootLR and made.values(4) == expected


def test_schedulers_in_configs():
    clock = Clock("4ba")
    children = [{"RootLR": {"peak": 0.3, "total_iters": 4}}, {"RootLR": {"peak": 0.5}}]
    config = {
        "optimizer": {"AdamW": {"params": [{"params": "*bias", "tags": "b"}], "weight_decay": 1.0}},
        "schedulers": [
            {"SequentialLR": {"schedulers": children, "param_group_tags": "b"}},
            {"FirstBeta": {"start": 0.9, "schedule": "10ba"}},  # takes no clock, though this could be a time
            {"HalfLine": {"t_max": "0.5dur", "key": "weight_decay"}},
        ],
    }
    built = round_trip(config, clock)
    first, second, third = built.schedulers
    assert first.milestones == [4] and first.values(6)[4:] == pytest.approx([0.5, 0.5 / 2**0.5], rel=1e-15)
    clock.tick(), second.step(), third.step()
    assert [group["betas"][0] for group in built.optimizer.param_groups] == [0.8] * 3 and second.given == "10ba"
    assert values(built.optimizer, "weight_decay") == [0.25, 0.0, 0.0]  # biases and norms have none


def test_the_last_definition_of_a_name_counts():
    def define(rate):
        class Notebook(lr_scheduler.LRScheduler):
            def _get_closed_form_lr(self):
                return torch.tensor(rate, dtype=torch.float64)

        return Notebook

    _, second = define(0.1), define(0.2)
    assert type(configure_lr_scheduler(optim.AdamW([torch.zeros(1)]), {"scheduler": "Notebook"})) is second


def in_module(name, base, module):
    return type(name, (base,), {"__module__": module})


HALF, WHOLE = {"total_iters": "0.5dur"}, {"t_max": "1dur"}
COSINE = {"initial_learning_rate": 0.2, "end_learning_rate": 0.1, **HALF}
SHORT_NAMES = [
    ({"Linear": WHOLE}, {"LinearScheduler": WHOLE}),
    ({"linearwithwarmup": {"t_warmup": "1ba"}}, {"LinearWithWarmupScheduler": {"t_warmup": "1ba"}}),
    ({"Rex": WHOLE}, {"RexScheduler": WHOLE}),
    ({"wsd": {"t_warmup": "1ba"}}, {"WarmupStableDecayScheduler": {"t_warmup": "1ba"}}),
    ({"CosineDecay": COSINE}, {"CosineDecayLR": COSINE}),
    ({"PiecewiseC": {"learning_rates": [1, 2], "milestones": [2]}},
     {"PiecewiseConstantLR": {"learning_rates": [1, 2], "milestones": [2]}}),
    ({"Product": {"schedules": [{"Constant": {}}, {"Rex": WHOLE}]}},
     {"ProductScheduler": {"schedules": [{"ConstantScheduler": {}}, {"RexScheduler": WHOLE}]}}),
    ({"Sequential": {"schedulers": [{"CosineDecay": COSINE}, {"CosineDecay": COSINE}]}},
     {"SequentialLR": {"schedulers": [{"CosineDecayLR": COSINE}, {"CosineDecayLR": COSINE}]}}),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "full"), SHORT_NAMES, ids=range(len(SHORT_NAMES)))
def test_short_names_are_those_of_the_command_line(entry, full):
    config = {"optimizer": {"SGD": {"lr": 0.1}}, "max_duration": "4ba"}
    short, long = (build(network(), {**config, "schedulers": schedulers}).schedulers[0] for schedulers in (entry, full))
    assert description(short) == description(long)
    ((name, _),), ((full_name, _),) = entry.items(), full.items()
    assert list(read_entry(name)) == [full_name]


def test_a_short_name_that_fits_several_classes():
    with pytest.raises(
        ValueError, match=r"schedulers\[0\].CosineA: the name 'CosineA' could mean CosineAnnealingScheduler and "
    ):
        build(network(), {"optimizer": {"SGD": {"lr": 0.1}}, "schedulers": {"CosineA": {}}})


def test_a_class_of_ones_own_comes_before_a_short_name():
    cool = in_module("Cool", LinearScheduler, "own")  # the beginning of CooldownScheduler
    built = build(network(), {"optimizer": {"SGD": {"lr": 0.1}}, "max_duration": "4ba", "schedulers": {"cool": {}}})
    assert type(built.schedulers[0].schedule) is cool
    assert list(read_entry("Cool")) == ["CooldownScheduler"]  # a command line names the classes of this package alone


def test_classes_of_one_name():
    homes = "first_home", "second_home"
    one, other = (in_module("DoubledLR", lr_scheduler.ConstantLR, module) for module in homes)
    optimizer = optim.AdamW([torch.zeros(1)])
    for name in ("DoubledLR", "doubledlr"):
        with pytest.raises(ValueError, match=r"first_home\.DoubledLR and second_home\.D"):
            configure_lr_scheduler(optimizer, {"scheduler": name, "learning_rate": 0.1})
    made = configure_lr_scheduler(optimizer, {"scheduler": "second_home.DoubledLR", "learning_rate": 0.1})
    assert type(made) is other is not one
    shadow = in_module("AdamW", optim.AdamW, "shadowing")  # a name of this package means its own class
    assert type(configure_optimizer("AdamW", [torch.zeros(1)])) is optim.AdamW
    assert type(configure_optimizer("shadowing.AdamW", [torch.zeros(1)])) is shadow
