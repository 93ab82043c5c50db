"""Unknown arguments: the error of a call in Python names the one that may be meant, and all that there are."""

import inspect
import pickle
from dataclasses import dataclass, replace

import pytest
import torch

import optim
from optim import lr_scheduler
from tests.building import parameters, sgd
from timesched import Clock, CosineAnnealingScheduler, CosineAnnealingWithWarmupScheduler, LinearScheduler, Time, bind

CALLS = [
    (lambda: CosineAnnealingScheduler(min_lr=0.1), "has no argument 'min_lr': did you mean 'alpha_f'? There are t_max"),
    (lambda: CosineAnnealingScheduler(min_lr=0.1), "t_max, alpha_f. Each alpha is a multiple of the initial value."),
    (
        lambda: LinearScheduler(start_factor=0.1),
        "LinearScheduler has no argument 'start_factor': did you mean 'alpha_i",
    ),
    (lambda: LinearScheduler(T_max="9ba"), "did you mean 't_max'? There are alpha_i, alpha_f, t_max."),
    (lambda: LinearScheduler(colour=3), "LinearScheduler has no argument 'colour': there are alpha_i, alpha_f, t_max."),
    (lambda: CosineAnnealingWithWarmupScheduler(num_warmup_steps=9), "did you mean 't_warmup'?"),
    (
        lambda: lr_scheduler.ConstantLR(sgd(), 0.1, tags="a"),
        "did you mean 'param_group_tags'? There are optimizer, lea",
    ),
    (lambda: lr_scheduler.CosineDecayLR(sgd(), 0.1, min_lr=0), "did you mean 'end_learning_rate'? There are optimizer"),
    (lambda: optim.AdamW(parameters(), beta=(0.9, 0.95)), "AdamW has no argument 'beta': did you mean 'betas'? There"),
    (lambda: optim.SGD(parameters(), 0.1, weight_deacy=0.1), "did you mean 'weight_decay'? There are params, lr, mom"),
    (lambda: optim.Muon(parameters(), adamw={"learning_rate": 1}), "AdamW has no argument 'learning_rate': did you me"),
    *(
        (lambda name=name: optim.Adam(parameters(), **{name: True}), f"has no argument '{name}': leave it out, since")
        for name in ("fused", "foreach", "capturable")
    ),
]


@pytest.mark.parametrize(("call", "words"), CALLS, ids=range(len(CALLS)))
def test_the_argument_that_is_meant(call, words):
    with pytest.raises(TypeError) as raised:
        call()
    assert words in str(raised.value)


class Half(LinearScheduler):
    """Without a constructor of its own."""


@dataclass(frozen=True, eq=False, repr=False)
class Own(LinearScheduler):
    """With a constructor of its own, which takes any argument."""

    def __init__(self, **more):
        LinearScheduler.__init__(self, more.pop("half", 0.5))


class Constant(lr_scheduler.ConstantLR):
    """Without a constructor of its own."""


def test_constructors_stay_what_they_are():
    assert list(inspect.signature(Half).parameters) == ["alpha_i", "alpha_f", "t_max"]
    assert list(inspect.signature(Constant).parameters)[:2] == ["optimizer", "learning_rate"]
    half = Half(0.5)
    assert list(inspect.signature(half).parameters) == ["state", "ssr"]
    assert pickle.loads(pickle.dumps(half)) == half and replace(half, alpha_f=0.25) == Half(0.5, alpha_f=0.25)
    assert Own(half=0.25, other=3).alpha_i == 0.25
    with pytest.raises(TypeError, match="Half has no argument 'alpha'"):
        Half(alpha=0.5)
    with pytest.raises(TypeError, match="no argument 'group_tags': did you mean"):
        Constant(sgd(), 0.1, group_tags="a")


def test_a_call_that_is_refused_changes_nothing():
    optimizer = sgd({"tags": "a"})
    scheduler = bind(LinearScheduler(), optimizer, Clock("4ba"))
    before = dict(optimizer.param_groups[0])
    with pytest.raises(TypeError, match="no argument"):
        lr_scheduler.ConstantLR(optimizer, 0.1, tags="a")
    scheduler.step()  # which still owns the key
    assert optimizer.param_groups[0] == before


@pytest.mark.parametrize(("text", "meant"), [("3 steps", "3ba"), ("1.5Ktokens", "1.5Ktok"), ("90 epochs", "90ep")])
def test_times(text, meant):
    with pytest.raises(ValueError, match=f"'{text}' is not a time: did you mean '{meant}'"):
        Time.from_timestring(text)


@pytest.mark.parametrize(
    ("number", "meant"), [(0.1, "0.1dur"), (2000, "2000ba"), (1, "1ba"), ("0.1", "0.1dur"), ("2000", "2000ba")]
)
def test_a_number_without_a_unit(number, meant):
    with pytest.raises(ValueError, match=f"{number!r} has no unit. .* as '?(in ')?{meant}'"):
        Time.from_input(number)


def test_torchs_own_optimizers_and_schedulers_are_not_concerned():
    with pytest.raises(TypeError, match="unexpected keyword"):
        torch.optim.Adam(parameters(), beta=3)
