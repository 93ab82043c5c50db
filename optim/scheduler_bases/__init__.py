"""The common bases of learning-rate and weight-decay schedulers. The layers, from the bottom up:

closed_form/formulas.py       schedules that return values: they know no scheduler
scheduler.py                  `Scheduler`, which writes the values of a formula, or of a user's method
scheduler_bases/functions.py  schedulers in which a subclass may define functions of the step: `LambdaLR`, `CyclicLR`
scheduler_bases/composed.py   schedulers made of other schedulers: `SequentialLR`, `ChainedLR`, `ScalePerParamLR`
lr_scheduler.py, weight_decay_scheduler.py  the public classes
"""
