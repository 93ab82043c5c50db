"""docs/coming_from/torch.md lists each default and argument of the optimizers that differs from torch's.

The docstrings say torch's default beside ours, and with torch's defaults written out the steps are torch's.
"""

import inspect
import re
from ast import literal_eval

import pytest
import torch

import optim
from optim.precision.options import DEFAULTS as OF_PRECISION
from tests.docs.tables import DOCS, rows
from tests.optim.problems import assert_states_close, flat, parameters, run
from tests.optim.signatures import NAMES

PAGE = "coming_from/torch.md"
HERE = ["optimizer", "argument", "here", "torch"]
DEFAULTS, ARGUMENTS = rows(PAGE, HERE)
OURS_ALONE = {"enable_global_step", *OF_PRECISION}
TORCHS_ALONE = {"foreach", "fused", "capturable", "differentiable"}
OF_BOTH = pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch.optim, name)])


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


@OF_BOTH
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


@OF_BOTH
def test_docstrings_say_torchs_default_where_it_differs(name):
    """Beside our own, at the argument, as in "Default: 1e-6; torch's default: 1e-8."."""
    ours, torchs = defaults(getattr(optim, name)), defaults(getattr(torch.optim, name))
    text = inspect.getdoc(getattr(optim, name)).partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, re.MULTILINE)
    assert {key for key, _ in entries} == ours.keys() - set(OF_PRECISION) | {"params"}
    both = re.compile(r"(?:Default: ([^;]*)|No default); torch's default: (.*)\.$")
    found = {}
    for key, entry in entries:
        for here, there in both.findall(" ".join(entry.split())):
            found[key] = said(literal_eval(here) if here else inspect.Parameter.empty), literal_eval(there)
    expected = {key: (said(ours[key]), torchs[key]) for key in ours if key in torchs and ours[key] != torchs[key]}
    assert found == expected


@OF_BOTH
def test_with_torchs_defaults_written_out_the_steps_are_torchs(name):
    """Those of the table, and the dtype of Muon's iterations."""
    written_out = {key.strip("`"): literal_eval(there.strip("`")) for who, key, _, there in DEFAULTS if who == name}
    if name == "Adafactor":  # has another formula
        assert "except for `Adafactor`" in (DOCS / PAGE).read_text("utf-8")
        return
    if name == "Muon":
        written_out["ns_dtype"] = "bfloat16"
    mine = getattr(optim, name)(parameters(name), **written_out)
    other = getattr(torch.optim, name)(parameters(name))
    for optimizer in (mine, other):
        run(optimizer, flat(optimizer), 1, 20)
    assert_states_close(mine, other, 1e-12)
    assert not torch.equal(flat(mine)[0], parameters(name)[0])


def test_the_tables_name_our_optimizers():
    assert {who for who, *_ in DEFAULTS + ARGUMENTS} <= set(NAMES)
