"""The schedules of transformers by their names there, each with our call from docs/coming_from/hugging_face.md.

The calls are for a warmup of 10 batches in a run of 100. The names are the function's name and its
`lr_scheduler_type`. A type that is the beginning of a name in timesched is left out, such as `linear`.
"""

PEERS = {
    "ConstantScheduler()": "get_constant_schedule",
    'ConstantWithWarmupScheduler("10ba")': "get_constant_schedule_with_warmup constant_with_warmup",
    'LinearWithWarmupScheduler("10ba")': "get_linear_schedule_with_warmup",
    'CosineAnnealingWithWarmupScheduler("10ba")': "get_cosine_schedule_with_warmup",
    'CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)': (
        "get_cosine_with_min_lr_schedule_with_warmup cosine_with_min_lr"
    ),
    'PolynomialWithWarmupScheduler("10ba", power=2.0, alpha_f=0.1)': "get_polynomial_decay_schedule_with_warmup",
    'InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="0ba")': (
        "get_inverse_sqrt_schedule inverse_sqrt noam"
    ),
    'WarmupStableDecayScheduler("10ba", t_decay="20ba", decay="cosine")': "get_wsd_schedule warmup_stable_decay",
    'SequenceScheduler([LinearScheduler(0.0, 1.0, "10ba"), CosineAnnealingWarmRestartsScheduler("30ba")], ["10ba"])': (
        "get_cosine_with_hard_restarts_schedule_with_warmup cosine_with_restarts"
    ),
}
