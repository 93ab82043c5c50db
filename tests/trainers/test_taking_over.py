"""A run that began without these schedules goes on with them: `on_change="new"` takes its counts from the trainer."""

import pytest

from tests.trainers.test_transformers import COUNT, new_trainer, run
from timesched import CosineAnnealingScheduler, LinearScheduler
from timesched.integrations.transformers import Binding

ENTRIES = (LinearScheduler(), Binding(CosineAnnealingScheduler(), "weight_decay"))
SAVED = {**COUNT, "save_strategy": "steps", "save_steps": 6}


def test_a_run_of_the_trainers_own_scheduler(tmp_path):
    """Its checkpoint has the state of another scheduler, or none."""
    new_trainer(tmp_path, **SAVED).train()
    checkpoint = tmp_path / "checkpoint-6"
    for left in ("", "scheduler.pt"):
        if left:
            (checkpoint / left).unlink()
        with pytest.raises(ValueError, match='on_change="new"'):
            run(tmp_path, *ENTRIES, resume=checkpoint, **COUNT)
        trainer = run(tmp_path, *ENTRIES, resume=checkpoint, on_change="new", **COUNT)
        assert [row["lr"][0] for row in trainer.recorder.rows] == [0.01 * (1 - i / 12) for i in range(6, 12)]
        stamp = trainer.lr_scheduler.clock.timestamp
        assert (stamp.batch, stamp.epoch, stamp.sample) == (12, 3, 63)
        assert stamp.token == trainer.state.num_input_tokens_seen


def test_another_number_of_entries(tmp_path):
    """Each goes on from the state of its key, and what is new begins at the clock."""
    run(tmp_path, ENTRIES[0], **SAVED)
    with pytest.raises(ValueError, match="holds 1 schedules, and here are 2"):
        run(tmp_path, *ENTRIES, resume=tmp_path / "checkpoint-6", **COUNT)
    trainer = run(tmp_path, *ENTRIES, resume=tmp_path / "checkpoint-6", on_change="new", **COUNT)
    rows = trainer.recorder.rows
    assert [row["lr"][0] for row in rows] == [0.01 * (1 - i / 12) for i in range(6, 12)]
    assert rows[0]["weight_decay"] == [0.1 * 0.5, 0.0] and trainer.lr_scheduler.clock.timestamp.batch == 12
