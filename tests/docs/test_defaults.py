"""The tables of docs/choosing.md on optimizers list each default and each argument that differs from torch's."""

import inspect
import re
from ast import literal_eval

import pytest
import torch

import optim
from optim.precision.options import DEFAULTS as OF_PRECISION
from tests.docs.tables import DOCS, rows
from tests.optim.signatures import NAMES

HERE = ["optimizer", "argument", "here", "torch"]
DEFAULTS, ARGUMENTS = rows("choosing.md", HERE)
OURS_ALONE = {"enable_global_step", *OF_PRECISION}
TORCHS_ALONE = {"foreach", "fused", "capturable", "differentiable"}


def defaults(cls):
    """The default of each argument after `params`; where there is none, `inspect.Parameter.empty`."""
    found = inspect.signature(cls).parameters.values()
    return {each.name: each.default for each in found if each.name != "params"}


def value(cell):
    """What a cell of the tables says: a default, no default, or no such argument."""
    words = {"required": inspect.Parameter.empty, "": None}
    return words[cell] if cell in words else (literal_eval(cell.strip("`")),)


def said(default):
    return default if default is inspect.Parameter.empty else (default,)


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch.optim, name)])
def test_every_difference_is_listed(name):
    """Of the defaults, and of the arguments that one of the two lacks."""
    ours, torchs = defaults(getattr(optim, name)), defaults(getattr(torch.optim, name))
    assert ours.keys() - torchs.keys() >= OURS_ALONE and not TORCHS_ALONE & ours.keys()
    differ = {key: (said(ours[key]), said(torchs[key])) for key in ours if key in torchs and ours[key] != torchs[key]}
    alone = {key: (said(ours[key]), None) for key in ours.keys() - torchs.keys() - OURS_ALONE}
    alone |= {key: (None, said(torchs[key])) for key in torchs.keys() - ours.keys() - TORCHS_ALONE}
    for table, expected in ((DEFAULTS, differ), (ARGUMENTS, alone)):
        listed = {key.strip("`"): (value(here), value(there)) for who, key, here, there in table if who == name}
        assert listed == expected


def test_what_torch_has_none_of_is_named():
    assert {who for who, *_ in DEFAULTS + ARGUMENTS} <= set(NAMES)
    (sentence,) = re.findall("^(.*) do not exist in torch", (DOCS / "choosing.md").read_text("utf-8"), re.MULTILINE)
    alone = {name for name in NAMES if not hasattr(torch.optim, name)} - {"Muon"}  # torch 2.9 has it
    assert set(re.findall(r"`(\w+)`", sentence)) == alone
