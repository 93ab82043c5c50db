"""The formulas of the absolute-value schedulers.

formulas.py   schedules that return values: they know no scheduler
"""
