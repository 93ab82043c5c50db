"""Parameter groups: made by rules over names and layers, shown as a table."""

from .grouping import configure_param_groups
from .table import param_group_table

__all__ = ["configure_param_groups", "param_group_table"]
