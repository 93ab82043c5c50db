"""A run that began without these schedules goes on with them: `on_change="new"` takes its counts from the trainer."""

import warnings

import pytest
from torch.optim.lr_scheduler import StepLR

import optim
from tests.trainers import test_lightning
from tests.trainers.batches import BATCHES, LR
from tests.trainers.test_lightning import Loader, Model, Saving, trainer
from tests.trainers.test_transformers import COUNT, new_trainer, run
from timesched import CosineAnnealingScheduler, LinearScheduler
from timesched.integrations import lightning
from timesched.integrations.transformers import Binding, schedule

pytestmark = test_lightning.pytestmark  # what Lightning warns of itself
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
        after = run(tmp_path, *ENTRIES, resume=checkpoint, on_change="new", **COUNT)
        assert [row["lr"][0] for row in after.recorder.rows] == [0.01 * (1 - i / 12) for i in range(6, 12)]
        stamp = after.lr_scheduler.clock.timestamp
        assert (stamp.batch, stamp.epoch, stamp.sample) == (12, 3, 63)
        assert stamp.token == after.state.num_input_tokens_seen


@pytest.mark.parametrize("drop", [False, True])
def test_the_samples_of_whole_epochs(drop, tmp_path):
    """The last batch of an epoch is smaller, or is left out."""
    options = {"dataloader_drop_last": drop, **COUNT}
    new_trainer(tmp_path, save_strategy="steps", save_steps=6, **options).train()
    whole = run(tmp_path, ENTRIES[0], **options)
    after = run(tmp_path, ENTRIES[0], resume=tmp_path / "checkpoint-6", on_change="new", **options)
    assert after.lr_scheduler.clock.timestamp.sample == whole.lr_scheduler.clock.timestamp.sample


def test_another_number_of_entries(tmp_path):
    """Each goes on from the state of its key, and what is new begins at the clock."""
    run(tmp_path, ENTRIES[0], **SAVED)
    with pytest.raises(ValueError, match="is of 1 schedules, and here are 2"):
        run(tmp_path, *ENTRIES, resume=tmp_path / "checkpoint-6", **COUNT)
    after = run(tmp_path, *ENTRIES, resume=tmp_path / "checkpoint-6", on_change="new", **COUNT)
    rows = after.recorder.rows
    assert [row["lr"][0] for row in rows] == [0.01 * (1 - i / 12) for i in range(6, 12)]
    assert rows[0]["weight_decay"] == [0.1 * 0.5, 0.0] and after.lr_scheduler.clock.timestamp.batch == 12


class Before(Model):
    """A model whose run has torch's scheduler, or none."""

    def configure_optimizers(self):
        optimizer = optim.AdamW(self.parameters(), lr=LR)
        if not self.options:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 3), "interval": "step"}}


@pytest.mark.parametrize("options", [{}, {"scheduler": "step"}])
def test_a_run_of_lightning_with_another_scheduler(options, tmp_path):
    before = Before(LinearScheduler(), **options)
    trainer(tmp_path, callbacks=[Saving()]).fit(before, Loader())
    checkpoint, done = tmp_path / "middle.ckpt", BATCHES + 4
    with pytest.raises(ValueError, match='on_change="new"'):
        trainer(tmp_path).fit(Model(LinearScheduler()), Loader(), ckpt_path=checkpoint)
    model = Model(LinearScheduler(), on_change="new")
    trainer(tmp_path).fit(model, Loader(), ckpt_path=checkpoint)
    assert [rate for rate, _ in model.used] == pytest.approx(
        [LR * (1 - i / (2 * BATCHES)) for i in range(done, 2 * BATCHES)], rel=1e-15
    )
    assert (model.clock.timestamp.batch, model.clock.timestamp.epoch) == (2 * BATCHES, 2)


def test_what_the_trainers_arguments_ask_for_is_not_ignored_in_silence(tmp_path):
    for options, words in (
        ({"lr_scheduler_type": "cosine", "warmup_steps": 3}, "lr_scheduler_type=.*, warmup_steps=3 has"),
        ({"warmup_steps": 5}, "warmup_steps=5 has no effect"),
    ):
        with pytest.warns(UserWarning, match=words):
            schedule(new_trainer(tmp_path, **options), LinearScheduler())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule(new_trainer(tmp_path), LinearScheduler())


def test_the_trainer_comes_first(tmp_path):
    made = new_trainer(tmp_path)
    with pytest.raises(TypeError) as error:
        schedule(LinearScheduler(), made)
    assert str(error.value) == (
        "schedule.trainer: it is of type LinearScheduler. Pass the Trainer first, and then the schedules."
    )
    optimizer = optim.AdamW(made.model.parameters())
    with pytest.raises(TypeError, match=r"schedule\(AdamW, Model, ...\): "):
        lightning.schedule(optimizer, Model(), LinearScheduler())


def test_epochs_are_those_that_the_trainer_goes_on_with(tmp_path):
    """It counts them from its steps, in their present length: 4 batches before, 11 now."""
    schedules = LinearScheduler(t_max="2ep")
    run(tmp_path, schedules, **SAVED)
    now = {"resume": tmp_path / "checkpoint-6", "gradient_accumulation_steps": 1, **COUNT}
    with pytest.raises(ValueError, match="batches_per_epoch=11: .* had 4 batches") as caught:
        run(tmp_path, schedules, **now)
    assert "value at step 6: [0.25] saved, " in str(caught.value.__cause__)
    after = run(tmp_path, schedules, on_change="new", **now)
    rates = [row["lr"][0] for row in after.recorder.rows]
    assert rates == pytest.approx([0.01 * max(0, 1 - i / 22) for i in range(6, 33)], rel=1e-14)
    assert (after.lr_scheduler.clock.timestamp.epoch, after.state.epoch) == (3, 3.0)
