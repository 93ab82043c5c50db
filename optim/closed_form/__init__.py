"""What the closed-form schedulers share; their classes stand in optim/lr_scheduler.py and weight_decay_scheduler.py.

formulas.py   schedules that return values
hooks.py      the functions that a subclass may define
composed.py   schedulers made of schedulers: `SequentialLR`, `ChainedLR`, `ScalePerParamLR`
"""
