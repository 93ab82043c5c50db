"""Schedules in real loops of accelerate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from tests.torchrun import ROOT, launch
from timesched import LinearScheduler
from timesched.integrations.accelerate import schedule

from .accelerate_runs import Run
from .batches import BATCHES, expected

PROGRAM = Path(__file__).with_name("accelerate_runs.py")
CHECKS = (
    "values_are_those_of_the_sum",
    "a_prepared_scheduler_stays_right_though_it_is_stepped_for_each_process",
    "optimizers_follow_their_parameters_into_shards",
)


@pytest.fixture(autouse=True)
def own_state():
    """accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return launch(PROGRAM, 2, tmp_path_factory.mktemp("ranks"), 120)


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check, results):
    found, said = results
    assert found.get(check) == "", found.get(check) or said


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_step_runs_with_the_values_of_its_moment(accumulate):
    run = Run(accumulate)
    run.train(0, BATCHES)
    assert run.used == expected(accumulate)
    assert run.scheduler.clock.timestamp.batch == BATCHES // accumulate


def test_resumed_in_a_fresh_process(tmp_path):
    whole = Run()
    whole.train(0, 6)
    whole.accelerator.save_state(tmp_path / "middle")
    whole.train(6, BATCHES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, PROGRAM, "resume", tmp_path], check=True, env=environment, timeout=120)
    resumed, wanted = torch.load(tmp_path / "resumed.pt"), whole.outcome()
    assert resumed.pop("used") == wanted.pop("used")[3:]
    torch.testing.assert_close(resumed, wanted, rtol=0, atol=0)


def prepared():
    accelerator = Accelerator(cpu=True)
    return accelerator, accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))


def test_wrong_use_is_refused():
    accelerator, optimizer = prepared()
    with pytest.raises(TypeError, match=r"pass the one that accelerator.prepare\(\) returned"):
        schedule(accelerator, optimizer.optimizer, LinearScheduler(), max_duration="9ba")
    with pytest.raises(TypeError, match="There is no schedule"):
        schedule(accelerator, optimizer, max_duration="9ba")
    scheduler = schedule(accelerator, optimizer, LinearScheduler(t_max="99tok"), max_duration="9ba")
    optimizer.step()
    with pytest.raises(ValueError, match=r"counts tokens, .* call step\(tokens=...\)"):
        scheduler.step()
    assert scheduler.clock.timestamp.batch == 0 and scheduler.counts == {}
    scheduler.counts = {"samples": 3}  # of earlier microbatches
    with pytest.raises(ValueError, match="counts tokens"):
        scheduler.step(samples=4)
    scheduler.step(samples=4, tokens=9)
    assert (scheduler.clock.timestamp.sample, scheduler.clock.timestamp.token) == (7, 9) and scheduler.counts == {}
    again = accelerator.prepare(schedule(accelerator, optimizer, LinearScheduler(), max_duration="9ba"))
    with pytest.raises(ValueError, match=r"leave it out of accelerator.prepare\(\)"):
        again.step()


def test_microbatches_count_once_where_the_write_fails():
    accelerator, optimizer = prepared()
    scheduler = schedule(accelerator, optimizer, LinearScheduler(), max_duration="9ba")
    scheduler.counts = {"samples": 3}  # of earlier microbatches
    optimizer.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float("nan")})
    optimizer.step()
    with pytest.raises(ValueError, match="nan"):
        scheduler.step(samples=4)
    assert (scheduler.clock.timestamp.sample, scheduler.counts) == (7, {})


def test_on_change_says_which_schedule_of_two_runs_goes_on():
    def made(length, on_change="same"):
        accelerator, optimizer = prepared()
        return optimizer, schedule(accelerator, optimizer, LinearScheduler(), max_duration=length, on_change=on_change)

    optimizer, scheduler = made("10ba")
    optimizer.step()
    scheduler.step()
    state = scheduler.state_dict()
    with pytest.raises(ValueError, match=r"(?s)10ba.*20ba.*\[0\.9\] saved, \[0\.95\] now"):
        made("20ba")[1].load_state_dict(state)
    _, resumed = made("20ba", "new")
    resumed.load_state_dict(state)
    assert resumed.get_last_lr() == [0.1 * 0.95]


def test_the_example():
    command = [sys.executable, ROOT / "examples" / "accelerate_run.py", "--tokens", "3000tok"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, check=True, env=environment, timeout=120, capture_output=True, text=True).stdout
    assert "Done: 2 steps of the optimizer" in said
