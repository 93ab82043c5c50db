"""Learning rates and weight decay by width, against stored numbers of microsoft/mup."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from optim.groups import configure_param_groups
from tests.optim.groups.models import by_name

PATH = Path(__file__).parents[1] / "golden" / "mup_width.json"
MUP = json.loads(PATH.read_text(encoding="utf-8"))["groups"]
HEADS = {"num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": 9}


def mlp(width):
    wide = [nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(width, 2 * width)]
    return nn.Sequential(*wide, nn.Linear(2 * width, width, bias=False), nn.Linear(width, 5))


def bert(width):
    return transformers.BertModel(transformers.BertConfig(hidden_size=width, intermediate_size=3 * width, **HEADS))


def gpt2(width):
    return transformers.GPT2Model(
        transformers.GPT2Config(n_embd=width, n_layer=1, n_head=2, vocab_size=20, n_positions=9)
    )


def convnext(width):
    config = transformers.ConvNextConfig(hidden_sizes=[width, 3 * width], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config)


@pytest.mark.parametrize("rule", ["adam", "sgd"])
@pytest.mark.parametrize("make", [mlp, bert, gpt2, convnext])
def test_mup(make, rule):
    with torch.device("meta"):
        base = make(8)
    options = {"lr": 0.3, "weight_decay": 0.1, "no_decay": False, "base_model": base, "base_rule": rule}
    groups = configure_param_groups(make(32), **options)
    expected = MUP[f"{make.__name__} {rule}"]
    assert by_name(groups, "lr") == pytest.approx({name: rate for name, (rate, _) in expected.items()}, rel=1e-12)
    decays = {name: decay for name, (_, decay) in expected.items()}
    assert by_name(groups, "weight_decay") == pytest.approx(decays, rel=1e-12)


def test_inputs_before_outputs():
    """The weight of transformers' Conv1D has its inputs first."""
    model, base = transformers.pytorch_utils.Conv1D(8, 12), transformers.pytorch_utils.Conv1D(4, 3)
    options = {"lr": 1.0, "weight_decay": 0.0, "base_model": base}
    for rule, factor in (("adam", 0.25), ("sgd", 0.5)):
        assert by_name(configure_param_groups(model, base_rule=rule, **options), "lr")["weight"] == factor
