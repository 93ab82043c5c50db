"""The parameter groups of models with the shapes of well-known ones, for several sets of arguments each.

    python -m tests.golden.groups

writes a file for each model into tests/golden/groups with the code of the checkout: the names in each group, in order,
with all its values; or the error. Files that exist are not written again.
tests/golden/test_groups.py compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from optim import configure_param_groups
from tests.optim.groups.models import GPT, MoE, MOELayer, RmsNorm, Tied, held

FOLDER = Path(__file__).with_name("groups")
Cases = dict[str, dict[str, Any]]


class Conv1D(nn.Module):
    """Like the class of transformers: inputs before outputs."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(inputs, outputs)), nn.Parameter(torch.zeros(outputs))


Conv1D.__module__ = "transformers.pytorch_utils"


def gpt2(width: int = 8) -> nn.Module:
    """With tied embeddings, as in transformers."""

    def block() -> nn.Module:
        attention = held(c_attn=Conv1D(3 * width, width), c_proj=Conv1D(width, width))
        mlp = held(c_fc=Conv1D(4 * width, width), c_proj=Conv1D(width, 4 * width))
        return held(ln_1=nn.LayerNorm(width), attn=attention, ln_2=nn.LayerNorm(width), mlp=mlp)

    blocks = nn.ModuleList(block() for _ in range(3))
    embeddings = {"wte": nn.Embedding(20, width), "wpe": nn.Embedding(12, width)}
    model = held(transformer=held(**embeddings, h=blocks, ln_f=nn.LayerNorm(width)))
    model.lm_head = nn.Linear(width, 20, bias=False)
    model.lm_head.weight = model.transformer.wte.weight
    return model


def bert(width: int = 8) -> nn.Module:
    def layer() -> nn.Module:
        attention = held(query=nn.Linear(width, width), key=nn.Linear(width, width), value=nn.Linear(width, width))
        output = held(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width))
        final = held(dense=nn.Linear(2 * width, width), LayerNorm=nn.LayerNorm(width))
        attended = {"self": attention, "output": output}
        return held(attention=held(**attended), intermediate=held(dense=nn.Linear(width, 2 * width)), output=final)

    words = nn.Embedding(20, width, padding_idx=0)
    embeddings = held(
        word_embeddings=words,
        position_embeddings=nn.Embedding(12, width),
        token_type_embeddings=nn.Embedding(2, width),
        LayerNorm=nn.LayerNorm(width),
    )
    encoder = held(layer=nn.ModuleList(layer() for _ in range(4)))
    body = held(embeddings=embeddings, encoder=encoder, pooler=held(dense=nn.Linear(width, width)))
    transform = held(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width))
    predictions = held(transform=transform, decoder=nn.Linear(width, 20))
    predictions.decoder.weight = words.weight
    predictions.register_parameter("bias", predictions.decoder.bias)
    return held(bert=body, cls=held(predictions=predictions))


class VisionTransformer(nn.Module):
    """Like timm's, which names the parameters without weight decay."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.patch_embed = held(proj=nn.Conv2d(3, 8, 4, stride=4))
        self.blocks = nn.Sequential(*(self.make_block() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def make_block(self) -> nn.Module:
        attention = held(qkv=nn.Linear(8, 24), proj=nn.Linear(8, 8))
        mlp = held(fc1=nn.Linear(8, 16), fc2=nn.Linear(16, 8))
        return held(norm1=nn.LayerNorm(8), attn=attention, norm2=nn.LayerNorm(8), mlp=mlp)

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed", "cls_token"}


def resnet() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        first = {"conv1": nn.Conv2d(inputs, outputs, 3, bias=False), "bn1": nn.BatchNorm2d(outputs)}
        second = {"conv2": nn.Conv2d(outputs, outputs, 3, bias=False), "bn2": nn.BatchNorm2d(outputs)}
        one = held(**first, **second)
        if inputs != outputs:
            one.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        return one

    stages = {f"layer{i}": nn.Sequential(block(4 * max(i - 1, 1), 4 * i), block(4 * i, 4 * i)) for i in (1, 2, 3)}
    return held(conv1=nn.Conv2d(3, 4, 7, bias=False), bn1=nn.BatchNorm2d(4), **stages, fc=nn.Linear(12, 10))


class FusedExperts(nn.Module):
    """Like GPT-OSS: experts in tensors of 3 dimensions, inputs first."""

    is_transposed = True

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Parameter(torch.ones(4, 8, 24)), nn.Parameter(torch.ones(4, 12, 8))
        self.gate_up_proj_bias = nn.Parameter(torch.ones(4, 24))


def mixture() -> nn.Module:
    def layer() -> nn.Module:
        attention = nn.MultiheadAttention(8, 2, bias=False)
        mlp = held(router=held(gate=nn.Linear(8, 4)), experts=FusedExperts())
        return held(norm=RmsNorm(), attention=attention, mlp=mlp, moe=MoE(), ds=MOELayer())

    layers = nn.ModuleList(layer() for _ in range(2))
    return held(embed_tokens=nn.Embedding(20, 8), layers=layers, norm=RmsNorm(), lm_head=nn.Linear(8, 20, bias=False))


class Mixer(nn.Module):
    """Like Mamba's, whose state matrices exclude themselves from weight decay."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log, self.D = nn.Parameter(torch.ones(16, 4)), nn.Parameter(torch.ones(16))
        self.A_log._no_weight_decay = self.D._no_weight_decay = True  # type: ignore[attr-defined]  # as Mamba does
        self.in_proj, self.conv1d = nn.Linear(8, 32, bias=False), nn.Conv1d(16, 16, 4, groups=16)
        self.x_proj, self.dt_proj, self.out_proj = nn.Linear(16, 9), nn.Linear(1, 16), nn.Linear(16, 8)


def mamba() -> nn.Module:
    layers = nn.ModuleList(held(mixer=Mixer(), norm=RmsNorm()) for _ in range(3))
    backbone = held(embeddings=nn.Embedding(20, 8), layers=layers, norm_f=RmsNorm())
    return held(backbone=backbone, lm_head=nn.Linear(8, 20, bias=False))


def lora() -> nn.Module:
    """Frozen layers with adapters, as PEFT names them."""

    def adapted() -> nn.Module:
        sides = {"lora_A": nn.Linear(8, 2, bias=False), "lora_B": nn.Linear(2, 8, bias=False)}
        adapters = {name: nn.ModuleDict({"default": side}) for name, side in sides.items()}
        return held(base_layer=nn.Linear(8, 8).requires_grad_(False), **adapters)

    layers = nn.ModuleList(held(q_proj=adapted(), norm=nn.LayerNorm(8).requires_grad_(False)) for _ in range(2))
    embedding = nn.Embedding(20, 8).requires_grad_(False)
    return held(embed=embedding, layers=layers, lm_head=nn.Linear(8, 20, bias=False).requires_grad_(False))


def convnext() -> nn.Module:
    def block(width: int) -> nn.Module:
        mlp = held(fc1=nn.Linear(width, 4 * width), fc2=nn.Linear(4 * width, width))
        one = held(conv_dw=nn.Conv2d(width, width, 7, groups=width), norm=nn.LayerNorm(width), mlp=mlp)
        one.register_parameter("gamma", nn.Parameter(torch.ones(width)))
        return one

    def stage(inputs: int, outputs: int) -> nn.Module:
        downsample = nn.Sequential(nn.LayerNorm(inputs), nn.Conv2d(inputs, outputs, 2))
        return held(downsample=downsample, blocks=nn.Sequential(block(outputs), block(outputs)))

    stages = nn.Sequential(stage(4, 8), stage(8, 16))
    head = held(norm=nn.LayerNorm(16), fc=nn.Linear(16, 5))
    return held(stem=nn.Sequential(nn.Conv2d(3, 4, 4), nn.LayerNorm(4)), stages=stages, head=head)


def encoder_decoder() -> nn.Module:
    """With a shared embedding, a stack on each side, and a norm that is defined after the layers."""

    def block() -> nn.Module:
        return held(attention=nn.MultiheadAttention(8, 2), fc=nn.Linear(8, 8), layer_norm=nn.LayerNorm(8))

    shared = nn.Embedding(20, 8)
    sides = {
        side: held(embed_tokens=shared, block=nn.ModuleList(block() for _ in range(n)), layernorm_embedding=RmsNorm())
        for side, n in (("encoder", 3), ("decoder", 2))
    }
    return held(model=held(shared=shared, **sides), lm_head=nn.Linear(8, 20, bias=False))


def perceptron(width: int = 16) -> nn.Module:
    layers = [nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, width), nn.Linear(width, 2 * width)]
    return nn.Sequential(*layers, nn.utils.parametrizations.weight_norm(nn.Linear(2 * width, 3)))


COMMON: Cases = {
    "no arguments": {},
    "weight decay": {"weight_decay": 0.1, "decay_tag": "decay"},
    "all decay": {"weight_decay": 0.1, "no_decay": False, "names": False},
    "no linear layer decays": {"weight_decay": 0.1, "no_decay": ["*0*", nn.Linear]},
    "rules": {
        "rules": [
            {"params": "*weight", "tags": ["weights", "all"], "betas": [0.9, 0.95]},
            {"params": "*0*", "tags": "rest", "weight_decay": 0.0, "lr": 0.3},
            {"params": "*1*", "lr": 0.3, "exclusive": True},
        ],
        "weight_decay": 0.05,
        "decay_tag": "decay",
    },
    "factors": {"adjust_learning_rate": {"*weight": 2.0, "*0*": 2}, "weight_decay": 0.1},
    "factors in lr": {"adjust_learning_rate": {nn.Linear: 0.5}, "lr": 0.4, "frozen": False},
    "muon": {"matrices": "muon"},
    "muon without head": {"matrices": "muon", "output_head": (), "weight_decay": 0.1, "decay_tag": "decay"},
    "muon, chosen": {
        "rules": [{"params": "*", "tags": "all"}, {"params": "*0*weight", "algorithm": "lion", "lr": 0.125}],
        "matrices": "muon",
        "lr": {"muon": 0.02, "adamw": 0.001, "lion": 0.25},
    },
}


def with_depth(layers: Any, **options: Any) -> Cases:
    """Cases with learning rates by depth."""
    depth = {"lr": 0.5, "layer_decay": 0.75, "layers": layers}
    rules = [{"params": "*1*weight", "lr": 0.25, "tags": "one"}]
    factors = {"adjust_learning_rate": {"*0*weight": 0.125}, "weight_decay": 0.1}
    muon = {"matrices": "muon", "lr": {"muon": 0.02, "adamw": 0.001}, **options}
    return {"depth": depth, "depth and more": {**depth, **factors, "rules": rules}, "depth and muon": {**depth, **muon}}


def with_width(base: nn.Module, **options: Any) -> Cases:
    """Cases with learning rates by width."""
    width = {"base_model": base, "lr": 0.5, "weight_decay": 0.1, **options}
    sgd = {**width, "base_rule": "sgd", "adjust_learning_rate": {"*bias": 0.5}, "decay_tag": "decay"}
    return {"width": width, "width for SGD": sgd, "width and muon": {**width, "matrices": "muon"}}


def algorithm(params: str, name: str = "adamw") -> list[dict[str, Any]]:
    return [{"params": params, "algorithm": name}]


WIDTH_AND_DEPTH = {"base_model": perceptron(4), "lr": 0.5, "weight_decay": 0.1, "layer_decay": 0.5, "layers": "*"}

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Cases]]] = {
    "gpt2": (
        gpt2,
        lambda: {
            **with_depth("transformer.h.*"),
            **with_width(gpt2(4)),
            "split": {
                "rules": [{"params": "*c_attn.weight", "split_sizes": (8, 8, 8), "transposed": False}],
                "matrices": "muon",
            },
        },
    ),
    "bert": (bert, lambda: {**with_depth("bert.encoder.layer.*"), **with_width(bert(4))}),
    "vit": (
        VisionTransformer,
        lambda: {
            **with_depth("blocks.*", rules=algorithm("pos_embed"), output_head="head*"),
            "muon, positions": {"rules": algorithm("*_embed"), "matrices": "muon", "output_head": "head.*"},
        },
    ),
    "resnet": (resnet, lambda: with_depth([f"layer{i}.*" for i in (1, 2, 3)], output_head="fc.*")),
    "mixture": (mixture, lambda: with_depth("layers.*")),
    "mamba": (
        mamba,
        lambda: {
            **with_depth("backbone.layers.*", rules=algorithm("*A_log")),
            "muon, state": {"rules": algorithm("*A_log", "muon"), "matrices": "muon", "weight_decay": 0.1},
        },
    ),
    "lora": (
        lora,
        lambda: {
            **with_depth("layers.*"),
            "plus": {"adjust_learning_rate": {"*lora_B*": 16.0}, "lr": 0.125, "frozen": False},
            "muon, trained": {"matrices": "muon", "frozen": False},
        },
    ),
    "convnext": (convnext, lambda: with_depth("stages.*.blocks.*", output_head="head.fc*")),
    "encoder_decoder": (
        encoder_decoder,
        lambda: {
            **with_depth(["model.encoder.block.*", "model.decoder.block.*"]),
            "depth of one side": {"lr": 1.0, "layer_decay": 0.5, "layers": "*.decoder.block.*"},
            "depth of the decoder": {"lr": 1.0, "layer_decay": 0.5, "layers": "model.decoder.block.*"},
        },
    ),
    "perceptron": (perceptron, lambda: {**with_width(perceptron(4)), "width and depth": WIDTH_AND_DEPTH}),
    "tied": (Tied, lambda: with_depth("body.layers.*")),
    "head_first": (GPT, lambda: with_depth("transformer.h.*", output_head="lm_head.*")),
}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return json.loads(json.dumps(value))


def describe(model: nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    """The groups with names in place of parameters, or the error."""
    names = {id(p): name for name, p in model.named_parameters()}
    try:
        groups = configure_param_groups(model, **arguments)
    except (ValueError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    described = []
    for group in groups:
        pairs = [p if isinstance(p, tuple) else (names[id(p)], p) for p in group["params"]]
        assert all(names[id(p)] == name for name, p in pairs)
        described.append([[key, value] for key, value in {**group, "params": [name for name, _ in pairs]}.items()])
    return {"groups": plain(described)}


def make(name: str) -> dict[str, Any]:
    """All cases of a model, by name. The model is made once for each case."""
    make_model, make_cases = MODELS[name]
    return {case: describe(make_model(), arguments) for case, arguments in {**COMMON, **make_cases()}.items()}


if __name__ == "__main__":
    for name in MODELS:
        path = FOLDER / f"{name}.json"
        if not path.exists():
            cases = [f'"{case}": {json.dumps(described)}' for case, described in make(name).items()]
            path.write_text("{\n" + ",\n".join(cases) + "\n}\n")
            print(path, path.stat().st_size)
