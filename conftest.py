"""What pytest leaves out where something is not installed; for the tests see tests/conftest.py."""

import importlib.util
from pathlib import Path

from tools.adapters import modules_without_packages

# Doctests are collected from every module of the package.
collect_ignore = [str(module) for module in modules_without_packages()]
collect_ignore += ["docs/conf.py", "docs/_ext"]  # for Sphinx, which the tests' environments lack

# Composer's environment is for Composer: see tests/conftest.py.
if importlib.util.find_spec("composer") is not None:
    packages = [*Path("optim").iterdir(), *Path("timesched").iterdir()]
    collect_ignore += [str(path) for path in packages if path.name != "integrations"]
    # Its torch is older than those that compile a step.
    collect_ignore += ["docs/compiling.md", "docs/optimizers.md"]
    # The laws take seconds, and no torch changes them: the newest torch runs this page.
    collect_ignore += ["docs/tutorials/property_tests.md"]
