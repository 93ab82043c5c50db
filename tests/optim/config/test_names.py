"""The names that configs know: all public classes."""

import timesched
from optim import lr_scheduler, names, weight_decay_scheduler
from tests.optim.rows import FULLEST
from timesched.schedule import Schedule


def test_every_public_class_has_its_name():
    assert names.optimizers().own.keys() == {row.name for row in FULLEST} | {"AdamBase"}
    schedules = {name for name in timesched.__all__ if isinstance(getattr(timesched, name), type)}
    schedules = {name for name in schedules if issubclass(getattr(timesched, name), Schedule)} - {"Schedule"}
    assert names.SCHEDULE.own.keys() == schedules and len(schedules) > 20
    closed_forms = {*lr_scheduler.__all__, *weight_decay_scheduler.__all__} - {"LRScheduler", "WeightDecayScheduler"}
    assert names.CLOSED_FORM.own.keys() == closed_forms
    assert names.LR.own.keys() == set(lr_scheduler.__all__) - {"LRScheduler"}
    assert names.SCHEDULER.own.keys() == closed_forms | schedules
    assert names.LR.own["ChainedScheduler"] is names.LR.own["ChainedLR"]
