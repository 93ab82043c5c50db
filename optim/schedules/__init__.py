"""How the schedulers of optim are made: their formulas, and what a closed-form scheduler is.

closed_form.py   `Scheduler`, the base class
arguments.py     the arguments of a scheduler, by name and in plain values
by_formula.py    a scheduler class made of a formula, and the functions that a subclass may give it
assembled.py     schedulers made of other schedulers: `SequentialLR`, `ChainedLR`, `ScalePerParamLR`
formulas.py      formulas: schedules that return values
cycles.py        formulas that repeat or go in steps
composites.py    formulas made of functions or of other schedules
"""
