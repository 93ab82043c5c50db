"""Classes of one's own: found by name once they are defined, checked by their own signatures, built again."""

import pytest
import torch

import optim
from optim import lr_scheduler, scheduler
from optim.config import build, configure_lr_scheduler, configure_optimizer
from tests.optim.config.objects import description, network, outline, train, values
from timesched import Clock, LinearScheduler
from timesched.positions import Frame


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


class AnyLR(lr_scheduler.ConstantLR):
    def __init__(self, optimizer, **options):
        super().__init__(optimizer, **options)


class WithoutArguments(lr_scheduler.LRScheduler):
    def _get_closed_form_lr(self):
        return 1.0 / (2.0 + self.last_epoch.double())


class BetaCosine(scheduler.CosineDecayScheduler):
    param_group_key = "betas[0]"


class FirstLR(lr_scheduler.LRScheduler):
    """Made of another scheduler, and calls its optimizer something else."""

    def __init__(self, opt, scheduler, times=2.0):
        self.inner, self.times = scheduler, times
        super().__init__(opt)

    def _get_closed_form_lr(self):
        return self.times * torch.tensor(0.25, dtype=torch.float64)


class Texts(lr_scheduler.LRScheduler):
    """Arguments that are texts, and one that another class of this package has for its own use."""

    def __init__(self, optimizer, version: str, name=None, schedule="cosine", low=0.1):
        self.given = (version, name, schedule)
        super().__init__(optimizer)

    def _get_closed_form_lr(self):
        return torch.tensor(0.25, dtype=torch.float64)


class Squared(LinearScheduler):
    """A schedule over times."""

    def resolve(self, frame: Frame):
        line = super().resolve(frame)
        return lambda counts: line(counts) ** 2


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


def test_unknown_keys_are_refused_for_constructors_that_take_any():
    """Nobody could tell a wrong key from a right one. A function makes such an object."""
    said = r"SlowerVelocity takes \*\*kwargs, so that a misspelled key would pass unseen: write out the arguments"
    with pytest.raises(ValueError, match=f"^optimizer.SlowerVelocity: {said}"):
        build(network(), {"optimizer": {"SlowerVelocity": {"factor": 2, "rate": 0.1}}})
    with pytest.raises(ValueError, match=f"^configure_optimizer: {said}"):
        configure_optimizer("SlowerVelocity", [torch.zeros(1)], factor=2, rate=0.1)
    with pytest.raises(ValueError, match=r"^schedulers\[0\].AnyLR: AnyLR takes \*\*options, so that a misspelled key"):
        build(network(), {"optimizer": "AdamW", "schedulers": [{"AnyLR": {"learning_rate": 0.1}}]})
    made = build(network(), {"optimizer": lambda model: SlowerVelocity(model.parameters(), factor=2, rate=0.1)})
    assert made.optimizer.factor == 2 and made.optimizer.defaults["lr"] == 0.1


@pytest.mark.parametrize("name", ["RootLR", "rootlr", "Root", f"{__name__}.RootLR"])
def test_a_scheduler_by_its_name(name):
    made = configure_lr_scheduler(optim.AdamW([torch.zeros(1)]), {"scheduler": name, "peak": 0.4})
    expected = pytest.approx([0.4 / (1 + t) ** 0.5 for t in range(4)], rel=1e-15)  # torch's root and Python's
    assert type(made) is RootLR and made.values(4) == expected


def test_custom_schedulers_in_configs():
    config = {
        "optimizer": {"AdamW": {"params": [{"params": "*bias", "tags": "b"}]}},
        "schedulers": [
            {
                "SequentialLR": {
                    "schedulers": [{"RootLR": {"peak": 0.3, "total_iters": 4}}, "WithoutArguments"],
                    "param_group_tags": "b",
                }
            },
            {"BetaCosine": {"initial_val": 0.9, "end_val": 0.5, "total_iters": 10}},
            {"RootLR": {"peak": 0.7, "power": 1, "param_group_tags": [None]}},
        ],
    }
    built = round_trip(config)
    assert built.schedulers[0].milestones == [4] and built.schedulers[0].values(6)[4:] == [0.5, 1 / 3]
    assert values(built.optimizer) == [0.7, 0.3]
    assert [float(group["betas"][0]) for group in built.optimizer.param_groups] == [0.9, 0.9]
    with pytest.raises(
        ValueError, match=r"schedulers\[0\]\.RootLR: RootLR has no argument 'peek': did you mean 'peak'"
    ):
        build(network(), {"optimizer": "AdamW", "schedulers": [{"RootLR": {"peek": 1}}]})


def test_a_part_in_a_scheduler_of_ones_own():
    built = round_trip(
        {"optimizer": "AdamW", "schedulers": [{"FirstLR": {"scheduler": {"ConstantLR": {"learning_rate": 0.1}}}}]}
    )
    assert values(built.optimizer) == [0.5] and type(built.schedulers[0].inner) is lr_scheduler.ConstantLR


@pytest.mark.parametrize("schedule", ["linear", "3", {"kind": "x"}])
def test_texts_that_look_like_numbers(schedule):
    entry = {"Texts": {"version": "2", "name": "1e3", "schedule": schedule}}
    built = build(network(), {"optimizer": "AdamW", "schedulers": [entry]})
    assert built.schedulers[0].given == ("2", "1e3", schedule)


def test_a_schedule_by_its_name():
    clock = Clock("4ba")
    built = round_trip({"optimizer": {"SGD": {"lr": 1.0}}, "schedulers": [{"Squared": {"t_max": "0.5dur"}}]}, clock)
    clock.tick(), built.schedulers[0].step()
    assert values(built.optimizer) == [0.25]


def test_the_last_definition_of_a_name_counts():
    def define(rate):
        class Notebook(lr_scheduler.LRScheduler):
            def _get_closed_form_lr(self):
                return torch.tensor(rate, dtype=torch.float64)

        return Notebook

    _, second = define(0.1), define(0.2)
    optimizer = optim.AdamW([torch.zeros(1)])
    made = configure_lr_scheduler(optimizer, {"scheduler": "Notebook"})
    assert type(made) is second and made.values(1) == [0.2]


def in_module(name, base, module):
    return type(name, (base,), {"__module__": module})


def test_two_classes_of_one_name():
    one, other = (in_module("DoubledLR", lr_scheduler.ConstantLR, module) for module in ("first_home", "second_home"))
    optimizer = optim.AdamW([torch.zeros(1)])
    for name in ("DoubledLR", "doubledlr"):
        with pytest.raises(
            ValueError, match=r"could be first_home\.DoubledLR and second_home\.DoubledLR: write the full"
        ):
            configure_lr_scheduler(optimizer, {"scheduler": name, "learning_rate": 0.1})
    made = configure_lr_scheduler(optimizer, {"scheduler": "second_home.DoubledLR", "learning_rate": 0.1})
    assert type(made) is other is not one


def test_the_names_of_this_package_mean_its_own_classes():
    shadow = in_module("AdamW", optim.AdamW, "shadowing")
    assert type(configure_optimizer("AdamW", [torch.zeros(1)])) is optim.AdamW
    assert type(configure_optimizer("shadowing.AdamW", [torch.zeros(1)])) is shadow
