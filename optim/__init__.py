"""Optimizers whose state all exists before the first step, so that step 0 is the same graph, memory and keys as step N.

>>> import torch
>>> weight = torch.nn.Parameter(torch.ones(3))
>>> optimizer = AdamW([weight], lr=0.1)
>>> {name: tuple(value.shape) for name, value in optimizer.state[weight].items()}
{'step': (), 'exp_avg': (3,), 'exp_avg_sq': (3,)}
"""

from . import lr_scheduler, scheduler, weight_decay_scheduler
from .algorithms.adadelta import Adadelta
from .algorithms.adafactor import Adafactor
from .algorithms.adagrad import Adagrad
from .algorithms.adam import Adam, AdamBase, AdamW
from .algorithms.adamax import Adamax
from .algorithms.asgd import ASGD
from .algorithms.lamb import Lamb
from .algorithms.lion import Lion
from .algorithms.nadam import NAdam
from .algorithms.radam import RAdam
from .algorithms.rmsprop import RMSprop
from .algorithms.rprop import Rprop
from .algorithms.sgd import SGD
from .average import WeightAverage
from .config import build, configure_lr_scheduler, configure_optimizer
from .groups import configure_param_groups, param_group_table
from .initial_state import preinitialize, state_bytes
from .loading import LoadedByName, load_by_name
from .merging import merge_coefficients, merge_weights
from .muon.muon import Muon, NorMuon
from .precision.options import Precision
from .state.optimizer import Optimizer

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
    "LoadedByName",
    "Muon",
    "NAdam",
    "NorMuon",
    "Optimizer",
    "Precision",
    "RAdam",
    "RMSprop",
    "Rprop",
    "WeightAverage",
    "build",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_param_groups",
    "load_by_name",
    "lr_scheduler",
    "merge_coefficients",
    "merge_weights",
    "param_group_table",
    "preinitialize",
    "scheduler",
    "state_bytes",
    "weight_decay_scheduler",
]
