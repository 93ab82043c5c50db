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
    ({"model": torch.ones(2)}, TypeError, "pass a torch.nn.Module, or its named_parameters"),
    ({"model": 3}, TypeError, "model=3: pass a torch.nn.Module"),
    ({"model": nn.ReLU()}, ValueError, "ReLU has no parameters: pass a model that has some"),
    ({"model": FROZEN, "frozen": False}, ValueError, "no parameters that require a gradient, and frozen=False"),
    ({"model": PAIRS, "no_decay": True}, ValueError, "needs to know the norm layers: pass the model, or no_decay"),
    (factors({"Embedding": 0.1}, model=PAIRS), ValueError, "layer types are known only where the model is given"),
    # single arguments
    ({"weight_decay": -0.1}, ValueError, "weight_decay=-0.1"),
    ({"weight_decay": "0.1"}, TypeError, "weight_decay='0.1'"),
    ({"decay_tag": 3}, TypeError, "decay_tag: tags=3"),
    ({"frozen": "no"}, TypeError, "frozen='no' is of type str: it is True or False"),
    ({"names": 0}, TypeError, "names=0 is of type int"),
    ({"no_decay": 3}, TypeError, "no_decay has 3: pass globs"),
    ({"no_decay": [int]}, TypeError, "no_decay has <class 'int'>"),
    ({"no_decay": ["Layernorm"]}, ValueError, "no_decay ('Layernorm'): 'Layernorm' matches no parameter's name and no"),
    ({"no_decay": [nn.Conv2d]}, ValueError, "'Conv2d' matches no parameter's name and no layer"),
    # the form of rules
    ({"rules": "*bias"}, TypeError, "rules='*bias': pass a list of dicts"),
    (rules("*bias"), TypeError, "rules[0]='*bias': pass a dict"),
    (rules({1: 2}), TypeError, "rules[0]={1: 2}: pass a dict"),
    (rules({"tags": "x"}), ValueError, "rules[0] has params=[]: give it a glob"),
    (rules({"params": 3}), TypeError, "rules[0]: params has 3: pass globs"),
    (rules({"params": [nn.LayerNorm]}), ValueError, "give it a glob"),
    (rule(tags=3), TypeError, "rules[0]: tags=3"),
    (rule(tags=[None]), TypeError, "every tag is a string"),
    (rule(exclusive="yes"), TypeError, "exclusive='yes': it is True or False"),
    # keys and values
    (rule(tag="x"), ValueError, "rules[0] has 'tag', which is no hyperparameter: write 'tags'"),
    (rule(exclude=True), ValueError, "write 'exclusive'"),
    (rule(weight_dcay=0.1), ValueError, "which is no hyperparameter: write 'weight_decay'"),
    (rule(adjust_learning_rat=0.1), ValueError, "write 'adjust_learning_rate'"),
    (rule(lr=-1.0), ValueError, "rules[0]: lr=-1.0: it must be a finite number at least 0"),
    (rule(weight_decay="1e-3"), TypeError, "rules[0]: weight_decay='1e-3'"),
    (rule(adjust_val=numpy.nan), ValueError, "rules[0]: adjust_val=nan"),
    # globs
    (rules({"params": "*"}, {"params": ["*bias", "*biass"]}), ValueError, "rules[1] ('*bias', '*biass'): '*biass' mat"),
    (rules({"params": "*.biass"}), ValueError, "the nearest there are 'bias'"),
    (rules({"params": "Embed.weight"}), ValueError, "'embed.weight'"),
    (rules({"params": "%%%"}), ValueError, "names are, for instance, 'embed.weight', 'body.layers.0"),
    (rules({"params": "Embedding"}), ValueError, "'embed.weight'"),  # rules have no layer types
    (rules({"params": ""}), ValueError, "'' matches no parameter's name"),
    # two rules of one parameter
    (rules(BIASES, {"params": "head.*", "exclusive": True}), ValueError, "rules[0] ('*bias') and rules[1] ('head.*')"),
    (rules({"params": "*bias", "lr": 0.1}, {"params": "*"}, {"params": "head.*", "lr": 0.2}), ValueError,
     "The parameter 'head.bias' gets lr=0.1 from rules[0] ('*bias') and lr=0.2 from rules[2] ('head.*'): give"),
    (rules({"params": "*.bias", "weight_decay": 0.3}, no_decay="head.*"), ValueError,
     "'head.bias' gets weight_decay=0.3 from rules[0] ('*.bias') and weight_decay=0.0 from no_decay ('head.*')"),
    (rules({"params": "head.bias", KEY: 0.5}, adjust_learning_rate={"Linear": 0.25}), ValueError, f"=0.25 from {KEY}"),
    # factors
    (factors({"Embedding": 0.1, nn.Linear: 2.0}), ValueError, f"gets {KEY}=0.1 from {KEY}['Embedding']"),
    (factors({"Embeding": 0.1}), ValueError, f"{KEY}['Embeding']: 'Embeding' matches no parameter's"),
    (factors({"Module": 0.1}), ValueError, "'Module' matches no parameter's name and no layer"),
    (factors({"*": -0.1}), ValueError, f"{KEY}['*']=-0.1: it must be a finite number at least 0"),
    (factors({"*": "0.1"}), TypeError, f"{KEY}['*']='0.1' is of type str"),
    (factors({3: 0.1}), TypeError, f"{KEY} has 3: pass globs"),
    (factors([("*", 0.1)]), TypeError, "pass a dict from globs or layer types to factors"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, error, message", CALLS, ids=range(len(CALLS)))
def test_configure_param_groups(arguments, error, message):
    with pytest.raises(error) as raised:
        configure_param_groups(**{"model": Tied(), "no_decay": False, **arguments})
    assert message in str(raised.value)


def test_what_is_near_to_a_known_name_may_be_a_hyperparameter_of_ones_own():
    (group,) = configure_param_groups(tree(["a"]), [{"params": "*", "beta": 0.9, "momentum": 0.5}], no_decay=False)
    assert (group["beta"], group["momentum"]) == (0.9, 0.5)
