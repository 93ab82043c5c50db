"""What schedules are called in transformers, and the same here: the calls are those of docs/choosing.md.

They are for a warmup of 10 batches, and a decay of 20.
"""

_WSD = 'WarmupStableDecayScheduler("10ba", t_decay="20ba", decay="cosine")'
_INVERSE_ROOT = 'InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="0ba")'
_LOWEST = 'CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)'
_RESTARTS = (
    'SequenceScheduler([LinearScheduler(0.0, 1.0, "10ba"), CosineAnnealingWarmRestartsScheduler("30ba")], ["10ba"])'
)

PEERS = {
    "constant_with_warmup": 'ConstantWithWarmupScheduler("10ba")',
    "cosine_with_min_lr": _LOWEST,
    "cosine_with_restarts": _RESTARTS,
    "get_constant_schedule": "ConstantScheduler()",
    "get_constant_schedule_with_warmup": 'ConstantWithWarmupScheduler("10ba")',
    "get_cosine_schedule_with_warmup": 'CosineAnnealingWithWarmupScheduler("10ba")',
    "get_cosine_with_hard_restarts_schedule_with_warmup": _RESTARTS,
    "get_cosine_with_min_lr_schedule_with_warmup": _LOWEST,
    "get_inverse_sqrt_schedule": _INVERSE_ROOT,
    "get_linear_schedule_with_warmup": 'LinearWithWarmupScheduler("10ba")',
    "get_polynomial_decay_schedule_with_warmup": 'PolynomialWithWarmupScheduler("10ba", power=2.0, alpha_f=0.1)',
    "get_wsd_schedule": _WSD,
    "inverse_sqrt": _INVERSE_ROOT,
    "noam": _INVERSE_ROOT,  # of the first transformer
    "warmup_stable_decay": _WSD,
}
