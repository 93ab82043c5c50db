"""Numbers stay numbers in the groups until somebody compiles; then they are tensors, with the counts of schedulers."""

import copy

import pytest
import torch

import optim
from optim.base.hyperparameters import check_group
from optim.lr_scheduler import LinearLR
from optim.weight_decay_scheduler import LinearWD
from tests.optim.signatures import NAMES
from timesched import Clock, LinearScheduler, bind


def optimizer(*groups):
    made = optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))], **group} for group in groups or ({},)], lr=0.1)
    for group in made.param_groups:
        group["params"][0].grad = torch.ones(2)
    return made


def types(on, *keys):
    return {type(group[key]) for group in on.param_groups for key in keys or ("lr", "weight_decay")}


def test_numbers_stay_numbers_where_nobody_compiles():
    """Over steps, loads, copies and groups that come later; what loggers ask for are numbers, too."""
    on, clock = optimizer({"weight_decay": 0.1}), Clock("10ba")
    schedulers = [LinearLR(on, 0.1, 0.0, 10), bind(LinearScheduler(), on, clock, key="weight_decay")]
    for _ in range(3):
        on.step()
        clock.tick()
        for each in schedulers:
            each.step()
    on.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.3})
    for each in schedulers:
        each.step()
        each.load_state_dict(each.state_dict())
        assert {*map(type, each.get_last_value())} == {float}
    assert types(on) == types(copy.deepcopy(on)) == {float}
    assert type(schedulers[0].state_dict()["last_epoch"]) is int


@pytest.mark.parametrize("call", ["hold_tensors", "compile"])
def test_all_hyperparameters_and_the_counts_of_earlier_schedulers_become_tensors(call):
    on = optimizer({}, {"lr": 0.2})
    scheduler, decay = LinearLR(on, 0.1, 0.0, 10), LinearWD(on, 0.1, 0.0, 10)
    scheduler.step()
    getattr(on, call)(**({"backend": "eager"} if call == "compile" else {}))
    assert types(on) == {torch.Tensor}
    assert [float(group["lr"]) for group in on.param_groups] == [scheduler.values(2)[1]] * 2
    for each in (scheduler, decay):
        assert isinstance(each._cursor.steps, torch.Tensor) and each._cursor.steps.dtype == torch.int64
    assert (int(scheduler.last_epoch), int(decay.last_epoch)) == (1, 0)


@pytest.mark.parametrize("name", NAMES)
def test_whole_numbers_stay_numbers_and_tensors_keep_their_rules(name):
    """They decide shapes, and no schedule changes them; the step is the same."""
    kind, params = getattr(optim, name), [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    whole = {key: 2 for key, rule in kind.hyper.items() if getattr(rule, "integer", False)}
    on, numbers = (kind([p], lr=0.1, **whole) for p in params)
    on.hold_tensors()
    check_group(kind.hyper, on.param_groups[0], "")
    for p, each in zip(params, (on, numbers)):
        p.grad = torch.arange(12.0).view(4, 3)
        each.step()
    assert [type(on.param_groups[0][key]) for key in whole] == [int] * len(whole)
    torch.testing.assert_close(*params)


@pytest.mark.parametrize("later", [False, True], ids=["never held", "a group that came later"])
def test_a_step_in_a_graph_over_a_number_names_the_call(later, compiles_afresh):
    on = optimizer()
    scheduler = LinearLR(on, 0.1, 0.0, 10)
    if later:
        on.hold_tensors()
        on.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        scheduler.step()
    before = [float(group["lr"]) for group in on.param_groups]
    with pytest.raises(Exception, match="optimizer.hold_tensors()"):
        torch.compile(scheduler.step, backend="eager", fullgraph=True)()
    assert [float(group["lr"]) for group in on.param_groups] == before
