"""What configure_param_groups refuses."""

import numpy
import pytest
import torch
from torch import nn

from optim.groups import configure_param_groups
from tests.optim.groups.models import Conv, Tied, tree

KEY = "adjust_learning_rate"
PAIRS = list(Tied().named_parameters())
BIASES = {"params": "*bias", "tags": "bias", "exclusive": True}
FROZEN = Tied().requires_grad_(False)


def rules(*given, **more):
    return {"rules": list(given), **more}


def rule(**given):
    return {"rules": [{"params": "*", **given}]}


def factors(given, **more):
    return {KEY: given, **more}


CALLS = [
    # the model
    ({"model": list(Conv().parameters())}, TypeError, "no pair (name, tensor)"),
    ({"model": torch.ones(2)}, TypeError, "model=tensor([1., 1.]): "),
    ({"model": 3}, TypeError, "model=3: "),
    ({"model": nn.ReLU()}, ValueError, "model=ReLU: it has no parameters"),
    ({"model": FROZEN, "frozen": False}, ValueError, "frozen=False: no parameter"),
    ({"model": PAIRS, "no_decay": True}, ValueError, "no_decay=True: the norm layers"),
    (factors({"Embedding": 0.1}, model=PAIRS), ValueError, "(layer types are known only"),
    # single arguments
    ({"weight_decay": -0.1}, ValueError, "weight_decay=-0.1"),
    ({"weight_decay": "0.1"}, TypeError, "weight_decay='0.1'"),
    ({"decay_tag": 3}, TypeError, "decay_tag: tags=3"),
    ({"frozen": "no"}, TypeError, "frozen='no': it must be False or True"),
    ({"names": 0}, TypeError, "names=0: it must be False or True"),
    ({"output_head": "*"}, ValueError, "output_head='*': only matrices uses it. Pass matrices='muon', or leave out"),
    ({"no_decay": 3}, TypeError, "no_decay has 3, "),
    ({"no_decay": [int]}, TypeError, "no_decay has <class 'int'>"),
    ({"no_decay": ["Layernorm"]}, ValueError, "no_decay ('Layernorm'): 'Layernorm' matches"),
    ({"no_decay": [nn.Conv2d]}, ValueError, "'Conv2d' matches no parameter's name"),
    # the form of rules
    ({"rules": "*bias"}, TypeError, "rules='*bias': this is no list"),
    (rules("*bias"), TypeError, "rules[0]='*bias': this is no dict"),
    (rules({1: 2}), TypeError, "rules[0]={1: 2}: this is no dict"),
    (rules({"tags": "x"}), ValueError, "rules[0].params=[]: "),
    (rules({"params": 3}), TypeError, "rules[0]: params has 3, "),
    (rules({"params": [nn.LayerNorm]}), ValueError, "rules[0].params=[<class"),
    (rule(tags=3), TypeError, "rules[0]: tags=3"),
    (rule(tags=[None]), TypeError, "every tag must be a string"),
    (rule(exclusive="yes"), TypeError, "rules[0].exclusive='yes'"),
    # keys and values
    (rule(tag="x"), ValueError, "rules[0] has 'tag', which is no"),
    (rule(exclude=True), ValueError, "Write 'exclusive'"),
    (rule(weight_dcay=0.1), ValueError, "Write 'weight_decay'"),
    (rule(adjust_learning_rat=0.1), ValueError, "Write 'adjust_learning_rate'"),
    (rule(lr=-1.0), ValueError, "rules[0]: lr=-1.0"),
    (rule(weight_decay="1e-3"), TypeError, "rules[0]: weight_decay='1e-3'"),
    (rule(adjust_val=numpy.nan), ValueError, "rules[0]: adjust_val=nan"),
    # globs
    (rules({"params": "*"}, {"params": ["*bias", "*biass"]}), ValueError, "'*biass' matches no parameter's name"),
    (rules({"params": "*.biass"}), ValueError, "The nearest names are 'bias'"),
    (rules({"params": "Embed.weight"}), ValueError, "'embed.weight'"),
    (rules({"params": "%%%"}), ValueError, "Names are, for instance, 'embed.weight'"),
    (rules({"params": "Embedding"}), ValueError, "'embed.weight'"),  # rules have no layer types
    (rules({"params": ""}), ValueError, "'' matches no parameter's name"),
    # two rules of one parameter
    (rules(BIASES, {"params": "head.*", "exclusive": True}), ValueError, "('*bias') and rules[1] ('head.*') are excl"),
    (rules({"params": "*bias", "lr": 0.1}, {"params": "*"}, {"params": "head.*", "lr": 0.2}), ValueError,
     "lr=0.1 from rules[0] ('*bias') and lr=0.2"),
    (rules({"params": "*.bias", "weight_decay": 0.3}, no_decay="head.*"), ValueError,
     "weight_decay=0.0 from no_decay ('head.*')"),
    (rules({"params": "head.bias", KEY: 0.5}, adjust_learning_rate={"Linear": 0.25}), ValueError, f"=0.25 from {KEY}"),
    # factors
    (factors({"Embedding": 0.1, nn.Linear: 2.0}), ValueError, f"gets {KEY}=0.1 from {KEY}['Embedding']"),
    (factors({"Embeding": 0.1}), ValueError, "'Embeding' matches no parameter's name"),
    (factors({"Module": 0.1}), ValueError, "'Module' matches no parameter's name"),
    (factors({"*": -0.1}), ValueError, f"{KEY}['*']=-0.1"),
    (factors({"*": "0.1"}), TypeError, f"{KEY}['*']='0.1'"),
    (factors({3: 0.1}), TypeError, f"{KEY} has 3, "),
    (factors([("*", 0.1)]), TypeError, f"{KEY}=[('*', 0.1)]"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, error, message", CALLS, ids=range(len(CALLS)))
def test_configure_param_groups(arguments, error, message):
    with pytest.raises(error) as raised:
        configure_param_groups(**{"model": Tied(), "no_decay": False, **arguments})
    assert message in str(raised.value)


def test_what_is_near_to_a_known_name_may_be_a_hyperparameter_of_ones_own():
    (group,) = configure_param_groups(tree(["a"]), [{"params": "*", "beta": 0.9, "momentum": 0.5}], no_decay=False)
    assert (group["beta"], group["momentum"]) == (0.9, 0.5)
