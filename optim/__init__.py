"""Optimizers whose state all exists before the first step, so that step 0 is the same graph, memory and keys as step N.

>>> import torch
>>> weight = torch.nn.Parameter(torch.ones(3))
>>> optimizer = AdamW([weight], lr=0.1)
>>> {name: tuple(value.shape) for name, value in optimizer.state[weight].items()}
{'step': (), 'exp_avg': (3,), 'exp_avg_sq': (3,)}
"""

from . import lr_scheduler, scheduler, weight_decay_scheduler
from .adadelta import Adadelta
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, AdamBase, AdamW
from .adamax import Adamax
from .asgd import ASGD
from .config import build, configure_lr_scheduler, configure_optimizer
from .core.low_precision import Precision
from .core.optimizer import Optimizer
from .groups import configure_param_groups, param_group_table
from .initial_state import preinitialize, state_bytes
from .lamb import Lamb
from .lion import Lion
from .muon import Muon, NorMuon
from .nadam import NAdam
from .radam import RAdam
from .rmsprop import RMSprop
from .rprop import Rprop
from .sgd import SGD

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamBase",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "Muon",
    "NAdam",
    "NorMuon",
    "Optimizer",
    "Precision",
    "RAdam",
    "RMSprop",
    "Rprop",
    "build",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_param_groups",
    "lr_scheduler",
    "param_group_table",
    "preinitialize",
    "scheduler",
    "state_bytes",
    "weight_decay_scheduler",
]
