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
