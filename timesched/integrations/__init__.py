"""Schedules in third-party trainers: a module for each, on common.py. No other module imports a trainer."""
