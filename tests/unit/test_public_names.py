"""What `from ... import *` gives: `__all__` is a list of all that a public package holds."""

import inspect
import subprocess
import sys

import pytest

import timesched
import timesched.schedulers
import timesched.testing
import timesched.time


@pytest.mark.parametrize("package", [timesched, timesched.schedulers, timesched.testing, timesched.time], ids=repr)
def test_all_is_what_is_there(package):
    held = {name for name, value in vars(package).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert sorted(package.__all__) == sorted(held)


IMPORTS = """
import sys, torch
before = set(sys.modules)
import timesched
imported = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(imported - sys.stdlib_module_names - {"torch"}))

import optim
for name in [*sys.modules]:
    if name.split(".")[0] in ("optim", "timesched"):
        del sys.modules[name]
import optim
print(optim.Adam.__name__)
"""


def test_imports_in_a_fresh_process():
    """`timesched` imports nothing but torch and Python's own modules. `optim` is imported again after a reload."""
    process = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    assert process.stdout.splitlines() == ["['timesched']", "Adam"]
