"""Weight decay: which parameters go without it, by the modules that own them."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, parametrize

from optim.groups import configure_param_groups
from tests.optim.groups.models import Conv, RmsNorm, Tied, by_name, held, tree, values


def decaying(model, **arguments):
    """The names of the parameters that decay."""
    decays = by_name(configure_param_groups(model, weight_decay=0.1, **arguments), "weight_decay")
    assert set(decays.values()) <= {0.0, 0.1}
    return {name for name, value in decays.items() if value}


def test_a_language_model():
    layer = {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"}
    assert decaying(Tied()) == {"embed.weight"} | {f"body.layers.{i}.{name}" for i in (0, 1) for name in layer}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2), ("weight",)),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=3, vdim=3), ("q_proj", "k_proj", "v_proj", "out_proj.w")),
        *((each, ("weight",)) for each in (nn.GRU(3, 4), nn.LSTMCell(3, 4), nn.Bilinear(2, 3, 4), nn.PReLU())),
        *((each, ()) for each in (nn.LayerNorm(3), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.LazyBatchNorm2d())),
        *((each, ()) for each in (nn.BatchNorm3d(4), nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, affine=True))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_of_torch(module, names):
    assert decaying(module) == {name for name, _ in module.named_parameters() if name.startswith(tuple(names))}


def test_names_decide_nothing_but_for_biases():
    """`norm1` is no norm by its name, and `bias_proj` holds a weight."""
    model = held(
        norm1=nn.LayerNorm(2), norm10=nn.Linear(2, 2), bias_proj=nn.Linear(2, 2), bias=nn.Embedding(2, 2), ln=Conv()
    )
    assert decaying(model) == {
        *("norm10.weight", "bias_proj.weight", "bias.weight", "ln.0.weight", "ln.3.weight", "ln.6.weight"),
    }
    biases = ["a.bias", "a.q_bias", "a.bias_k", "a.bias_hh_l1_reverse", "a.biases", "a.expert_biases"]
    names = [*biases, "a.bias_proj", "a.biased", "bias.scale", "unbias", "a.biases_proj"]
    assert decaying(tree(names)) == {"a.bias_proj", "a.biased", "bias.scale", "unbias", "a.biases_proj"}


class LlamaRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


FixedBatchNorm2d, Scale, MambaRMSNormGated = (
    type(name, (LlamaRMSNorm,), {}) for name in ("FixedBatchNorm2d", "Scale", "MambaRMSNormGated")
)


class AdaLayerNorm(nn.Module):
    """A norm layer with a projection inside: the projection decays."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.ones(2))


def test_norms_of_others():
    """By the names of their classes; one that its name does not tell has to be named."""
    inside = {"llama": LlamaRMSNorm(), "fixed": FixedBatchNorm2d(), "ada": AdaLayerNorm(), "scale": Scale()}
    inside.update(gated=MambaRMSNormGated(), timm=RmsNorm())
    model = held(**inside, emb=nn.Embedding(2, 2), own=nn.Linear(2, 2))
    all_but = {"ada.projection.weight", "scale.weight", "emb.weight", "own.weight"}
    assert decaying(model) == decaying(model, no_decay=[]) == all_but
    assert decaying(model, no_decay=Scale) == decaying(model, no_decay="Scale") == all_but - {"scale.weight"}
    assert decaying(model, no_decay=[Scale, "Embedding"]) == {"ada.projection.weight", "own.weight"}
    assert decaying(model, no_decay=["own.*"]) == all_but - {"own.weight"}
    assert decaying(model, no_decay=[nn.Module]) == set()
    assert decaying(model, no_decay=False) == {name for name, _ in model.named_parameters()}


TIMMS = "LayerNorm LayerNorm2d LayerNorm2dFp32 LayerNormAct2d GroupNormAct BatchNormAct2d RmsNormFp32 RmsNorm2dFp32"
TIMMS += " RmsNormAct RmsNormAct2d RmsNormActFp32 RmsNormAct2dFp32 SimpleNorm SimpleNorm2d SimpleNormFp32"
TIMMS += " SimpleNorm2dFp32 RmsNorm2d"


@pytest.mark.parametrize("name", TIMMS.split())
def test_norms_of_timm(name):
    norm = type(name, (LlamaRMSNorm,), {})
    assert decaying(held(norm=norm(), own=nn.Linear(2, 2))) == {"own.weight"}


@pytest.mark.parametrize("name", ["NormLinear", "RMSNormLinear", "SimpleNormed", "BatchNormalizer", "AbnormalAct"])
def test_names_that_only_look_like_a_norm(name):
    assert decaying(held(layer=type(name, (LlamaRMSNorm,), {})())) == {"layer.weight"}


def test_tied_parameters_decay_where_any_owner_would_let_them():
    model = held(norm=nn.LayerNorm(3), row=nn.Linear(3, 1), second=nn.LayerNorm(3), late=nn.LayerNorm(3))
    model.mix = nn.Module()
    model.mix.register_parameter("scale", model.norm.weight)  # a norm's, and a plain weight elsewhere
    model.second.weight = model.late.weight  # two norms'
    model.row.bias = nn.Parameter(torch.zeros(3))
    model.norm.bias = model.row.bias  # a bias here and there
    assert decaying(model) == {"norm.weight", "row.weight"}
    assert decaying(model, no_decay="mix.scale") == {"row.weight"}
    assert "embed.weight" not in decaying(Tied(), no_decay="Embedding")  # though the head is a linear layer


class Excluding(nn.Module):
    """As timm's models: names from this module on, of which some models do not have all."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 2))
        self.table, self.own = nn.Embedding(2, 2), nn.Linear(2, 2)

    def no_weight_decay(self):
        return {"cls_token", "dist_token", "table.weight", "weight"}


@pytest.mark.parametrize("kind", ["alone", "inside", "wrapped"])
def test_what_a_model_excludes(kind):
    """With no_decay=True, and next to what the argument names; a rule wins."""
    part, prefix = Excluding(), "" if kind == "alone" else "part."
    model = part if kind == "alone" else held(part=part, weight=nn.Linear(2, 2), state=nn.Linear(2, 3))
    all_but = {f"{prefix}own.weight"}
    if kind != "alone":
        model.state.weight._no_weight_decay = True  # as in Mamba
        all_but |= {"weight.weight"}
    whole = nn.DataParallel(checkpoint_wrapper(model)) if kind == "wrapped" else model
    assert decaying(whole) == all_but
    assert decaying(whole, no_decay="*own*") == all_but - {f"{prefix}own.weight"}
    assert decaying(whole, no_decay=False) == {name for name, _ in model.named_parameters()}
    rules = [{"params": "*cls_token", "weight_decay": 0.1}]
    assert decaying(whole, rules=rules) == all_but | {f"{prefix}cls_token"}


def test_parametrized_tensors_belong_to_the_layer():
    model = held(
        normed=parametrizations.weight_norm(nn.Linear(2, 2)),
        bias=parametrize.register_parametrization(nn.Linear(2, 2), "bias", nn.Tanh()),
        norm=parametrize.register_parametrization(nn.LayerNorm(2), "weight", nn.Linear(2, 2)),
    )
    assert decaying(model) == {
        "normed.parametrizations.weight.original0",
        "normed.parametrizations.weight.original1",
        "bias.weight",
        "norm.parametrizations.weight.0.weight",  # of the Linear that parametrizes
    }


def test_what_rules_say_comes_first():
    rules = [{"params": "*.bias", "weight_decay": 0.3, "tags": "b"}, {"params": "6.weight", "weight_decay": 0}]
    decays = by_name(configure_param_groups(Conv(), rules, weight_decay=0.1), "weight_decay")
    assert decays == {
        **{"0.weight": 0.1, "3.weight": 0.1, "6.weight": 0.0, "1.weight": 0.0, "4.weight": 0.0},
        **{"1.bias": 0.3, "3.bias": 0.3, "4.bias": 0.3, "6.bias": 0.3},
    }


def test_without_a_value_the_optimizer_decides():
    """And with 0 nothing is split."""
    groups = configure_param_groups(Conv())
    assert [values(group) for group in groups] == [{}, {"weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.25)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25, 0.0]
    assert [values(group) for group in configure_param_groups(Conv(), weight_decay=0)] == [{"weight_decay": 0}]


def test_groups_that_decay_can_be_tagged():
    rules = [{"params": "0.*", "tags": "stem"}, {"params": "6.weight", "weight_decay": 0.0}]
    for value in (0.1, None):
        groups = configure_param_groups(Conv(), rules, weight_decay=value, decay_tag="decay")
        assert by_name(groups, "tags", []) == {
            **{"0.weight": ["decay", "stem"], "3.weight": ["decay"], "6.weight": [], "1.weight": [], "4.weight": []},
            **{"1.bias": [], "3.bias": [], "4.bias": [], "6.bias": []},
        }
    assert not any("tags" in g for g in configure_param_groups(Conv(), weight_decay=0.0, decay_tag="decay"))
