"""Schedules in other people's trainers: a module for each, on common.py. No other module imports a trainer."""
