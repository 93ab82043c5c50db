"""What `from ... import *` gives: `__all__` is a sorted list of all that a public package holds."""

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
    assert package.__all__ == sorted(held)


def outcome_of(code):
    """What a fresh process prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_package_needs_torch_only():
    """What it imports on top of torch is its own, or Python's."""
    code = (
        "import sys, torch; before = set(sys.modules); import timesched\n"
        "more = {name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names\n"
        "print(sorted(more - {'torch'}))"
    )
    assert outcome_of(code) == "['timesched']"
