"""What the gallery draws. The schedules of `timesched` are in the table of tests/laws/rows.py."""

CLOSED_FORMS = (
    "ConstantLR(optimizer, 0.1)",
    "LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=False)",
    "LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=True)",
    "PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=0.5)",
    "PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=2.0)",
    "ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=False)",
    "ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=True)",
    "InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.0, total_iters=20, decay_rate=0.5)",
    "InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.5, total_iters=20, decay_rate=0.5)",
    "InverseSquareRootDecayLR(optimizer, 0.1, scale=4.0, warmup_steps=16)",
    "CosineDecayLR(optimizer, 0.1, 0.01, total_iters=80)",
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="linear")',
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="cosine")',
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="1-sqrt")',
    "SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)], milestones=[20])",
    "PiecewiseConstantLR(optimizer, [0.1, 0.05, 0.01], milestones=[40, 80])",
    "MultiStepLR(optimizer, 0.1, gamma=0.5, milestones=[40, 60, 80])",
    "StepLR(optimizer, 0.1, step_size=25, gamma=0.5)",
    "CosineAnnealingLR(optimizer, 0.1, T_max=40)",
    "LambdaLR(optimizer, 0.1)",
    "CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=1)",
    "CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=2)",
    "MultiplicativeLR(optimizer, 0.1, coefficient=0.97)",
    "ChainedLR([LinearLR(optimizer, 0.02, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)])",
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular")',
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular2")',
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="exp_range", gamma=0.98)',
    'OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="cos", three_phase=False)',
    'OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="linear", three_phase=True)',
)
# The base class; another name of ChainedLR; and the values of another scheduler, times a number of each group.
WITHOUT_PICTURE = {"LRScheduler", "ChainedScheduler", "ScalePerParamLR"}

# The order of the galleries; a schedule that no group names comes with the decays.
GROUPS = {
    "schedules": {
        "Warmup and decay": """
            LinearWithWarmupScheduler CosineAnnealingWithWarmupScheduler PolynomialWithWarmupScheduler
            InverseSquareRootWithWarmupScheduler MultiStepWithWarmupScheduler ConstantWithWarmupScheduler
        """,
        "WSD": "WarmupStableDecayScheduler",
        "Piecewise": "PiecewiseScheduler MultiStepScheduler StepScheduler ConstantScheduler",
        "Decay": """
            LinearScheduler CosineAnnealingScheduler PolynomialScheduler ExponentialScheduler PowerScheduler
            RexScheduler
        """,
        "Cyclic": "OneCycleScheduler CyclicScheduler CosineAnnealingWarmRestartsScheduler",
        "Betas, as values": "HalfLife",
        "Made of other schedules": "WarmupScheduler CooldownScheduler SequenceScheduler ProductScheduler",
    },
    "closed_forms": {
        "WSD": "WarmupStableDecayLR",
        "Decay": """
            LinearLR CosineDecayLR CosineAnnealingLR PolynomialLR ExponentialLR MultiplicativeLR
            InverseExponentialTimeDecayLR InverseSquareRootDecayLR LambdaLR
        """,
        "Piecewise": "ConstantLR StepLR MultiStepLR PiecewiseConstantLR",
        "Cyclic": "OneCycleLR CyclicLR CosineAnnealingWarmRestarts",
        "Made of other schedulers": "SequentialLR ChainedLR",
    },
}
