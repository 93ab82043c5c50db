"""Whether `import optim` finds our package: a module that hides it, and a project that has replaced it."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from timesched import packages
from timesched.packages import check_optim


def test_our_package_is_found():
    check_optim()


def test_a_module_that_hides_it(monkeypatch):
    module = ModuleType("optim")
    module.__spec__ = ModuleSpec("optim", None, origin="/home/me/optim.py")
    monkeypatch.setitem(sys.modules, "optim", module)
    with pytest.raises(ImportError, match=r"^/home/me/optim.py hides the package optim of torch-timesched. Rename it"):
        check_optim()


def test_a_project_that_has_replaced_it(monkeypatch, tmp_path):
    """`pip install optim` writes its own optim/__init__.py in the place of ours."""
    path = tmp_path / "optim" / "__init__.py"
    path.parent.mkdir()
    path.write_text("from .optim import *\n")
    monkeypatch.setattr(packages, "_OPTIM", path)
    monkeypatch.delitem(sys.modules, "optim")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="another project called optim has replaced or removed it. Run pip unins"):
        check_optim()


def test_no_package_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "_OPTIM", tmp_path / "optim" / "__init__.py")
    monkeypatch.setitem(sys.modules, "optim", None)
    with pytest.raises(ImportError, match="has replaced or removed it"):
        check_optim()
