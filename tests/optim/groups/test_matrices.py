"""Which parameters Muon steps and which AdamW: by the modules that own them, on models of torch and of transformers."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations

import optim
from optim import configure_param_groups, param_group_table
from tests.optim.groups.models import GPT, Conv, MoE, MOELayer, Tied, by_name, held, linear, names_of


class Sequence(nn.Module):
    """A language model with an output head of its own."""

    def __init__(self, positions=6, tokens=11, width=8):
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(positions, width)
        self.attention = nn.MultiheadAttention(width, 2)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)


class TinyExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.ones(4, 12, 8)), nn.Parameter(torch.ones(4, 8, 12))
        self.up_bias = nn.Parameter(torch.ones(4, 12))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4, bias=False), TinyExperts()
        self.shared_expert_gate = nn.Linear(8, 1, bias=False)
        self.gate_proj = nn.Linear(8, 16, bias=False)


class MixtralTopKRouter(nn.Module):
    """A router with a matrix of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))


class DFineGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = linear(16, 16)


class DisentangledSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = linear(8, 24)


class RouterLanguageModel(Sequence):
    """A model that is called like a router, and is none."""


def algorithms(model, **options):
    return by_name(configure_param_groups(model, matrices="muon", **options), "algorithm")


def muons(model, **options):
    return {name for name, algorithm in algorithms(model, **options).items() if algorithm == "muon"}


def settings(model, key, **options):
    found = by_name(configure_param_groups(model, matrices="muon", **options), key)
    return {name: value for name, value in found.items() if value is not None}


ATTENTION = {"attention.in_proj_weight", "attention.out_proj.weight"}


def test_a_language_model():
    """The head is the linear layer with rows and columns of the largest embedding."""
    model = Sequence(positions=8, width=8)  # as many positions as channels
    assert muons(model) == {*ATTENTION, "mlp.0.weight", "mlp.2.weight"}
    assert settings(model, "split_sizes") == {"attention.in_proj_weight": (8, 8, 8)}
    groups = configure_param_groups(model, matrices="muon", weight_decay=0.1)
    assert {tuple(group["tags"]) for group in groups} == {("muon",), ("adamw",)}
    decays = by_name(groups, "weight_decay")
    assert (
        decays["norm.weight"] == decays["mlp.0.bias"] == 0.0 and decays["head.weight"] == decays["mlp.0.weight"] == 0.1
    )


def test_a_tied_head_is_an_embedding():
    layer = {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"}
    assert muons(Tied()) == {f"body.layers.{i}.{name}" for i in (0, 1) for name in layer}


def test_heads_next_to_a_tied_one():
    """They are called heads, and have a row for each entry of an embedding."""
    model = Tied()
    model.vision = nn.Embedding(16, 8)
    model.vision_head, model.value_head = linear(8, 16), linear(8, 1)
    model.lm_head = nn.ModuleDict({"dense": linear(8, 8), "decoder": linear(8, 11)})
    model.project, model.headless = linear(8, 16), linear(8, 11)
    assert muons(model) - muons(Tied()) == {"lm_head.dense.weight", "project.weight", "headless.weight"}
    assert {"project.weight", "vision_head.weight"} < muons(model, output_head=())


def test_groups_of_muon_are_for_no_other_optimizer():
    with pytest.raises(ValueError, match="algorithm='adamw': AdamW has one"):
        optim.AdamW(configure_param_groups(Sequence(), matrices="muon"))


def test_the_table_of_an_optimizer_has_no_columns_of_one_algorithm():
    optimizer = optim.Muon(configure_param_groups(Sequence(), matrices="muon"), adamw={"lr": 1e-3})
    head = param_group_table(optimizer).splitlines()[0].split()
    assert head == [
        "group",
        "tags",
        "tensors",
        "elements",
        "algorithm",
        "eps",
        "lr",
        "split_sizes",
        "weight_decay",
        "names",
    ]


def test_convolutions_are_flattened():
    assert settings(Conv(), "flatten", output_head="6.*") == {"0.weight": True, "3.weight": True}
    assert muons(Conv(), output_head="6.*") == {"0.weight", "3.weight"}
    assert muons(Conv(), output_head=()) == {"0.weight", "3.weight", "6.weight"}


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv1d(8, 8, 4, groups=8), "depthwise convolution"),
        (nn.Conv1d(8, 16, 4, groups=8), "depthwise convolution"),
        (nn.Conv1d(8, 8, 4, groups=4), "Conv1d"),
        (nn.Conv1d(8, 8, 4), "Conv1d"),
        (nn.Conv2d(8, 8, 3, groups=8), "depthwise convolution"),
        (nn.Conv2d(1, 8, 3), "Conv2d"),  # of a grey image
        (parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, groups=8)), "depthwise convolution"),
    ],
)
def test_depthwise_convolutions(layer, reason):
    """Their rows are filters of different channels, not the rows of a matrix."""
    groups = configure_param_groups(held(conv=layer), matrices="muon", output_head=())
    found = {name: why for group in groups for name, why in zip(names_of(group), group["reasons"])}
    name = next(name for name in found if "bias" not in name)
    assert found[name] == reason
    assert ("conv.bias" in found) and (name in muons(held(conv=layer), output_head=())) == reason.startswith("Conv")


def wrapped(model):
    """As data-parallel training and activation checkpointing wrap it."""
    for name, layer in model.named_children():
        setattr(model, name, checkpoint_wrapper(layer))
    return nn.DataParallel(model)


GATES = {"gateway": DFineGate(), "forget_gate": held(f_proj=linear())}


@pytest.mark.parametrize(
    ("model", "matrices"),
    [
        (Mixture(), {"experts.up", "experts.down", "gate_proj.weight"}),
        (held(router=linear(), gate=linear()), {"gate.weight"}),
        (held(router=held(layers=nn.Sequential(linear(), linear()))), set()),
        (held(ffn=MixtralTopKRouter(), up=linear()), {"up.weight"}),
        (held(router=held(gate=parametrizations.spectral_norm(linear()))), set()),
        (held(modality_router=linear(), router_gate=linear(), routers=linear()), {"routers.weight"}),
        (held(**GATES), {"gateway.gate.weight", "forget_gate.f_proj.weight"}),
        (MoE(), {"experts.w1", "experts.w2"}),
        (held(layers=nn.ModuleList([wrapped(MoE())])), {"layers.0.experts.w1", "layers.0.experts.w2"}),
        (wrapped(held(ffn=MixtralTopKRouter())), set()),
        (MOELayer(), {f"experts.deepspeed_experts.{i}.weight" for i in (0, 1)}),
        (wrapped(MOELayer()), {f"experts.deepspeed_experts.{i}.weight" for i in (0, 1)}),
        (RouterLanguageModel(), {*ATTENTION, "mlp.0.weight", "mlp.2.weight", "head.weight"}),
        (wrapped(RouterLanguageModel()), {*ATTENTION, "mlp.0.weight", "mlp.2.weight", "head.weight"}),
    ],
)
def test_experts_and_routers(model, matrices):
    """A module around the layer decides, too; wrappers and parametrizations change nothing."""
    assert muons(model, output_head=()) == matrices


def test_experts_that_hold_inputs_before_outputs():
    """As their modules say. Forms and algorithms that go by rows refuse them."""
    model = Mixture()
    for said in (False, True):
        model.experts.is_transposed = said
        found = settings(model, "transposed", output_head=())
        assert found == {f"experts.{name}": True for name in ("up", "down") if said}
    groups = configure_param_groups(model, matrices="muon", output_head=())
    optim.Muon(groups, adjust_lr_fn="match_rms_adamw")
    for kind, form in ((optim.Muon, "original"), (optim.Muon, "spectral_unclamped"), (optim.NorMuon, "cerebras")):
        with pytest.raises(ValueError, match="transposed"):
            kind(groups, adjust_lr_fn=form)


def test_a_head_that_is_registered_first():
    layers = ("attn.qkv", "attn.proj", "mlp.fc", "mlp.proj")
    assert muons(GPT()) == {f"transformer.h.0.{name}.weight" for name in layers}


class FusedExperts(nn.Module):
    def __init__(self, is_transposed):
        super().__init__()
        self.gate_up_proj, self.w13 = (nn.Parameter(torch.ones(4, 24, 8)) for _ in range(2))
        self.down_proj, self.is_transposed = nn.Parameter(torch.ones(4, 8, 12)), is_transposed


NAMES = ("qkv", "Wqkv", "query_key_value", "qkv_proj", "c_attn", "gate_up_proj", "w13")
PROJECTIONS = held(**{name: linear(8, 24) for name in NAMES}, in_proj=linear(8, 24), attn=DisentangledSelfAttention())
QKV = "transformer.h.0.attn.qkv.weight"


@pytest.mark.parametrize(
    ("model", "rule", "fused"),
    [
        (PROJECTIONS, {}, {*(f"{name}.weight" for name in NAMES), "attn.in_proj.weight"}),
        (GPT(), {}, {QKV}),
        (GPT(), {"algorithm": "muon"}, {QKV}),
        (GPT(), {"split_sizes": (8, 8, 8)}, set()),
        (GPT(), {"num_heads": 3}, set()),
        (GPT(), {"algorithm": "adamw"}, set()),
        (Sequence(), {}, set()),
        (held(experts=FusedExperts(False)), {}, {"experts.gate_up_proj", "experts.w13"}),
        (held(experts=FusedExperts(False)), {"params": "*w13", "split_sizes": (12, 12)}, {"experts.gate_up_proj"}),
        (held(experts=FusedExperts(True)), {}, set()),  # blocks of columns
    ],
)
def test_the_table_notes_a_fused_projection(model, rule, fused):
    rules = [{"params": "*qkv*", **rule}] if rule else []
    groups = configure_param_groups(model, rules, matrices="muon", output_head=())
    found = {name for group in groups for name, why in zip(names_of(group), group["reasons"]) if "fused" in why}
    assert found == fused
    assert ("fused without split_sizes: " in param_group_table(optim.Muon(groups, lr=0.1))) == bool(fused)


def test_rules_win():
    rules = [{"params": "mlp.0*", "algorithm": "lion"}, {"params": "position.weight", "algorithm": "muon", "lr": 0.5}]
    found = algorithms(Sequence(), rules=rules)
    assert found["mlp.0.weight"] == found["mlp.0.bias"] == "lion" and found["position.weight"] == "muon"
    for rule in ({"split_sizes": None, "num_heads": 6}, {"num_heads": 6}):
        rules = [{"params": "attention.in_proj_weight", **rule}]
        assert settings(Sequence(), "num_heads", rules=rules) == {"attention.in_proj_weight": 6}
        assert settings(Sequence(), "split_sizes", rules=rules) == {}
    rules = [{"params": "head.weight", "algorithm": "muon"}]
    assert algorithms(Sequence(), rules=rules)["head.weight"] == "muon"
    assert settings(Sequence(), "tags", rules=rules)["head.weight"] == ["muon"]
    rules = [{"params": "*", "algorithm": "adamw"}]
    assert settings(Sequence(), "split_sizes", rules=rules) == {}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (Sequence(tokens=32), {}, r"several linear layers.*'head.\*'"),
        (
            held(embed=nn.Embedding(32, 8), mlp=nn.Sequential(linear(8, 32), linear(32, 8)), classifier=linear(8, 3)),
            {},
            "'classifier.weight' follows 'mlp.0.weight'",
        ),
        (nn.Sequential(nn.Embedding(32, 8), linear(8, 32), linear(32, 3)), {}, "'2.weight' follows '1.weight'"),
        (nn.Linear(3, 2), {}, r"no embedding.*'weight'"),
        (held(a=nn.Embedding(9, 2), b=nn.Linear(3, 2)), {}, "no linear layer has.*'b.weight'"),
        (held(a=nn.GRU(3, 4)), {}, r"'a.weight_ih_l0' \(and 1 more\).*GRU"),
        (held(a=nn.ConvTranspose1d(3, 4, 2)), {}, r"'a.weight'.*\(3, 4, 2\).*ConvTranspose1d"),
        (Sequence(), {"output_head": "heads*"}, "heads"),
        (Sequence(), {"matrices": "adamw"}, "matrices='adamw'"),
    ],
)
def test_what_cannot_be_told(model, options, words):
    with pytest.raises(ValueError, match=words):
        configure_param_groups(model, **{"matrices": "muon", **options})


def test_names_alone_are_not_enough():
    with pytest.raises(ValueError, match="matrices='muon': the layers of a list"):
        configure_param_groups(list(Sequence().named_parameters()), matrices="muon", no_decay=False)


def test_the_table_says_why():
    text = param_group_table(configure_param_groups(Sequence(), matrices="muon"))
    for words in (
        "embedding: token.weight, position.weight; output head: head.weight",
        "bias: attention.in_proj_bias, attention.out_proj.bias, mlp.0.bias, mlp.2.bias, norm.weight, norm.bias",
        "MultiheadAttention: attention.in_proj_weight",
        "Linear: attention.out_proj.weight, mlp.0.weight, mlp.2.weight",
    ):
        assert words in text, text
    assert all(name in text for name, _ in Sequence().named_parameters())
    short = param_group_table(configure_param_groups(Sequence(), matrices="muon"), names=1)
    assert "norm or bias: attention.in_proj_bias and 5 more" in short


@pytest.mark.parametrize("kind", ["Muon", "NorMuon"])
def test_in_a_config(kind):
    entry = {"lr": 0.02, "no_decay": True, "weight_decay": 0.3, "adamw": {"lr": 3e-4, "betas": [0.9, 0.95]}}
    entry["params"] = [{"params": "position*", "algorithm": "adamw", "eps": 1e-3}]
    model = Sequence()
    optimizer, _ = optim.build(model, {"optimizer": {kind: entry}})
    found = {p: group for group in optimizer.param_groups for p in group["params"]}
    assert found[model.mlp[0].weight]["lr"] == 0.02 and found[model.mlp[0].weight]["algorithm"] == "muon"
    assert found[model.head.weight]["lr"] == found[model.norm.weight]["lr"] == 3e-4
    assert tuple(found[model.head.weight]["betas"]) == (0.9, 0.95) and found[model.position.weight]["eps"] == 1e-3
    assert found[model.norm.weight]["weight_decay"] == 0.0 and found[model.mlp[0].weight]["weight_decay"] == 0.3
    with pytest.raises(ValueError, match="output_head"):
        optim.build(nn.Linear(3, 2), {"optimizer": {kind: {"adamw": {}}}})
    optim.build(nn.Linear(3, 2, bias=False), {"optimizer": {kind: {}}})  # matrices alone


def test_a_rule_in_a_config_has_the_arguments_of_its_algorithm():
    def built(**rule):
        entry = {"lr": 0.02, "adamw": {"lr": 3e-4}, "params": [{"params": "position*", **rule}]}
        return optim.build(model := Sequence(), {"optimizer": {"Muon": entry}}), model

    (optimizer, _), model = built(algorithm="adamw", betas=[0.8, 0.9])
    found = {p: group for group in optimizer.param_groups for p in group["params"]}
    assert tuple(found[model.position.weight]["betas"]) == (0.8, 0.9)
    with pytest.raises(ValueError, match="AdamW has no argument 'ns_steps'"):
        built(algorithm="adamw", ns_steps=3)
    with pytest.raises(ValueError, match="Muon has no argument 'betas'"):
        built(algorithm="muon", betas=[0.8, 0.9])


def test_a_step_of_a_model():
    model = Sequence()
    optimizer = optim.Muon(configure_param_groups(model, matrices="muon"), lr=0.02, adamw={"lr": 3e-3})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert set(optimizer.state[model.head.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(optimizer.state[model.mlp[0].weight]) == {"momentum_buffer"}
