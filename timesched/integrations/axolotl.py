"""A plugin for axolotl: a section `timesched` in its YAML, with the schedules of the run.

axolotl 0.21 finds the plugin by the entry point of this package. An older one needs it under `plugins`.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel
from transformers import Trainer

from .section import schedule_by_section

__all__ = ["SchedulePlugin"]


class ScheduleArgs(BaseModel):
    """The key that axolotl accepts in its config."""

    timesched: dict[str, Any] | None = None


class SchedulePlugin(BasePlugin):
    """Has axolotl's Trainer run the schedules of the section `timesched`, if there is one.

    The section has the keys of `timesched.integrations.section.schedule_by_section`. Errors begin with the path of the
    entry, such as `timesched.schedules[0]`.
    """

    def get_input_args(self) -> str:
        """The name of the class with the keys of the config."""
        return f"{__name__}.{ScheduleArgs.__name__}"

    def post_trainer_create(self, cfg: Any, trainer: Trainer) -> None:
        """Give the Trainer its schedules. axolotl calls it once the Trainer is made."""
        if cfg.get("timesched") is not None:
            schedule_by_section(trainer, cfg["timesched"], "timesched")
