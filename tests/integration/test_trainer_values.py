"""The real Trainer's learning rates against numbers worked out by hand.

Batch k runs with the value of the time at which batch k - 1 began, as Composer steps its schedulers before it counts
the batch; batches 0 and 1 both run with the value at 0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import timesched
from tests.integration.training import BASE_LR, Record, data, make_trainer, streamed


def multipliers(max_duration: Any, schedule: Any, ratio: float = 1.0, **options: Any) -> list[float]:
    """What the learning rate of each batch of a run was multiplied by."""
    settings = {"max_duration": max_duration, "schedulers": schedule, "scale_schedule_ratio": ratio}
    trainer, record = make_trainer(**settings, **options)
    trainer.fit()
    trainer.close()
    return factors(record)


def factors(record: Record) -> list[float]:
    return [lr / BASE_LR for lr in record.of("lr")]


def near(numbers: list[float]) -> Any:
    return pytest.approx(numbers, rel=0, abs=1e-15)


def test_batches() -> None:
    schedule = timesched.LinearWithWarmupScheduler("4ba", t_max="12ba")
    expected = [0, 0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25]
    assert multipliers("12ba", schedule) == near(expected)


def test_epochs_at_half_length() -> None:
    """One epoch of eight batches is left of two."""
    eighths = [1.0, 0.9619397662556434, 0.8535533905932737, 0.6913417161825449, 0.5, 0.3086582838174551]
    expected = [1.0, *eighths, 0.14644660940672627]
    assert multipliers("2ep", timesched.CosineAnnealingScheduler(), ratio=0.5) == near(expected)


def test_uneven_tokens() -> None:
    """The batches have 45, 103, 76, 89, 92, 85 and 43 tokens, so they begin at 0, 45, 148, 224, 313, 405 and 490."""
    expected = [1, 1, 0.91, 0.704, 0.552, 0.374, 0.19]
    assert multipliers("500tok", timesched.LinearScheduler()) == near(expected)


@pytest.mark.parametrize(
    ("ratio", "length", "scale_warmup", "expected"),
    [
        # 32sp: the batches begin at 0, 4 ... 28 and 31; the milestone is at 24sp, the warmup ends at 16sp or 8sp
        (2.0, 16, True, [0, 0, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.5]),
        (2.0, 16, False, [0, 0, 0.5, 1, 1, 1, 1, 0.5, 0.5]),
        # 8sp: the milestone is at 6sp, the warmup ends at 4sp or 8sp
        (0.5, 16, True, [0, 0]),
        # 24sp: the milestone is at 18sp, the warmup ends at 12sp or 24sp
        (0.5, 48, True, [0, 0, 1 / 3, 2 / 3, 1, 1]),
        (0.5, 48, False, [0, 0, 1 / 6, 1 / 3, 1 / 2, 2 / 3]),
    ],
)
def test_scaled_warmup_in_samples(ratio: float, length: int, scale_warmup: bool, expected: list[float]) -> None:
    schedule = timesched.MultiStepWithWarmupScheduler(
        f"{length // 2}sp", [f"{3 * length // 4}sp"], gamma=0.5, scale_warmup=scale_warmup
    )
    assert multipliers(f"{length}sp", schedule, ratio) == near(expected)


@pytest.mark.parametrize("scale_warmup", [False, True])
def test_warmup_in_dur_follows_the_run(scale_warmup: bool) -> None:
    """Eight batches are left of sixteen, and two of them are the warmup."""
    schedule = timesched.LinearWithWarmupScheduler("0.25dur", scale_warmup=scale_warmup)
    expected = [0, 0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6]
    assert multipliers("16ba", schedule, ratio=0.5) == near(expected)


def test_fit_again_moves_the_end() -> None:
    """The first batch of each fit runs with what the last one left; then the longer run counts."""
    trainer, record = make_trainer(max_duration="1ep", schedulers=timesched.LinearScheduler())
    trainer.fit()
    trainer.fit(duration="1ep")
    trainer.fit(duration="6ba")
    trainer.close()
    assert trainer.state.max_duration == "22ba"
    first = [1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8]
    second = [1 / 8, *(1 - t / 16 for t in range(8, 15))]
    third = [1 / 16, *(1 - t / 22 for t in range(16, 21))]
    assert factors(record) == near(first + second + third)


def test_fit_with_another_unit_and_ratio() -> None:
    """fit() scales the duration before it compiles, so an explicit t_max ends with the run at once."""
    trainer, record = make_trainer(max_duration="4ba", schedulers=timesched.LinearScheduler())
    trainer.fit()
    schedule = timesched.LinearWithWarmupScheduler("0.25dur", t_max="16ba", scale_warmup=True)
    trainer.fit(reset_time=True, duration="2ep", schedulers=schedule, scale_schedule_ratio=0.5)
    trainer.close()
    expected = [1, 1, 3 / 4, 2 / 4, 0, 0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6]
    assert factors(record) == near(expected)


def test_part_of_an_epoch_counts_as_the_epoch() -> None:
    """With train_subset_num_batches an epoch has five batches here."""
    schedule = timesched.ProductScheduler(
        [timesched.StepScheduler("1ep", gamma=0.5), timesched.LinearScheduler(1.0, 0.0, "2ep")]
    )
    expected = [1, 1, 0.9, 0.8, 0.7, 0.6, 0.25, 0.2, 0.15, 0.1]
    assert multipliers("2ep", schedule, train_subset_num_batches=5) == near(expected)


def test_fit_with_batches_of_another_size() -> None:
    """The length of an epoch is read anew: 8 batches in the first one, then 4 in each, so that the end is at 12."""
    trainer, record = make_trainer(max_duration="1ep", schedulers=timesched.LinearScheduler(t_max="3ep"))
    trainer.fit()
    trainer.fit(duration="2ep", train_dataloader=data(batch_size=8))
    trainer.close()
    first = [1, 1, *(1 - t / 24 for t in range(1, 7))]
    second = [1 - 7 / 24, *(1 - t / 12 for t in (8, 9, 10, 11)), 0, 0, 0]
    assert factors(record) == near(first + second)


def test_dataloader_without_a_length() -> None:
    """Times in ba and dur need no epoch; one in ep counts the epochs that are over, eight batches each."""
    linear = timesched.LinearScheduler()
    assert multipliers("10ba", linear, train_dataloader=streamed()) == near(
        [1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    )
    step = timesched.StepScheduler("1ep", gamma=0.5)
    assert multipliers("11ba", step, train_dataloader=streamed()) == [*[1.0] * 9, 0.5, 0.5]


def test_evaluation_of_another_length_changes_nothing() -> None:
    """While evaluating, the State has the other loader's length; the run's schedule does not see it."""
    schedule = timesched.LinearWithWarmupScheduler("0.5ep", t_max="2ep")
    plain = multipliers("2ep", schedule)
    between = multipliers("2ep", schedule, eval_dataloader=data(batch_size=10), eval_interval="3ba")
    assert between == plain
    assert plain[2:6] == near([0.25, 0.5, 0.75, 1.0])


def test_tensor_learning_rate_is_kept() -> None:
    """A rate that is a tensor, as a compiled step needs it, stays the same tensor."""
    model_lr = torch.tensor(BASE_LR, dtype=torch.float64)
    trainer, _ = make_trainer(max_duration="4ba", schedulers=[])
    (group,) = trainer.state.optimizers[0].param_groups
    group["lr"] = model_lr
    trainer.state.schedulers = [timesched.compile_composer_scheduler(timesched.LinearScheduler(), trainer.state)]
    trainer.fit()
    trainer.close()
    assert group["lr"] is model_lr
    assert model_lr.item() == BASE_LR * 0.25  # the value at the time the last batch began
