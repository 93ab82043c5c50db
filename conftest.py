"""What pytest leaves out where something is not installed; for the tests see tests/conftest.py."""

import importlib.util

# Doctests are collected from every module of the package, and this one needs Composer.
HAS_COMPOSER = importlib.util.find_spec("composer") is not None
collect_ignore = [] if HAS_COMPOSER else ["timesched/integrations/composer.py"]
