"""bind: what is written where, in loops as users write them."""

import copy
import functools
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import optim
from tests.building import count_calls, parameters, sgd, tick, values
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.findings import FindingWarning


def groups(*keys):
    return [{"params": parameters(), **key} for key in keys]


def test_batch_k_uses_the_value_at_k():
    optimizer, clock = sgd(lr=0.5), Clock("8ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    used = []
    while not clock.done:
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        clock.tick()
        scheduler.step()
    assert used == [0.5 * (1 - k / 8) for k in range(8)] and scheduler.get_last_lr() == [0.0]
    assert isinstance(scheduler, LambdaLR) and scheduler.last_epoch == 8 and scheduler.base_lrs == [0.5]
    assert scheduler.get_lr() == [0.0] == [f(3) for f in scheduler.lr_lambdas]


@pytest.mark.parametrize("tensor", [False, True])
def test_groups_tags_and_tensors(tensor):
    lrs = [torch.tensor(lr) if tensor else lr for lr in (1.0, 0.5, 0.25)]
    tags = [{"tags": {"a"}}, {"tags": ["a", "b"]}, {}]
    optimizer = torch.optim.AdamW(groups(*({"lr": lr, **tag} for lr, tag in zip(lrs, tags))), lr=lrs[0])
    clock = Clock("4ba")
    bind_a = bind(LinearScheduler(), optimizer, clock, tags="a")
    rest = bind(ConstantScheduler(0.5), optimizer, clock, tags=[None])
    decay = bind(LinearScheduler(), optimizer, clock, key="weight_decay", tags=["b", "c"])
    clock.tick()
    for scheduler in (bind_a, rest, decay):
        scheduler.step()
    now = [group["lr"] for group in optimizer.param_groups]
    assert [float(lr) for lr in now] == [0.75, 0.375, 0.125]
    assert not tensor or all(lr is old for lr, old in zip(now, lrs))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0075, 0.01]
    assert [float(lr) for lr in bind_a.get_last_lr()] == [0.75, 0.375, 0.125]  # of all groups, as loggers want them
    assert decay.get_last_value() == [0.01, 0.0075, 0.01] and [float(lr) for lr in rest.base_lrs] == [0.75, 0.375, 0.25]
    assert [float(lr) for lr in rest.get_lr()] == [0.75, 0.375, 0.125]
    assert [f(0) for f in rest.lr_lambdas] == [1, 1, 0.5] and not isinstance(decay, LambdaLR)
    assert not tensor or not any(lr is old for lr, old in zip(bind_a.get_last_lr(), lrs))


def test_elements_of_betas_and_momentum():
    optimizer, clock = torch.optim.AdamW(parameters(), lr=1.0, betas=(0.8, 0.9)), Clock("2ba")
    first = bind(LinearScheduler(), optimizer, clock, key="betas[0]")
    second = bind(ConstantScheduler(0.5), optimizer, clock, key="betas[1]")
    clock.tick()
    first.step(), second.step()
    assert optimizer.param_groups[0]["betas"] == (0.4, 0.45) and first.key == "betas[0]"
    optimizer = sgd(momentum=0.9)
    bind([lambda state: 0.5, lambda state, ssr: ssr], optimizer, Clock("2ba", ssr=1.0), key="momentum")
    assert optimizer.param_groups[0]["momentum"] == 0.45
    composers = SimpleNamespace(timestamp=Timestamp(), max_duration="2ba", dataloader_len=None)  # without a ratio
    bind(lambda state, ssr: ssr / 4, optimizer, composers, key="momentum")
    assert optimizer.param_groups[0]["momentum"] == 0.9 / 4


RATIO_OF_FUNCTION = [
    (lambda state, rate=0.5: rate, 0.5),  # the way in which Python fixes a loop's variable
    (lambda state, *, rate=0.5: rate, 0.5),
    (lambda state, rate=0.5, *more: rate + sum(more), 0.5),
    (lambda state, rate=0.5, ssr=1.0: rate * ssr, 0.125),
    (lambda state, *, ssr: ssr, 0.25),
    (lambda state, ssr: ssr, 0.25),
    (lambda state, ssr, /: ssr, 0.25),
    (lambda state, ratio: ratio, 0.25),
    (functools.partial(lambda rate, state: rate, 0.5), 0.5),
    (functools.partial(lambda state, rate: rate, rate=0.5), 0.5),
]


@pytest.mark.parametrize(("function", "value"), RATIO_OF_FUNCTION)
def test_the_ratio_goes_to_ssr_or_to_a_second_parameter_without_a_default(function, value):
    """A function of the state alone refuses a ratio, and gets none."""
    optimizer, clock = sgd(), Clock("2ba", ssr=0.25)
    if value == 0.5:
        with pytest.raises(ValueError, match="takes the state alone"):
            bind(function, optimizer, clock)
        clock = Clock("2ba")
    bind(function, optimizer, clock)
    assert optimizer.param_groups[0]["lr"] == value


def returning(value):
    return lambda state: value


NO_NUMBERS = (None, "1", float("nan"), float("inf"), 1j, True, torch.tensor(1.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key": "momentun"}, "key='momentun': parameter group 0 has no such key: did you mean 'momentum'"),
        ({"key": "betas[0]"}, r"key='betas\[0\]': parameter group 0"),
        ({"key": "lr[0]"}, r"key='lr\[0\]': parameter group 0 has 0.* no finite number at \[0\]"),
        ({"key": "nesterov"}, "key='nesterov': parameter group 0"),
        *(
            ({"key": key}, f"^key={re.escape(repr(key))}: ")
            for key in ("l r", 3, ("betas", 1), "betas[-1]", "betas[01]")
        ),
        ({"tags": "y"}, "tags='y': no parameter group has such"),
        ({"tags": 5}, "tags=5: it is not a tag"),
        ({"schedule": []}, "empty"),
        ({"schedule": "cosine"}, "'cosine'"),
        ({"schedule": 0.5}, r"schedule=0\.5: it is not a schedule"),
        ({"schedule": ConstantScheduler}, r"schedule=<class '.*ConstantScheduler'>"),  # without parentheses
        ({"schedule": lambda state: 0.5, "clock": Clock("1ba", ssr=0.5)}, "takes the state alone"),
        *(({"schedule": returning(value)}, "it returned .* Return a finite number") for value in NO_NUMBERS),
        ({"schedule": [ConstantScheduler(1e300)] * 2}, "key='lr': .* would set it to inf"),
        ({"clock": SimpleNamespace(timestamp=None, max_duration=None, dataloader_len=None)}, "length of the run"),
        *(({"clock": clock}, f"bind.clock={clock!r}: it is") for clock in (None, "4ba")),
        ({"clock": Clock("8ba"), "ssr": 0.5}, "contradicts"),
        ({"optimizer": groups({})}, "^bind.optimizer: it is of the class list, not a torch.optim.Optimizer"),
        ({"on_change": "old"}, "^bind.on_change='old': the option does not exist"),
        ({"schedule": sgd(), "optimizer": LinearScheduler()}, r"Write bind\(schedule, optimizer, clock\)"),
        ({"optimizer": Clock("4ba"), "clock": sgd()}, r"Write bind\(schedule, optimizer, clock\)"),
        (
            {"schedule": optim.lr_scheduler.LinearLR(sgd(), 1.0, 0.0, 4)},
            "It is a scheduler, which has an optimizer already",
        ),
        ({"schedule": torch.optim.lr_scheduler.StepLR(sgd(), 4)}, "It is a scheduler, which has an optimizer already"),
    ],
)
def test_refused_before_anything_changes(arguments, words):
    optimizer = sgd({"tags": "x"}, lr=0.7)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises((TypeError, ValueError), match=words):
        bind(**{"schedule": LinearScheduler(0.5), "optimizer": optimizer, "clock": Clock("4ba"), **arguments})
    assert optimizer.state_dict() == before


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("betas", r"has \(0.9, 0.999\), not a finite number. .* one of its elements, as in 'betas\[0\]'"),
        ("beta1", r"no such key: did you mean 'betas\[0\]'"),
        ("beta2", r"no such key: did you mean 'betas\[1\]'"),
    ],
)
def test_the_elements_of_betas_are_named(key, words):
    with pytest.raises(ValueError, match=words):
        bind(LinearScheduler(), sgd(kind=torch.optim.Adam), Clock("4ba"), key=key)


def test_two_optimizers_on_one_clock():
    clock = Clock("4ba")
    schedule = [MultiStepScheduler(["0.5dur"], gamma=0.5), ConstantScheduler(0.5)]  # a list multiplies
    both = [bind(schedule, optimizer, clock) for optimizer in (sgd(), sgd(lr=0.1))]
    for _ in range(2):
        clock.tick()
        for scheduler in both:
            scheduler.step()
    assert [s.get_last_lr() for s in both] == [[0.25], [0.025]]


def test_a_trainer_compiles_for_one_optimizer_and_again_for_a_second_fit():
    clock = Clock("4ba")
    clock.optimizers = [sgd()] * 2
    with pytest.raises(NotImplementedError, match="2 optimizers"):
        compile_composer_scheduler(LinearScheduler(), clock)
    clock.optimizers = clock.optimizers[:1]
    first = compile_composer_scheduler(LinearScheduler(), clock)
    clock.tick()
    first.step()
    assert isinstance(first, LambdaLR) and first.get_last_lr() == [0.75]
    second = compile_composer_scheduler(ConstantScheduler(0.5), clock)
    with pytest.raises(ValueError, match="created later"):
        first.step()
    assert second.get_last_lr() == [0.5]
    with pytest.raises(ValueError, match="takes the state alone"):  # and a third that cannot be made changes nothing
        compile_composer_scheduler(lambda state: 0.5, clock, ssr=0.5)
    second.step()


def test_a_schedule_is_resolved_once_for_a_run():
    class Counted(LinearWithWarmupScheduler):
        resolved = 0

        def resolve(self, frame):
            type(self).resolved += 1
            return super().resolve(frame)

    clock, optimizer = Clock("10ba"), sgd(momentum=0.5)
    schedule = Counted("2ba")
    both = bind(schedule, optimizer, clock), bind(schedule, optimizer, clock, key="momentum")
    for _ in range(3):
        clock.tick()
        for scheduler in both:
            scheduler.step()
            scheduler.load_state_dict(scheduler.state_dict())
    assert Counted.resolved == 1
    clock.extend("20ba")
    assert Counted.resolved == 2 and both[0].get_last_lr() == [16 / 18 + 1 / 18]


def test_the_ratio_of_a_state_that_has_none():
    state = SimpleNamespace(timestamp=Timestamp(batch=4), max_duration="8ba", dataloader_len=None)
    assert bind(LinearScheduler(t_max="16ba"), sgd(), state, ssr=0.5).get_last_lr() == [0.5]


def test_functions_of_every_signature():
    several = lambda s, *, ssr=1.0: 0.5, lambda s, **k: 0.5, lambda *a: 0.5, lambda s, ssr=1.0, k=3: 0.5
    assert [bind(function, sgd(), Clock("4ba")).get_last_lr() for function in several] == [[0.5]] * 4


def test_torchs_own_composites_are_refused():
    optimizer, clock = sgd(), Clock("10ba")
    first = bind(LinearScheduler(), optimizer, clock)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    for several in ([first, constant], [constant, first]):
        with pytest.raises(ValueError, match=r"SequenceScheduler\(\["):
            torch.optim.lr_scheduler.SequentialLR(optimizer, several, milestones=[2])
    assert first.last_epoch == 0 and first._step_count == 1


# Mistakes that are warnings


@pytest.mark.parametrize(
    ("key", "decays", "tags", "warns"),
    [
        ("weight_decay", (0.0, 0.0), None, True),
        ("weight_decay", (0.0, 0.1), None, False),
        ("weight_decay", (0.0, 0.1), "body", True),
        ("lr", (0.0, 0.0), None, False),
    ],
)
def test_a_multiple_of_zero_is_a_warning(key, decays, tags, warns):
    optimizer = sgd(*({"weight_decay": decay, "tags": name} for decay, name in zip(decays, ("body", "head"))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bind(LinearScheduler(), optimizer, Clock("10ba"), key, tags)
    assert len(caught) == warns
    for each in caught:
        assert "bind.key='weight_decay': the value is 0 in every group" in str(each.message)
        assert each.filename == __file__


def test_a_value_in_place_of_zero_is_no_warning():
    bind(HalfLife("2ba"), sgd(), Clock("10ba"), key="momentum")  # a warning would be an error here


@pytest.mark.parametrize(
    ("schedule", "ssr", "end"),
    [
        (LinearWithWarmupScheduler("20ba"), 1.0, "20ba"),
        ([LinearScheduler(), LinearWithWarmupScheduler("8ba")], 0.5, "8ba"),
        (LinearWithWarmupScheduler("10ba", scale_warmup=True), 0.5, None),
        (LinearWithWarmupScheduler("10ba"), 1.0, None),
        (MultiStepWithWarmupScheduler("10sec", ["5ba"]), 1.0, None),  # seconds do not convert to batches
    ],
)
def test_a_warmup_longer_than_the_run_is_a_warning(schedule, ssr, end):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bind(schedule, sgd(), Clock("10ba", ssr=ssr))
    assert len(caught) == (end is not None)
    for each in caught:
        run = Clock("10ba", ssr=ssr).max_duration
        assert f": the warmup takes {end}, longer than the run of {run}. Shorten it." in str(each.message)
        assert each.category is FindingWarning
        assert each.filename == __file__


# Values that are no numbers


HUGE = ExponentialScheduler(2.0, "1ba")
NOUGHT = MultiStepScheduler(["1024ba"], gamma=0.0)


@pytest.mark.parametrize(("key", "tensor"), [("lr", False), ("lr", True), ("betas[0]", False)])
@pytest.mark.parametrize(("schedule", "value"), [(HUGE, "inf"), ([NOUGHT, HUGE], "nan")], ids=["inf", "nan"])
def test_an_infinite_value_is_refused_before_it_is_written(schedule, value, key, tensor):
    first = torch.tensor(0.25, dtype=torch.float64) if tensor else 0.25
    changes = {key: first} if key == "lr" else {"betas": (first, 0.9)}
    optimizer, clock = torch.optim.AdamW(groups(changes, {}), lr=0.5), Clock("2000ba")
    scheduler = bind(schedule, optimizer, clock, key=key)
    clock.timestamp = Timestamp(batch=1023)
    scheduler.step()
    before = copy.deepcopy([(group["lr"], group["betas"]) for group in optimizer.param_groups])
    assert scheduler.last_epoch == 1
    if value == "inf":
        assert scheduler.get_last_value()[0] == 0.25 * 2.0**1023
    clock.tick()
    named = rf"key='{re.escape(key)}': .* would set it to {value} after 1 steps"
    for call in (scheduler.step, scheduler.refresh):
        with pytest.raises(ValueError, match=named):
            call()
    assert [(group["lr"], group["betas"]) for group in optimizer.param_groups] == before and scheduler.last_epoch == 1


def test_a_product_that_overflows_though_its_factors_do_not():
    """The multiplier is finite, and the value is not: for the largest group alone, of which the others wait."""
    optimizer, clock = sgd({"lr": 1e-3}, {"lr": -1e300}, {"lr": 0.0}), Clock("4ba")
    scheduler = bind(lambda state: 10.0 ** (100 * int(state.timestamp.batch)), optimizer, clock)
    clock.tick()
    with pytest.raises(ValueError, match="key='lr': .* would set it to -inf"):
        scheduler.step()
    assert values(optimizer) == [1e-3, -1e300, 0.0]


def test_an_infinite_first_value_of_a_group_that_is_added():
    optimizer, clock = sgd({"lr": 0.5}), Clock("2000ba")
    scheduler = bind(lambda state: 1e10, optimizer, clock)
    optimizer.add_param_group({"params": parameters(), "lr": 1e300})
    for _ in range(2):
        with pytest.raises(ValueError, match="to inf"):
            scheduler.step()
    assert "initial_lr" not in optimizer.param_groups[1] and scheduler.base_lrs == [0.5, 1e300]
    assert values(optimizer) == [5e9, 1e300]


def test_groups_that_share_a_tensor_have_one_initial_value():
    shared, clock = torch.tensor(0.5), Clock("10ba")
    with pytest.raises(ValueError, match="key='lr': parameter groups 0 and 1 share"):
        bind(LinearScheduler(), sgd({"lr": shared, "initial_lr": 0.5}, {"lr": shared, "initial_lr": 0.1}), clock)
    optimizer = sgd({"lr": shared}, {"lr": shared})
    scheduler = bind(LinearScheduler(), optimizer, clock)
    with pytest.raises(ValueError, match="share one tensor"):
        scheduler.load_state_dict({**scheduler.state_dict(), "base": [0.5, 0.1]})
    assert shared.item() == 0.5
    clock.tick()
    scheduler.step()
    assert values(optimizer) == pytest.approx([0.45] * 2) and optimizer.param_groups[1]["lr"] is shared


@pytest.mark.parametrize("first", [float("inf"), float("nan"), "1", torch.tensor(float("nan"))])
def test_an_initial_value_that_is_no_number(first):
    optimizer = sgd({"initial_lr": first}, lr=0.5)
    with pytest.raises(ValueError, match="initial_lr"):
        bind(LinearScheduler(), optimizer, Clock("4ba"))
    assert values(optimizer) == [0.5] and optimizer.param_groups[0]["initial_lr"] is first


def test_values_have_names_for_logs():
    """The key and the tags; the index too, where these are those of another group."""
    tags = None, "head", ["head"], ["b", "a"]
    groups = [{"params": [torch.zeros(1)], **({"tags": tag} if tag else {})} for tag in tags]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(0.5))
    rates = bind(LinearScheduler(), optimizer, clock := Clock("4ba"))
    betas = bind(LinearScheduler(), optimizer, clock, "betas[1]", tags="a")
    clock.tick()
    rates.step(), betas.step()
    assert rates.named_values() == dict.fromkeys(("lr", "lr/head/group1", "lr/head/group2", "lr/a,b"), 0.375)
    assert betas.named_values() == {"betas[1]/a,b": 0.999 * 0.75}
    alike = torch.optim.SGD([{"params": [torch.zeros(1)]}, {"params": [torch.ones(1)]}], lr=0.5)
    assert bind(LinearScheduler(), alike, Clock("4ba")).named_values() == {"lr/group0": 0.5, "lr/group1": 0.5}


# Factors of groups


@pytest.mark.parametrize("key", ["adjust_learning_rate", "adjust_val"])
def test_a_learning_rate_is_multiplied_by_the_factor_of_its_group(key):
    optimizer, clock = sgd({key: 0.5}, {}, lr=0.8, momentum=0.6), Clock("4ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    assert values(optimizer) == scheduler.base_lrs == [0.4, 0.8]
    assert values(optimizer, "initial_lr") == [0.8, 0.8]
    tick(clock, 1, scheduler)
    assert values(optimizer) == [0.4 * 0.75, 0.8 * 0.75] and scheduler.state_dict()["base"] == [0.4, 0.8]
    optimizer.add_param_group({"params": parameters(), key: 0.25})
    scheduler.step()
    assert values(optimizer)[2] == 0.2 * 0.75
    bind(LinearScheduler(0.5), optimizer, clock, key="momentum")
    assert values(optimizer, "momentum")[0] == 0.6 * 0.375  # factors are for the learning rate alone
    optimizer.add_param_group({"params": parameters(), key: "half"})
    with pytest.raises(ValueError, match=f"{key}='half': parameter group 3"):
        scheduler.step()


def test_a_load_with_another_schedule_notes_no_factor():
    """Otherwise the next scheduler would multiply by it again."""

    def one(lr):
        optimizer, clock = sgd({"adjust_learning_rate": 0.5}, lr=lr), Clock("4ba")
        return optimizer, clock, bind(LinearScheduler(), optimizer, clock, on_change="new")

    old, clock, scheduler = one(0.8)
    tick(clock, 1, scheduler)
    optimizer, clock, again = one(0.4)
    optimizer.load_state_dict(old.state_dict())
    again.load_state_dict(scheduler.state_dict())
    assert values(optimizer, "initial_lr") == [0.4] and values(optimizer) == [0.2 * 0.75]
    assert bind(LinearScheduler(), optimizer, clock).base_lrs == [0.2]


def test_values_that_leave_out_a_factor_are_refused_at_the_first_step():
    """Not in the constructor: a `ScalePerParamLR` takes the schedule of such a scheduler."""
    line = functools.partial(optim.lr_scheduler.LinearLR, initial_learning_rate=0.4, end_learning_rate=0.0)
    words = "adjust_learning_rate of parameter group 1"
    groups = {"tags": "a"}, {"adjust_learning_rate": 0.5}
    for clock in (None, Clock("9ba")):
        optimizer = sgd(*groups)
        scheduler = line(optimizer, total_iters=4, clock=clock)
        if clock is not None:
            clock.tick()
        with pytest.raises(ValueError, match=words):
            scheduler.step()
        with pytest.raises(ValueError, match=words):
            scheduler.load_state_dict({})
        assert values(optimizer) == [0.4, 0.4]  # nothing more was written
    scaled = optim.lr_scheduler.ScalePerParamLR(optimizer, line(optimizer, total_iters=4))
    scaled.step()
    assert values(optimizer) == [pytest.approx(0.3, rel=1e-15), pytest.approx(0.15, rel=1e-15)]
    alone = line(sgd(*groups), total_iters=4, param_group_tags="a")  # a group without a factor
    alone.step()
    alone.optimizer.add_param_group({"params": parameters(), "tags": "a", "adjust_val": 2.0})
    with pytest.raises(ValueError, match="of parameter group 2"):
        alone.step()
    assert values(alone.optimizer)[2] == 1.0


def test_one_bind_per_tag_costs_in_proportion_to_the_groups():
    """So a bind of each of n groups costs n squared, and not n to the third."""

    def bind_all(n):
        optimizer, clock = sgd(*({"tags": f"tag{i}"} for i in range(n))), Clock("4ba")
        schedulers = []
        return lambda: [schedulers.append(bind(LinearScheduler(), optimizer, clock, tags=f"tag{i}")) for i in range(n)]

    few, many = (count_calls(bind_all(n)) for n in (20, 80))
    assert many < 16 * few
