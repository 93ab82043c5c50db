"""The common parts of the absolute-value schedulers of optim/lr_scheduler.py and optim/weight_decay_scheduler.py.

formulas.py   schedules that return values
hooks.py      the functions that a subclass may define
composed.py   schedulers made of other schedulers: `SequentialLR`, `ChainedLR`, `ScalePerParamLR`
"""
