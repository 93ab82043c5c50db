"""A run that stops early or is made longer, and counts given as tensors."""

import pytest
import torch

from timesched import Clock, LinearScheduler, TimeError, bind


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def test_stop_at_ends_the_run_and_leaves_the_schedule():
    clock = Clock("10ba", stop_at="0.3dur")
    scheduler = bind(LinearScheduler(), optimizer(), clock)
    while not clock.done:
        clock.tick()
        scheduler.step()
    assert clock.timestamp.batch == 3 and scheduler.get_last_lr() == [0.7]


def test_stop_at_is_not_stretched():
    clock = Clock("10ba", ssr=0.5, stop_at="3ba")
    clock.tick(), clock.tick()
    assert not clock.done
    clock.tick()
    assert clock.done


@pytest.mark.parametrize("stop_at", ["-1ba", "-0.5dur"])
def test_a_run_does_not_stop_before_it_begins(stop_at):
    with pytest.raises(ValueError, match=f"stop_at='{stop_at}' is negative"):
        Clock("10ba", stop_at=stop_at)


def test_extend_writes_the_value_on_the_longer_run():
    clock = Clock("10ba")
    scheduler = bind(LinearScheduler(), optimizer(), clock)
    for _ in range(10):
        clock.tick()
        scheduler.step()
    assert clock.done and scheduler.get_last_lr() == [0.0]
    clock.extend("20ba")
    assert not clock.done and scheduler.get_last_lr() == [0.5] and clock.fraction == 0.5
    clock.tick()
    scheduler.step()
    assert scheduler.get_last_lr() == [LinearScheduler().at("11ba", clock)]


def test_extend_keeps_rates_and_ratio_and_takes_any_unit_that_converts():
    clock = Clock("2ep", batches_per_epoch=10, ssr=0.5)
    clock.extend("50ba")
    assert str(clock.max_duration) == "25ba" and clock.ssr == 0.5 and clock.dataloader_len == 10


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("10ba", "cannot be extended to 10ba"),
        ("9ba", "cannot be extended"),
        ("3ep", "batches_per_epoch"),
        ("2dur", "fraction of itself"),
        (None, "None"),
    ],
)
def test_extend_refuses(length, words):
    clock = Clock("10ba")
    with pytest.raises((ValueError, TypeError), match=words):
        clock.extend(length)
    assert str(clock.max_duration) == "10ba"


def test_extend_changes_nothing_where_a_scheduler_cannot_follow():
    def ten_batches(state):
        if state.max_duration != "10ba":
            raise ValueError("ten batches, no more")
        return 1.0

    clock, schedules = Clock("10ba"), (LinearScheduler(), ten_batches)
    first, _second = [bind(schedule, optimizer(), clock) for schedule in schedules]
    with pytest.raises(ValueError, match="no more"):
        clock.extend("20ba")
    assert str(clock.max_duration) == "10ba" and first.get_last_lr() == [1.0]


def test_a_tensor_of_a_whole_number_is_a_count():
    clock = Clock("100sp")
    clock.tick(samples=torch.tensor(7), tokens=torch.tensor(56.0))
    assert (clock.timestamp.sample, clock.timestamp.token) == (7, 56)
    for bad in (torch.tensor(1.5), torch.tensor(-1), torch.tensor([1, 2]), torch.tensor(True)):
        with pytest.raises(TypeError if bad.dim() else (TimeError, TypeError)):
            clock.tick(samples=bad)
    assert clock.timestamp.sample == 7


def test_a_process_group_needs_torch_distributed():
    with pytest.raises(ValueError, match="init_process_group"):
        Clock("10ba", process_group=True)
