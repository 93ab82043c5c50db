"""The real Trainer's learning rates against numbers worked out by hand.

Batch k runs with the value of the time at which batch k - 1 began, as Composer steps its schedulers before it counts
the batch; batches 0 and 1 both run with the value at 0.
"""

from __future__ import annotations

from typing import Any

import composer.optim
import pytest
import torch

import timesched
from tests.integration.training import BASE_LR, Record, Stream, data, finish, make_trainer
from timesched import (
    CosineAnnealingScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
    MultiStepWithWarmupScheduler,
    ProductScheduler,
    StepScheduler,
)


def factors(record: Record) -> Any:
    """What the learning rate of each batch was multiplied by."""
    return pytest.approx([lr / BASE_LR for lr in record.of("lr")], rel=0, abs=1e-15)


def in_samples(length: int, scale_warmup: bool) -> Any:
    """A warmup over the first half of so many samples, and a milestone after three quarters of them."""
    return MultiStepWithWarmupScheduler(
        f"{length // 2}sp", [f"{3 * length // 4}sp"], gamma=0.5, scale_warmup=scale_warmup
    )


HALF_COSINE = [0.9619397662556434, 0.8535533905932737, 0.6913417161825449, 0.5, 0.3086582838174551, 0.14644660940672627]
PART = ProductScheduler([StepScheduler("1ep", gamma=0.5), LinearScheduler(1.0, 0.0, "2ep")])
WARM = LinearWithWarmupScheduler("0.5ep", t_max="2ep")

# The length of the run before scaling, the ratio, the schedule, other options of the Trainer, and the multipliers.
RUNS: dict[str, tuple[str, float, Any, dict[str, Any], list[float]]] = {
    "batches": (
        *("12ba", 1.0, LinearWithWarmupScheduler("4ba", t_max="12ba"), {}),
        [0, 0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25],
    ),
    "an epoch of two": ("2ep", 0.5, CosineAnnealingScheduler(), {}, [1, 1, *HALF_COSINE]),
    # the batches have 45, 103, 76, 89, 92, 85 and 43 tokens, so they begin at 0, 45, 148, 224, 313, 405 and 490
    "uneven tokens": ("500tok", 1.0, LinearScheduler(), {}, [1, 1, 0.91, 0.704, 0.552, 0.374, 0.19]),
    # 32sp: the batches begin at 0, 4 ... 28 and 31; the milestone is at 24sp, the warmup ends at 16sp
    "a longer warmup": ("16sp", 2.0, in_samples(16, True), {}, [0, 0, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.5]),
    # 24sp: the milestone is at 18sp, the warmup ends at 24sp
    "a warmup as long as the run": ("48sp", 0.5, in_samples(48, False), {}, [0, 0, 1 / 6, 1 / 3, 1 / 2, 2 / 3]),
    # two of eight batches
    "a warmup in dur": (
        "16ba",
        0.5,
        LinearWithWarmupScheduler("0.25dur"),
        {},
        [0, 0, 0.5, 1, 5 / 6, 4 / 6, 0.5, 2 / 6],
    ),
    "a part of an epoch is the epoch": (
        *("2ep", 1.0, PART, {"train_subset_num_batches": 5}),
        [1, 1, 0.9, 0.8, 0.7, 0.6, 0.25, 0.2, 0.15, 0.1],
    ),
    "no length": ("5ba", 1.0, LinearScheduler(), {"train_dataloader": data(Stream())}, [1, 1, 0.8, 0.6, 0.4]),
    "epochs without a length": (
        *("11ba", 1.0, StepScheduler("1ep", gamma=0.5), {"train_dataloader": data(Stream())}),
        [*[1.0] * 9, 0.5, 0.5],
    ),
    # while evaluating, the State has the other loader's length
    "evaluations": (
        *("2ep", 1.0, WARM, {"eval_dataloader": data(batch_size=10), "eval_interval": "3ba"}),
        [0, 0, 0.25, 0.5, 0.75, 1, *(1 - k / 12 for k in range(1, 11))],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_values(name: str) -> None:
    length, ratio, schedule, options, expected = RUNS[name]
    trainer, record = make_trainer(max_duration=length, schedulers=schedule, scale_schedule_ratio=ratio, **options)
    finish(trainer, record)
    assert expected == factors(record)


def test_fit_again_moves_the_end() -> None:
    """The first batch of each fit runs with what the last one left; then the longer run counts."""
    trainer, record = make_trainer(max_duration="1ep", schedulers=LinearScheduler())
    trainer.fit()
    trainer.fit(duration="1ep")
    finish(trainer, record, duration="6ba")
    first = [1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8]
    second = [1 / 8, *(1 - t / 16 for t in range(8, 15))]
    assert first + second + [1 / 16, *(1 - t / 22 for t in range(16, 21))] == factors(record)


def test_fit_with_another_unit_and_ratio() -> None:
    """fit() scales the duration before it compiles, so an explicit t_max ends with the run at once."""
    trainer, record = make_trainer(max_duration="4ba", schedulers=LinearScheduler())
    trainer.fit()
    schedule = LinearWithWarmupScheduler("0.25dur", t_max="16ba", scale_warmup=True)
    finish(trainer, record, reset_time=True, duration="2ep", schedulers=schedule, scale_schedule_ratio=0.5)
    assert factors(record) == [1, 1, 3 / 4, 2 / 4, 0, 0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6]


def test_fit_with_batches_of_another_size() -> None:
    """The length of an epoch is read anew: 8 batches in the first one, then 4 in each, so that the end is at 12."""
    trainer, record = make_trainer(max_duration="1ep", schedulers=LinearScheduler(t_max="3ep"))
    trainer.fit()
    finish(trainer, record, duration="2ep", train_dataloader=data(batch_size=8))
    first = [1, 1, *(1 - t / 24 for t in range(1, 7))]
    assert [*first, 1 - 7 / 24, *(1 - t / 12 for t in (8, 9, 10, 11)), 0, 0, 0] == factors(record)


def test_t_max_before_the_end_of_the_run() -> None:
    """Composer compiles before it scales the duration, and its own class then refuses a t_max that ours takes."""
    for module, t_max, ratio in ((composer.optim, "16ba", 0.5), (composer.optim, "8ba", 1.0), (timesched, "8ba", 1.0)):
        short = module.LinearWithWarmupScheduler("4ba", t_max=t_max)
        with pytest.raises(ValueError, match=r"t_max .* must be greater than or equal to max_duration"):
            make_trainer(max_duration="16ba", schedulers=short, scale_schedule_ratio=ratio)
    schedule = LinearWithWarmupScheduler("2ba", t_max="16ba")
    trainer, record = make_trainer(max_duration="16ba", schedulers=schedule, scale_schedule_ratio=0.5)
    finish(trainer, record)
    assert factors(record) == [0, 0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6]


def test_plain_functions() -> None:
    """A function of the state, compiled by Composer and by us; with a ratio it needs the second argument."""

    def halves(state: Any) -> float:
        return 0.5 ** int(state.timestamp.batch)

    for compile_function in (composer.optim.compile_composer_scheduler, timesched.compile_composer_scheduler):
        trainer, record = make_trainer(max_duration="4ba")
        trainer.state.schedulers = [compile_function(halves, trainer.state)]
        with pytest.raises(ValueError, match="ratio"):
            compile_function(halves, trainer.state, 0.5)
        finish(trainer, record)
        assert factors(record) == [1, 1, 0.5, 0.25]


def test_a_tensor_learning_rate_is_kept() -> None:
    """A rate that is a tensor, as a compiled step needs it, stays the same tensor."""
    rate = torch.tensor(BASE_LR, dtype=torch.float64)
    trainer, record = make_trainer(max_duration="4ba", schedulers=[])
    (group,) = trainer.state.optimizers[0].param_groups
    group["lr"] = rate
    trainer.state.schedulers = [timesched.compile_composer_scheduler(LinearScheduler(), trainer.state)]
    finish(trainer, record)
    assert group["lr"] is rate
    assert rate.item() == BASE_LR * 0.25  # the value at the time the last batch began
