"""The optimizer "timesched" of ms-swift, whose `lr_scheduler_kwargs` are the schedules of the run.

A file with `import timesched.integrations.swift` registers it: `--external_plugins FILE --optimizer timesched`.
"""

from __future__ import annotations

from typing import Any

from swift.optimizers import OptimizerCallback, optimizers_map

from .section import schedule_by_section

__all__ = ["ScheduleCallback"]


class ScheduleCallback(OptimizerCallback):
    """Has ms-swift's Trainer run the schedules of `lr_scheduler_kwargs`, with the optimizer that it would have anyway.

    `lr_scheduler_kwargs` has the keys of `timesched.integrations.section.schedule_by_section`. Errors begin with the
    path of the entry, such as `lr_scheduler_kwargs.schedules[0]`.
    """

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        # The Trainer makes this object before its own parts. It is complete when it asks for its first data loader.
        self._get_train_dataloader = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._schedule_and_get_train_dataloader

    def _schedule_and_get_train_dataloader(self, *arguments: Any, **keywords: Any) -> Any:
        self.trainer.get_train_dataloader = self._get_train_dataloader
        schedule_by_section(self.trainer, self.args.lr_scheduler_kwargs, "lr_scheduler_kwargs")
        return self.trainer.get_train_dataloader(*arguments, **keywords)


optimizers_map.update(timesched=ScheduleCallback)
