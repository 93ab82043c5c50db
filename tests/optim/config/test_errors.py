"""What the doors of configs refuse: with the place, the nearest right name, and nothing left behind."""

import re

import numpy
import pytest
import torch

import optim
from optim import lr_scheduler, weight_decay_scheduler
from optim.config import build, configure_lr_scheduler, configure_optimizer
from optim.config.entries import Problems
from tests.optim.config.objects import DECAY, LINEAR, network
from tests.optim.config.test_configure import COSINE, STEPS, WARMUP
from timesched import Clock, LinearScheduler, bind
from timesched.binding.owner import find_owners
from timesched.reading import prefix_errors

SGD = {"SGD": {"lr": 0.1}}
RATE = {"LinearLR": LINEAR}
MOMENTUM = {"LinearScheduler": {"key": "momentum"}}
STEP = {"initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}
RUN = {"max_duration": "20ba"}


def sgd(**entry):
    return {"optimizer": {"SGD": {"lr": 0.1, **entry}}}


def schedulers(*entries, **rest):
    return {"optimizer": SGD, "schedulers": list(entries), **rest}


def sequence(*children, **more):
    return schedulers({"SequentialLR": {"schedulers": list(children), **more}})


def scaled(step, **more):
    return {"ScalePerParamLR": {"scheduler": {"StepLR": step}, **more}}


def made(given):
    return optim.SGD(given.parameters(), lr=0.1)


def of_torch(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2)


def elsewhere(_):
    return lr_scheduler.ConstantLR(made(network()), 0.1)


DECAYS = "schedulers[0]: this gives weight decay to"
BUILD = [
    ({}, "config has no 'optimizer'"),
    ({"optimiser": SGD}, "'optimiser': did you mean 'optimizer'?"),
    ({"optimizer": SGD, "model": 1}, "config has the unknown key 'model'"),
    ({"trainer": {"init": {"optimizer": SGD, "scheduler": []}}}, "'scheduler': did you mean 'schedulers'?"),
    ({"trainer": {"init": {"optimizer": SGD}}, "schedulers": []}, "config has the unknown key 'trainer'"),
    ({"trainer": {"init": [1]}}, "config=[1]: this is not a mapping"),
    # names
    ({"optimizer": "AdamW"}, "optimizer='AdamW': this is no entry"),
    ({"optimizer": optim.SGD}, "optimizer=<class 'optim.algorithms.sgd"),
    ({"optimizer": {"SGD": [0.1]}}, "optimizer.SGD=[0.1]: this is not a map"),
    ({"optimizer": {"SDG": {"lr": 0.1}}}, "there is no optimizer 'SDG'"),
    ({"optimizer": {"optimizer_type": ["SGD"], "lr": 0.1}}, "optimizer.optimizer_type=['SGD']: this is not a name"),
    ({"optimizer": {"Muon": {"lr": 0.1, "adamw": 3, "output_head": "*"}}}, "optimizer.Muon: Muon.adamw=3: it is not"),
    (schedulers({"LinaerLR": LINEAR}), "there is no scheduler 'LinaerLR'"),
    (schedulers({"LRScheduler": {}}), "there is no scheduler 'LRScheduler'"),
    (schedulers({"scheduler": "LinearLR", **LINEAR}), "schedulers[0]={'scheduler': 'LinearLR'"),
    (schedulers("LinearLR"), "schedulers[0]='LinearLR'"),
    (schedulers(LinearScheduler(), **RUN), "schedulers[0]=LinearScheduler("),
    # arguments
    ({"optimizer": {"SGD": {}}}, "optimizer.SGD: SGD needs 'lr'"),
    (sgd(momentom=0.9), "optimizer.SGD: SGD has no argument 'mom"),
    (sgd(nodecay=True), "'nodecay': did you mean 'no_decay'"),
    (sgd(lr="1e-3x"), "lr='1e-3x'"),
    (sgd(frozen="no"), "frozen='no'"),
    (sgd(no_decay=3), "optimizer.SGD: no_decay has 3, which is no glob"),
    (sgd(decay_tag=3), "optimizer.SGD: decay_tag: tags=3"),
    (sgd(output_head="*"), "optimizer.SGD: output_head='*': only matrices uses it"),
    (sgd(matrices="adam"), "optimizer.SGD: matrices='adam': there is no such option"),
    (sgd(adjust_learning_rate=0.5), "adjust_learning_rate=0.5"),
    (sgd(params="*bias"), "optimizer.SGD.params='*bias'"),
    (sgd(params=[{"params": "*bais"}]), "optimizer.SGD.params[0] ('*bais')"),
    (sgd(params=[{"params": "*", "momentun": 0}]), "'momentun'"),
    (sgd(params=[{"params": "*", "amsgrad": 0}]), "SGD has no argument 'amsgrad'"),
    (sgd(params=[{"params": "*bias", "weight_decay": "x"}]), "weight_decay='x'"),
    (schedulers({"LinearLR": {}}), "LinearLR needs 'initial_learning_rate'"),
    (schedulers({"LinearLR": {**LINEAR, "cycles": 1}}), "LinearLR has no argument 'cycles'"),
    (schedulers({"LinearLR": {**LINEAR, "clock": 1}}), "has no argument 'clock'"),
    (schedulers({"LinearLR": {**LINEAR, "key": "lr"}}), "has no argument 'key'"),
    (schedulers({"LinearLR": {**LINEAR, "total_iters": 2.5}}), "schedulers[0].LinearLR: "),
    (schedulers({"LinearLR": {**LINEAR, "total_iters": "0.5dur"}}), "needs a clock"),
    (schedulers({"LinearLR": {**LINEAR, "param_group_tags": "b"}}), "no parameter group has such a tag"),
    (schedulers({"LinearScheduler": {"key": "lrr"}}, **RUN), "'lrr'"),
    (schedulers({"LinearScheduler": {"t_max": "10bb"}}, **RUN), "schedulers[0].LinearScheduler: "),
    (schedulers({"LinearScheduler": {"on_change": "keep"}}, **RUN), "[0].LinearScheduler: bind.on_change='keep'"),
    # schedulers of schedulers
    (sequence(RATE, {"CosineDecayRL": LINEAR}), "schedulers[1].CosineDecayRL: there is no"),
    (sequence(RATE, {"CosineDecayWD": DECAY}), "schedulers[1]: it schedules"),
    (sequence(RATE, {"LinearScheduler": {}}), "absolute-value scheduler 'LinearScheduler'"),
    (sequence(RATE, RATE, milestones=[1, 2]), "does not fit 2 schedulers"),
    (sequence(RATE, total_iters=5), "has no argument 'total_iters'"),
    (sequence({"ConstantLR": {"learning_rate": 0.1}}, RATE), "the sequence needs its 'total_iters'"),
    (sequence(scaled(STEP), RATE), "].ScalePerParamLR: the sequence needs its 'total_iters'"),
    (sequence(scaled({**STEP, "total_iters": 7}, total_iters=10), RATE), "PerParamLR.scheduler.StepLR: StepLR has no"),
    (sequence({"LinearLR": {**LINEAR, "total_iters": "1ep"}}, RATE, RATE), "].LinearLR: total_iters=10: 1ep"),
    (schedulers({"SequentialLR": {"schedulers": None}}), "SequentialLR.schedulers=None: this is no"),
    (schedulers({"ScalePerParamLR": {"scheduler": None}}), "ScalePerParamLR.scheduler=None: this is"),
    (schedulers({"ProductScheduler": {"schedules": [RATE]}}, **RUN), "there is no schedule 'LinearLR'"),
    # the run
    (schedulers({"LinearScheduler": {}}), "a schedule needs a clock"),
    (schedulers(max_duration="10xx"), "config: max_duration: '10xx' is not a time"),
    (schedulers(max_duration=100), "config: max_duration: 100 has no unit"),
    (schedulers(**RUN, ssr=0), "config: ssr=0: it is not above 0"),
    (schedulers(**RUN, batches_per_epoch=0), "config: batches_per_epoch=0: it is not above 0"),
    (schedulers(**RUN, tokens_per_sample=-1), "config: tokens_per_sample=-1: it is not above 0"),
    (schedulers(**RUN, stop_at=8), "config: 8 has no unit"),
    (schedulers(**RUN, process_group="all"), "config: Clock.process_group='all'"),
    (schedulers(**RUN, samples_per_batch={"0": 8}), "'0' has no unit"),
    (schedulers(**RUN, samples_per_batch={"8sp": 8}), "config: BatchSizeSchedule.sizes: the first threshold is 8sp"),
    (schedulers(**RUN, samples_per_batch={"0tok": 8, "1tok": 9}), "config: 1tok cannot be converted to sp"),
    (schedulers(batches_per_epoch=10), "config: Clock.max_duration=None"),
    # what each other's entries rule out
    (schedulers(RATE, {"LinearWD": DECAY}, RATE), "schedulers[0]: LinearLR.key"),
    (sgd(momentum=0.9) | {"schedulers": [MOMENTUM] * 2, **RUN}, "schedulers[0]: Bound.key="),
    (sgd(adjust_learning_rate={"Linear": 0.5}), "optimizer.SGD: no scheduler uses"),
    (sgd(adjust_learning_rate={"Linear": 0.5}) | {"schedulers": of_torch}, "the factors of 'adjust_learning_rate'"),
    (sgd(weight_decay=0.1, no_decay=True) | {"schedulers": {"LinearWD": DECAY}}, DECAYS),
    (sgd(no_decay=[]) | {"schedulers": lambda o: weight_decay_scheduler.ConstantWD(o, 0.3)}, DECAYS),
    # functions
    ({"optimizer": lambda model: 3}, "optimizer=3: this is no optimizer"),
    ({"optimizer": lambda: None}, "optimizer: <lambda>() takes 0 positional"),
    ({"optimizer": made, "schedulers": lambda o: o}, "schedulers[0]=SGD"),
    ({"optimizer": made, "schedulers": [lambda o: LinearScheduler()]}, "schedulers[0]=Linear"),
    ({"optimizer": made, "schedulers": [elsewhere]}, "ConstantLR has a different optimizer"),
]  # fmt: skip


@pytest.mark.parametrize("config, message", BUILD, ids=range(len(BUILD)))
def test_build(config, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        build(network(), config)
    assert message in str(raised.value)


def test_a_path_is_put_before_a_message_that_begins_with_a_longer_name():
    def fail(message):
        raise ValueError(message)

    messages = {
        "lrs of groups differ": "lr: lrs of groups differ",
        "value is wrong": "lr: value is wrong",
        **{message: message for message in ("lr: wrong", "lr=1: wrong", "lr.end: wrong", "lr[0]: wrong")},
    }
    problems = Problems()
    for message, complete in messages.items():
        problems.attempt(fail, message, path="lr")
        with pytest.raises(ValueError, match=f"^{re.escape(complete)}$"), prefix_errors("lr"):
            fail(message)
    problems.attempt(fail, "lrs of groups differ")
    assert problems.lines() == [*messages.values(), "lrs of groups differ"]


def test_errors_of_several_entries_are_raised_together():
    """Those of names and arguments before anything is made; then those of values."""
    wrong = schedulers(RATE, {"LinaerLR": LINEAR}, {"LinearLR": {**LINEAR, "cycles": 1}})
    wrong |= sgd(momentom=0.9, fused=True)
    with pytest.raises(ValueError) as raised:
        build(None, {**wrong, "stop": "5ba"})
    beginnings = [
        "config has the unknown key 'stop'",
        "optimizer.SGD: SGD has no argument 'momentom'",
        "optimizer.SGD: SGD has no argument 'fused'",
        "schedulers[1].LinaerLR: there is no scheduler",
        "schedulers[2].LinearLR: LinearLR has no argument",
    ]
    lines = str(raised.value).splitlines()
    assert len(lines) == len(beginnings)
    for line, beginning in zip(lines, beginnings):
        assert line.startswith(beginning)
    values = [{"LinearScheduler": {"t_max": "10bb"}}, RATE, {"LinearLR": {**LINEAR, "param_group_tags": "b"}}]
    with pytest.raises(ValueError) as raised:
        build(network(), schedulers(*values, **RUN))
    first, second = str(raised.value).splitlines()
    assert first.startswith("schedulers[0].LinearScheduler: ") and second.startswith("schedulers[2].LinearLR: tags='b'")
    with pytest.raises(ValueError) as raised:
        build(network(), sgd(params=[{"params": "*bais"}, {"params": "*"}, {"params": ["*weight", "*wieght"]}]))
    assert [line.partition(" ")[0] for line in str(raised.value).splitlines()] == [
        "optimizer.SGD.params[0]",
        "optimizer.SGD.params[2]",
    ]


@pytest.mark.parametrize(
    ("entry", "key", "run"),
    [({"LinearScheduler": {"alpha_i": 0.5}}, "lr", RUN), ({"ConstantLR": {"learning_rate": 0.05}}, "lr", {})],
)
def test_tags_are_param_group_tags(entry, key, run):
    ((name, arguments),) = entry.items()
    config = {"optimizer": {"SGD": {"lr": 0.1, "params": [{"params": "*bias", "tags": "b"}]}}, **run}
    for word in ("tags", "param_group_tags"):
        optimizer, _ = build(network(), {**config, "schedulers": {name: {**arguments, word: "b"}}})
        assert {group[key] for group in optimizer.param_groups if "b" in group.get("tags", ())} == {0.05}
        assert {group[key] for group in optimizer.param_groups if "b" not in group.get("tags", ())} == {0.1}
    with pytest.raises(ValueError, match=f"{name}: 'tags' and 'param_group_tags' mean"):
        build(None, {**config, "schedulers": {name: {**arguments, "tags": "b", "param_group_tags": "b"}}})
    inside = {"ProductScheduler": {"schedules": [{"LinearScheduler": {"tags": "b"}}]}}  # where there are no groups
    with pytest.raises(ValueError, match="LinearScheduler has no argument 'tags'"):
        build(None, {**config, **RUN, "schedulers": inside})


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({}, ""),
        ({"weight_decay": 0.1}, "no_decay: true (norms and biases have no weight decay)"),
        ({"weight_decay": 0.1, "no_decay": False}, "no_decay: false (norms and biases have weight decay, too)"),
        ({"weight_decay": 0.1, "no_decay": ["*w"]}, "no_decay: ['*w'] (norms and biases have no weight decay)"),
    ],
)
def test_the_table_says_whether_norms_decay(more, note):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.layer = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Linear(2, 2)

    table = build(Model(), {**sgd(**more), **RUN, "schedulers": {"LinearScheduler": {}}}).table("1dur")
    lines = ["dur  ba   lr", "  0   0  0.1", "  1  20    0", *([note] if note else [])]
    assert str(table).splitlines() == lines and table.csv().count("\n") == 3
    assert table._repr_html_().startswith("<table><caption>no_decay" if note else "<table><thead>")
    config = {**sgd(**{**more, "no_decay": False}), **RUN, "schedulers": {"LinearScheduler": {}}}
    names_only = build(list(Model().named_parameters()), config).table()
    decays = "weight_decay" in more  # any parameter may be a norm, as the layers are not known
    assert names_only.note == ("no_decay: false (norms and biases have weight decay, too)" if decays else "")
    made = {"optimizer": lambda model: optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), **RUN}
    assert build(Model(), {**made, "schedulers": {"LinearScheduler": {}}}).table().note == ""


def test_clocks_and_models():
    config = schedulers({"LinearScheduler": {}}, **RUN)
    with pytest.raises(ValueError, match="the config has 'max_duration'"):
        build(network(), config, clock=Clock("10ba"))
    del config["max_duration"]
    with pytest.raises(TypeError, match="clock='10ba': it is not a clock"):
        build(network(), config, clock="10ba")
    with pytest.raises(TypeError, match=r"optimizer\.SGD: model="):
        build(3, {"optimizer": SGD})
    for wrong in (schedulers({"LinaerLR": LINEAR}), sgd(momentom=1)):  # names are looked at before the model is
        with pytest.raises(ValueError, match="did you mean"):
            build(None, wrong)


OPTIMIZER = [
    ("AdmW", {}, "optimizer_type: there is no optimizer 'Ad"),
    ("LBFGS", {}, "there is no optimizer 'LBFGS'"),
    (torch.optim.SGD, {}, "optimizer_type: the name <class 'torch"),
    ("SGD", {"lr": 0.1, "momentom": 0.9}, "SGD has no argument 'momentom'"),
    ("Lion", {"fused": True}, "Lion has no argument 'fused'"),
    ("Lion", {"rho": 3}, "Lion has no argument 'rho'"),
    ("AdamW", {"params": []}, "multiple values"),
    ("AdamW", {"betas": [0.9, "0.95"]}, "betas[1]='0.95'"),
]  # fmt: skip


@pytest.mark.parametrize("name, given, message", OPTIMIZER)
def test_configure_optimizer(name, given, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        configure_optimizer(name, [torch.zeros(2)], **given)
    assert message in str(raised.value)


def without(name, entry=WARMUP):
    return {key: value for key, value in entry.items() if key != name}


FACTORS = {"adjust_learning_rate": 0.5}
LEARNING_RATE = [
    (True, {}, "learning_rate=True: this is no"),
    ("0.1", {}, "learning_rate='0.1': this is no"),
    ([], {}, "learning_rate: SequentialLR.schedulers=[]"),
    ([WARMUP, without("scheduler")], {}, "this is no learning rate"),
    ({"LinearLR": without("scheduler")}, {}, "learning_rate={'LinearLR'"),
    ({**WARMUP, "scheduler": "LinaerLR"}, {}, "there is no lr scheduler 'LinaerLR'"),
    ({**WARMUP, "scheduler": "LinearWD"}, {}, "there is no lr scheduler 'LinearWD'"),
    ({**WARMUP, "scheduler": 3}, {}, "learning_rate: the name 3 is not a string"),
    ({**WARMUP, "total_iter": 3}, {}, "has no argument 'total_iter'"),
    ([without("total_iters"), COSINE], {}, "learning_rate[0]: LinearLR needs 'total_iters'"),
    ([STEPS, COSINE], {}, "learning_rate[0]: the sequence needs its"),
    ([{**STEPS, "total_iters": 2.5}, COSINE], {}, "learning_rate[0]: total_iters=2.5"),
    ([{**WARMUP, "total_iters": "2ba"}, {**WARMUP, "total_iters": "1ep"}, COSINE], {}, "batches_per_epoch"),
    ([{**WARMUP, "main_scheduler": "Chaned"}, COSINE], {}, "there is no main scheduler 'Chaned'"),
    ([{**WARMUP, "main_scheduler": "ConstantLR"}, COSINE], {}, "there is no main scheduler 'ConstantLR'"),
    ([{**COSINE, "main_scheduler": "ChainedLR"}, {**STEPS, "total_iters": 5}], {}, "learning_rate[1]: StepLR has no"),
    (0.1, {"adjust_learning_rate": 3}, "adjust_learning_rate=3"),
    (0.1, {"adjust_learning_rate": {"decoder": 0.25}}, "no parameter group has the factor 0.25"),
    (0.1, {"adjust_learning_rate": {"a": 0.5, "b": numpy.nan}}, "adjust_learning_rate['b']=nan"),
]  # fmt: skip


@pytest.mark.parametrize("rate, more, message", LEARNING_RATE, ids=range(len(LEARNING_RATE)))
def test_configure_lr_scheduler(rate, more, message):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], **each} for each in (FACTORS, {})]
    optimizer = optim.SGD(groups, lr=0.5)
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises((TypeError, ValueError)) as raised:
        configure_lr_scheduler(optimizer, rate, **more)
    assert message in str(raised.value) and optimizer.param_groups == before and find_owners(optimizer) == []


def test_other_doors_of_configure_lr_scheduler():
    with pytest.raises(TypeError, match="this is not a torch.optim.Optimizer"):
        configure_lr_scheduler(network(), 0.1)
    with pytest.raises(ValueError, match="no parameter group has the factor 0.5"):
        configure_lr_scheduler(made(network()), 0.1, {"Linear": 0.5})


def test_factors_times_width_factors_are_accepted():
    def model(width):
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 2))

    factors = {"1.weight": 0.6}
    groups = optim.configure_param_groups(
        model(8), adjust_learning_rate=factors, base_model=model(4), lr=0.1, weight_decay=0.0
    )
    scheduler = configure_lr_scheduler(optim.AdamW(groups), 0.1, factors)
    assert min(scheduler.get()) == pytest.approx(0.1 * 0.6 / 2)


def test_of_several_schedulers_those_made_before_the_one_that_fails_stay():
    """Names and arguments are looked up before the first is made."""
    optimizer, clock, made = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.2), Clock("4ba"), []
    before = dict(optimizer.param_groups[0])

    def first(optimizer):
        made.append(bind(LinearScheduler(0.5), optimizer, clock, key="momentum"))
        return made[0]

    for name, total, found in (("LinaerLR", 4, []), ("LinearLR", -1, [first])):
        line = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": total}
        with pytest.raises(ValueError):
            build(None, {"optimizer": optimizer, "schedulers": [first, {name: line}]})
        assert len(made) == len(found) and find_owners(optimizer) == made
        assert optimizer.param_groups[0] == before or made
    made[0].step()
    assert optimizer.param_groups[0] == {**before, "momentum": 0.1, "initial_momentum": 0.2}
