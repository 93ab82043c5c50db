"""Stands for the parts of axolotl and ms-swift that the plugins use. Import it before the plugins."""

import sys
from types import ModuleType


class BasePlugin:
    """The plugin of axolotl, which does nothing."""


class OptimizerCallback:
    """The callback of ms-swift, which makes the Trainer's own optimizer."""

    def __init__(self, args, trainer):
        self.args, self.trainer = args, trainer


for name, parts in {
    "axolotl.integrations.base": {"BasePlugin": BasePlugin},
    "swift.optimizers": {"OptimizerCallback": OptimizerCallback, "optimizers_map": {}},
}.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(parts)
