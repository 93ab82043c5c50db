"""Optimizers and schedulers from names and plain data: read (YAML, dicts), resolve (names, arguments), build."""

from .build import Built, build, configure_lr_scheduler, configure_optimizer
from .read import read

__all__ = ["Built", "build", "configure_lr_scheduler", "configure_optimizer", "read"]
