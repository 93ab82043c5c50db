"""What build refuses: with the place in the config, the nearest right name, and nothing left behind."""

import gc

import pytest
import torch

import optim
from optim.config import build
from tests.optim.config.objects import network
from timesched import Clock, LinearScheduler

SGD = {"SGD": {"lr": 0.1}}
LINEAR = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 10}
DECAY = {"initial_val": 0.1, "end_val": 0.0, "total_iters": 10}


RUN = {"max_duration": "20ba"}


def optimizer(**entry):
    return {"optimizer": {"SGD": {"lr": 0.1, **entry}}}


def schedulers(*entries, **rest):
    return {"optimizer": SGD, "schedulers": list(entries), **rest}


def sequence(*parts, **more):
    return {"SequentialLR": {"schedulers": list(parts), **more}}


REFUSED = [
    ({}, "config has no 'optimizer'"),
    ({"optimizer": None}, "config has no 'optimizer'"),
    ({"optimiser": SGD}, "config has the key 'optimiser': did you mean 'optimizer'?"),
    ({"optimizer": SGD, "scheduler": []}, "config has the key 'scheduler': did you mean 'schedulers'?"),
    ({"optimizer": SGD, "model": 1}, "config has the key 'model'. It takes optimizer, schedulers, max_duration"),
    ({"trainer": {"init": {"optimizer": SGD, "scheduler": []}}}, "config has the key 'scheduler': did you mean"),
    ({"trainer": {"init": {"backend": "x"}}}, "config has no 'optimizer'"),
    ({"trainer": {"init": {"optimizer": SGD}}, "schedulers": []}, "config has the key 'trainer'"),
    ({"optimizer": {}}, "optimizer has no key: write one name"),
    ({"optimizer": {"SGD": {}, "Adam": {}}}, "optimizer has the keys 'SGD', 'Adam'"),
    ({"optimizer": {"SDG": {"lr": 0.1}}}, "optimizer: there is no optimizer 'SDG': did you mean 'SGD'"),
    ({"optimizer": {"optimizer_type": "SDG", "lr": 0.1}}, "optimizer: there is no optimizer 'SDG'"),
    ({"optimizer": {"SGD": {}}}, "optimizer.SGD: SGD needs 'lr'"),
    (optimizer(momentom=0.9), "optimizer.SGD: SGD has no argument 'momentom': did you mean 'momentum'?"),
    (optimizer(parms=[]), "did you mean 'params'?"),
    (optimizer(nodecay=True), "did you mean 'no_decay'"),
    (optimizer(momentum=-1), "optimizer.SGD: SGD: momentum=-1"),
    (
        optimizer(params=[{"params": "*bais"}]),
        "optimizer.SGD.params[0] ('*bais'): '*bais' matches no parameter's name",
    ),
    (
        optimizer(params=[{"params": "*", "momentun": 0}]),
        "optimizer.SGD.params[0]: SGD has no argument 'momentun': did you mean",
    ),
    (optimizer(params=[{"params": "*", "lr": -1.0}]), "optimizer.SGD.params[0]: lr=-1.0"),
    (
        optimizer(no_decay="norms"),
        "optimizer.SGD: no_decay ('norms'): 'norms' matches no parameter's name and no layer type",
    ),
    ({"optimizer": {"Rprop": {"no_decay": True}}}, "optimizer.Rprop: Rprop has no weight decay"),
    (schedulers({}), "schedulers[0] has no key"),
    (schedulers({"LinearLR": LINEAR, "StepLR": {}}), "schedulers[0] has the keys 'LinearLR', 'StepLR'"),
    (schedulers({"LinearLR": None, **LINEAR}), "write one name, its arguments under it"),
    (schedulers({"LinaerLR": LINEAR}), "schedulers[0]: there is no scheduler 'LinaerLR': did you mean 'LinearLR'"),
    (schedulers({"CosineAnnealing": LINEAR}), "did you mean 'CosineAnnealing"),
    (schedulers({"LRScheduler": {}}), "there is no scheduler 'LRScheduler'"),
    (schedulers({"Formula": {}}), "there is no scheduler 'Formula'"),
    (schedulers({"LinearLR": {}}), "LinearLR needs 'initial_learning_rate' and 'end_learning_rate' and 'total_iters'"),
    (
        schedulers({"LinearLR": {**LINEAR, "cycles": 1}}),
        "schedulers[0].LinearLR: LinearLR has no argument 'cycles': did",
    ),
    (schedulers({"LinearLR": {**LINEAR, "clock": 1}}), "has no argument 'clock'"),
    (schedulers({"LinearLR": {**LINEAR, "key": "lr"}}), "has no argument 'key'"),
    (schedulers({"LinearLR": {**LINEAR, "total_iters": 2.5}}), "schedulers[0].LinearLR: "),
    (schedulers({"LinearLR": {**LINEAR, "total_iters": "10bba"}}), "10bba"),
    (
        schedulers({"LinearLR": {**LINEAR, "total_iters": "0.5dur"}}),
        "total_iters='0.5dur' is a time, which needs a clock",
    ),
    (
        schedulers({"LinearLR": {**LINEAR, "param_group_tags": "b"}}),
        "schedulers[0].LinearLR: No parameter group carries",
    ),
    (
        schedulers({"LinearLR": LINEAR}, {"LinearLR": LINEAR}),
        "schedulers[1]: 'lr' of parameter group 0 is bound already",
    ),
    (
        schedulers({"LinearWD": DECAY}, {"LinearLR": LINEAR}, {"StepWD": {**DECAY}}),
        "schedulers[2].StepWD: StepWD has no",
    ),
    (
        schedulers(sequence({"LinearLR": LINEAR}, {"CosineDecayRL": LINEAR})),
        "schedulers[0].SequentialLR.schedulers[1]: there is no lr scheduler 'CosineDecayRL': did you mean",
    ),
    (
        schedulers(sequence({"LinearLR": LINEAR}, {"CosineDecayLR": {**LINEAR, "end_lr": 0}})),
        "schedulers[0].SequentialLR.schedulers[1].CosineDecayLR: CosineDecayLR has no argument 'end_lr'",
    ),
    (
        schedulers(sequence({"LinearLR": LINEAR}, {"CosineDecayWD": DECAY})),
        "schedulers[0].SequentialLR.schedulers[1]: there is no lr scheduler 'CosineDecayWD': did you mean",
    ),
    (
        schedulers(sequence({"LinearLR": LINEAR}, {"LinearScheduler": {}})),
        "schedulers[0].SequentialLR.schedulers[1]: there is no lr scheduler 'LinearScheduler': did you mean",
    ),
    (
        schedulers(sequence({"ConstantLR": {"learning_rate": 0.1}}, {"LinearLR": LINEAR})),
        "schedulers[0].SequentialLR.schedulers[0].ConstantLR has no 'total_iters', after which the next one begins",
    ),
    (
        schedulers(
            sequence({"LinearLR": {**LINEAR, "total_iters": "1ep"}}, {"LinearLR": LINEAR}, {"LinearLR": LINEAR})
        ),
        "schedulers[0].SequentialLR.schedulers[1].LinearLR: total_iters=10",
    ),
    (
        schedulers({"ScalePerParamLR": {"scheduler": {"ChainedLR": {"schedulers": [{"LinaerLR": LINEAR}]}}}}),
        "schedulers[0].ScalePerParamLR.scheduler.ChainedLR.schedulers[0]: there is no lr scheduler",
    ),
    (
        schedulers(sequence({"LinearLR": LINEAR}, {"LinearLR": LINEAR}, milestones=[1, 2])),
        "2 schedulers need 1 milestones",
    ),
    (
        schedulers(sequence({"LinearLR": {**LINEAR, "total_iters": "1ep"}}, *[{"LinearLR": LINEAR}] * 2), **RUN),
        "schedulers[1].LinearLR: total_iters=10: 1ep cannot be converted to ba: batches_per_epoch",
    ),
    (schedulers(sequence()), "schedulers[0].SequentialLR.schedulers is an empty list: write at least one lr scheduler"),
    (optimizer(adjust_learning_rate={"Linear": 0.5}), "wrap the LR scheduler in a ScalePerParamLR"),
    (
        {**optimizer(adjust_learning_rate={"Linear": 0.5}), "schedulers": [{"LinearLR": LINEAR}]},
        "optimizer: 'adjust_learning_rate' does nothing by itself",
    ),
    (schedulers(sequence({"LinearLR": LINEAR}, total_iters=5)), "has no argument 'total_iters'"),
    (
        schedulers({"LinearScheduler": {}}),
        "schedulers[0].LinearScheduler is a schedule over the time of a run: pass clock",
    ),
    (
        schedulers({"LinearScheduler": {}}, {"StepScheduler": {"step_size": "1ba"}}, max_duration="10ba"),
        "schedulers[1]: 'lr' of parameter group 0 is bound already, by schedulers[0] (BoundLR)",
    ),
    (schedulers({"LinearScheduler": {"alpha": 0.5}}, max_duration="10ba"), "did you mean 'alpha_i' or 'alpha_f'?"),
    (
        schedulers({"LinearScheduler": {"key": "lrr"}}, max_duration="10ba"),
        "schedulers[0].LinearScheduler: Parameter group",
    ),
    (schedulers({"LinearScheduler": {"t_max": "10bb"}}, max_duration="10ba"), "schedulers[0].LinearScheduler: "),
    (
        schedulers({"ProductScheduler": {"schedules": [{"LinearLR": LINEAR}]}}, max_duration="10ba"),
        "schedulers[0].ProductScheduler.schedules[0]: there is no schedule 'LinearLR': did you mean 'LinearScheduler'",
    ),
    (
        schedulers({"ProductScheduler": {"schedules": [{"LinearScheduler": {"key": "lr"}}]}}, max_duration="10ba"),
        "schedulers[0].ProductScheduler.schedules[0].LinearScheduler: LinearScheduler has no argument 'key'",
    ),
    (schedulers(max_duration="10xx"), "config: "),
    (schedulers(batches_per_epoch=10), "config: max_duration is None: a clock has to know when its run is over"),
]


def ours():
    gc.collect()
    return sum(issubclass(type(each), (optim.Optimizer, optim.scheduler.Scheduler)) for each in gc.get_objects())


@pytest.mark.parametrize("config, message", REFUSED, ids=range(len(REFUSED)))
def test_refused(config, message):
    model = network()
    before = {name: (id(p), p.detach().clone(), p.requires_grad) for name, p in model.named_parameters()}
    with pytest.raises(ValueError) as raised:
        build(model, config)
    assert message in str(raised.value)
    for name, p in model.named_parameters():
        identity, value, trained = before[name]
        assert id(p) == identity and torch.equal(p, value) and p.requires_grad == trained and p.grad is None


@pytest.mark.parametrize(
    "config",
    [
        schedulers({"LinearLR": LINEAR}, {"LinearLR": LINEAR}),
        schedulers(sequence({"LinearLR": LINEAR}, {"LinearLR": LINEAR}, milestones=[1, 2])),
        schedulers({"LinearScheduler": {}}, {"LinearScheduler": {"key": "lrr"}}, max_duration="10ba"),
    ],
)
def test_nothing_half_built_stays_alive(config):
    before = ours()
    with pytest.raises(ValueError):
        build(network(), config)
    assert ours() == before


def test_all_names_are_checked_before_the_model_is_looked_at():
    class Untouchable(torch.nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise AssertionError("looked at")

        parameters = named_modules = modules = children = named_children = named_parameters

    for config in (schedulers({"LinaerLR": LINEAR}), schedulers({"LinearScheduler": {}}), optimizer(momentom=1)):
        with pytest.raises(ValueError, match=r"did you mean|pass clock"):
            build(Untouchable(), config)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"optimizer": 3}, "optimizer=3: write"),
        ({"trainer": {"init": [1]}}, "config=[1]: write a mapping with 'optimizer'"),
        ({"optimizer": {"SGD": 0.1}}, "optimizer.SGD=0.1: write the arguments under the name, as in 'lr: 0.1'"),
        ({"optimizer": {"SGD": [0.1]}}, "optimizer.SGD=[0.1]"),
        ({"optimizer": ["SGD"]}, "optimizer=['SGD']: write"),
        (optimizer(lr="fast"), "optimizer.SGD: SGD: lr='fast' is of type str"),
        (optimizer(params="*bias"), "optimizer.SGD.params='*bias'"),
        (optimizer(params=["*bias"]), "optimizer.SGD.params[0]='*bias'"),
        (optimizer(params=0), "optimizer.SGD.params=0"),
        (optimizer(frozen="no"), "optimizer.SGD: frozen='no' is of type str: it is True or False"),
        (optimizer(frozen=0), "optimizer.SGD: frozen=0"),
        ({"optimizer": LinearScheduler()}, "is a schedule: put it into the list 'schedulers'"),
        (optimizer(adjust_learning_rate=0.5), "optimizer.SGD: adjust_learning_rate=0.5"),
        (schedulers(3), "schedulers[0]=3: write the name of a class, with its arguments under it"),
        (schedulers({"SequentialLR": {"schedulers": {"LinearLR": LINEAR}}}), "SequentialLR.schedulers={'LinearLR'"),
        (
            schedulers({"SequentialLR": {"schedulers": None}}),
            "schedulers[0].SequentialLR.schedulers=None: write a list",
        ),
        (schedulers({"SequentialLR": {"schedulers": 3}}), "schedulers[0].SequentialLR.schedulers=3: write a list"),
        (schedulers({"ChainedLR": {"schedulers": None}}), "schedulers[0].ChainedLR.schedulers=None: write a list"),
        (schedulers(sequence(None, {"LinearLR": LINEAR})), "schedulers[0].SequentialLR.schedulers[0]=None: write the"),
        (schedulers({"ScalePerParamLR": {"scheduler": None}}), "schedulers[0].ScalePerParamLR.scheduler=None: write"),
        (schedulers({"ProductScheduler": {"schedules": None}}), "schedulers[0].ProductScheduler.schedules=None: write"),
        (schedulers({"scheduler": None}), "schedulers[0]: None is of type NoneType: write the name of the scheduler"),
        (
            {"optimizer": {"optimizer_type": None, "lr": 0.1}},
            "optimizer: None is of type NoneType: write the name",
        ),
    ],
)
def test_other_types(config, message):
    with pytest.raises(TypeError) as raised:
        build(network(), config)
    assert message in str(raised.value)


def test_no_model():
    with pytest.raises(TypeError, match=r"optimizer\.SGD: model="):
        build(3, {"optimizer": SGD})


def test_two_clocks():
    with pytest.raises(ValueError, match="config has 'max_duration', and a clock is passed: leave out one of them"):
        build(network(), schedulers(max_duration="10ba"), clock=Clock("10ba"))


def test_a_clock_that_is_none():
    config = schedulers({"LinearScheduler": {}})
    with pytest.raises(TypeError, match=r"schedulers\[0\]\.LinearScheduler: '10ba' is not a clock"):
        build(network(), config, clock="10ba")


def test_two_schedulers_of_one_key():
    """Both are named; other keys, other numbers of a key and other groups are no conflict."""
    linear, cosine = {"LinearLR": LINEAR}, {"CosineDecayLR": LINEAR}
    said = (
        r"^schedulers\[2\]: 'lr' of parameter group 0 is bound already, by schedulers\[0\] \(LinearLR\): make them one"
    )
    with pytest.raises(ValueError, match=said):
        build(network(), schedulers(linear, {"LinearWD": DECAY}, cosine))
    entries = [{"LinearScheduler": {"key": f"betas[{i}]"}} for i in (0, 1)]
    tagged = [
        {name: {**LINEAR, "param_group_tags": tags}} for name, tags in (("LinearLR", "b"), ("CosineDecayLR", [None]))
    ]
    adam = {"AdamW": {"params": [{"params": "*bias", "tags": "b"}]}}
    built = build(network(), {"optimizer": adam, "schedulers": [*entries, *tagged], **RUN})
    assert len(built.schedulers) == 4
    tagged[1]["CosineDecayLR"]["param_group_tags"] = [None, "b"]
    with pytest.raises(
        ValueError, match=r"schedulers\[3\]: 'lr' of parameter group 1 .*schedulers\[2\].*there are: 'b'"
    ):
        build(network(), {"optimizer": adam, "schedulers": [*entries, *tagged], **RUN})
