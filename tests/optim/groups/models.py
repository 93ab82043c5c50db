"""Models whose parameters the tests sort into groups, and how to look at the groups."""

import torch
from torch import nn

VOCABULARY, WIDTH = 11, 8


class Tied(nn.Module):
    """A language model whose output layer is its embedding, with a bias of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=12, dropout=0.0, batch_first=True),
            num_layers=2,
            norm=nn.LayerNorm(WIDTH),
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


class Conv(nn.Sequential):
    """A small convolutional net."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(64, 3),
        )


# With the names and the structure of classes that are not installed here.


def linear(inputs=WIDTH, outputs=WIDTH):
    return nn.Linear(inputs, outputs, bias=False)


class TokenChoiceTopKRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = linear(outputs=4)


class GroupedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.ones(4, 12, WIDTH)), nn.Parameter(torch.ones(4, WIDTH, 12))


class MoE(nn.Module):
    """Of torchtitan."""

    def __init__(self):
        super().__init__()
        self.experts, self.router = GroupedExperts(), TokenChoiceTopKRouter()


class TopKGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.wg = linear(outputs=4)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.deepspeed_experts = nn.ModuleList(linear() for _ in range(2))


class MOELayer(nn.Module):
    """Of DeepSpeed."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = TopKGate(), Experts()


class RmsNorm(nn.Module):
    """Of timm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = linear(outputs=3 * WIDTH), linear()


class GPT(nn.Module):
    """Of litGPT, which registers its head first."""

    def __init__(self):
        super().__init__()
        self.lm_head = linear(outputs=32)
        block = nn.ModuleDict({"attn": CausalSelfAttention(), "mlp": nn.ModuleDict({"fc": linear(), "proj": linear()})})
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(32, WIDTH), "h": nn.ModuleList([block])})


def held(**modules):
    """A module with others inside."""
    model = nn.Module()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def loss_of(model, seed):
    """A loss of a batch that the seed decides."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Tied):
        tokens = torch.randint(VOCABULARY, (3, 5), generator=generator)
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1).flatten())
    return model(torch.randn(4, 1, 8, 8, generator=generator)).square().mean()


def tree(names, shape=(1,)):
    """A module with parameters of exactly these names."""
    root = nn.Module()
    for name in names:
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_parameter(last, nn.Parameter(torch.ones(shape)))
    return root


def names_of(group):
    """The names in a group that `configure_param_groups` made."""
    return [name for name, _ in group["params"]]


def by_name(groups, key, default=None):
    """The value of a key for every parameter."""
    return {name: group.get(key, default) for group in groups for name in names_of(group)}


def values(group):
    """All of a group but its parameters."""
    return {key: value for key, value in group.items() if key != "params"}
