"""What the tests of edges and of failures share."""

import torch
from torch.nn import Parameter

from optim import lr_scheduler as lr


def sgd(*groups, **kwargs):
    groups = [{"params": [Parameter(torch.zeros(1))], **group} for group in groups or ({},)]
    return torch.optim.SGD(groups, **{"lr": 1.0, "momentum": 0.9, "weight_decay": 0.1, **kwargs})


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


class Ramp(lr.LRScheduler):
    def _get_closed_form_lr(self):
        return self.last_epoch.double() * 0.1
