"""The clock follows Lightning's epochs: their lengths, its place in them after a resume, and where a run ends."""

import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, ModelCheckpoint
from torch.utils.data import DataLoader

import optim
from tests.trainers import test_lightning
from tests.trainers.test_lightning import LR, Model, trainer
from timesched import LinearScheduler, LinearWithWarmupScheduler, StepScheduler

pytestmark = test_lightning.pytestmark  # what Lightning warns of itself
LINE = LinearScheduler()


def loader(length):
    return DataLoader([{"input_ids": torch.tensor([k % 10])} for k in range(length)])


class Placed(Model):
    """Notes Lightning's own place in the run before each step of the optimizer: epochs, as a fraction."""

    def __init__(self, *entries, lengths=None, **options):
        super().__init__(*entries, **options)
        self.lengths = lengths
        self.places = []
        self.microbatches = 0

    def train_dataloader(self):
        return loader(self.lengths[self.trainer.current_epoch])

    def training_step(self, batch, batch_idx):
        self.microbatches += 1
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch, batch_idx, *rest, **keywords):
        microbatches = self.trainer.accumulate_grad_batches
        steps = -(-self.trainer.num_training_batches // microbatches)
        self.places.append(epoch + min(1, batch_idx // microbatches / steps))  # at most a whole epoch
        super().optimizer_step(epoch, batch_idx, *rest, **keywords)

    @property
    def rates(self):
        return [rate for rate, _ in self.used]


class Validating(Placed):
    """Notes after how many steps it is validated."""

    def __init__(self, *entries, **options):
        super().__init__(*entries, **options)
        self.validated = []

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.trainer.global_step)


class SavingAt(Callback):
    """Saves after a microbatch of the second epoch; where there is a validation, after that."""

    def __init__(self, batch_idx):
        self.batch_idx = batch_idx

    def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
        if (trainer.current_epoch, batch_idx) == (1, self.batch_idx):
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")

    def on_validation_end(self, trainer, module):
        self.on_train_batch_end(trainer, module, None, None, trainer.fit_loop.batch_idx)


@pytest.mark.parametrize(("scheduling", "steps"), [({0: 4}, [3, 3, 3, 3]), ({0: 4, 1: 5, 3: 1}, [3, 3, 3, 12])])
@pytest.mark.parametrize("length", [None, "4ep"])
def test_accumulation_that_is_scheduled(scheduling, steps, length, tmp_path):
    model, gathers = (
        Placed(StepScheduler("1ep", gamma=0.5), max_duration=length),
        GradientAccumulationScheduler(scheduling),
    )
    trainer(tmp_path, max_epochs=4, callbacks=[gathers]).fit(model, loader(12))
    assert model.rates == [LR * 0.5**epoch for epoch in range(4) for _ in range(steps[epoch])]
    assert model.clock.done and model.clock.timestamp.batch == sum(steps) and model.clock.timestamp.epoch == 4
    assert model.clock.max_duration == (length or f"{sum(steps)}ba")


def wanted(model, epochs=3):
    """The rates of a line, by Lightning's own places."""
    return pytest.approx([LR * (1 - place / epochs) for place in model.places], rel=1e-14)


RELOADED = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3}


def test_loaders_that_are_reloaded(tmp_path):
    model = Placed(LINE, max_duration="3ep", lengths=[4, 8, 12])
    trainer(tmp_path, **RELOADED, callbacks=[SavingAt(5)]).fit(model)
    assert model.rates == wanted(model) and len(model.rates) == 24
    resumed = Placed(LINE, max_duration="3ep", lengths=[4, 8, 12])
    trainer(tmp_path, **RELOADED).fit(resumed, ckpt_path=tmp_path / "middle.ckpt")
    assert resumed.rates == model.rates[10:]
    assert resumed.clock.timestamp.batch == 24 and resumed.clock.timestamp.epoch == 3


# The loader and the accumulation of a run, those of the run that goes on from it, and the microbatches until then.
RESUMED = {
    "the same": ((12, 2), (12, 2), 4),
    "smaller batches": ((12, 1), (24, 1), 4),
    "larger batches": ((12, 1), (6, 1), 4),
    "a loader of less than that": ((12, 1), (6, 1), 9),
    "the end of an epoch": ((12, 1), (24, 1), 12),
    "less accumulation": ((12, 4), (12, 2), 4),
    "between two microbatches": ((12, 2), (12, 2), 5),
    "other loaders and accumulation": ((12, 2), (24, 3), 9),
}


@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_stands_where_lightning_stands(name, validated, tmp_path):
    (length, accumulate), (new_length, new_accumulate), done = RESUMED[name]
    options = {"max_epochs": 3, "accumulate_grad_batches": accumulate, "val_check_interval": 1}
    data = [loader(1)] if validated else []
    before = Validating(LINE, max_duration="3ep")
    trainer(tmp_path, **options, callbacks=[SavingAt(done - 1)]).fit(before, loader(length), *data)
    model, options["accumulate_grad_batches"] = Validating(LINE, max_duration="3ep"), new_accumulate
    trainer(tmp_path, **options).fit(model, loader(new_length), *data, ckpt_path=tmp_path / "middle.ckpt")
    assert model.rates == wanted(model) and len(model.rates) > 2
    stamp = model.clock.timestamp
    assert model.clock.done and stamp.epoch == 3 and stamp.batch_in_epoch == 0
    assert stamp.sample == length + done + model.microbatches  # those between two steps were saved, too


def test_scheduled_accumulation_that_is_resumed(tmp_path):
    """A schedule that converts batches to epochs, of which each has its own length."""

    def fit(*callbacks, **options):
        model = Placed(LinearWithWarmupScheduler("2ba", t_max="4ep"), max_duration="4ep")
        gathers = GradientAccumulationScheduler({0: 4, 1: 3, 3: 6})
        run = trainer(tmp_path, max_epochs=4, callbacks=[gathers, *callbacks], enable_checkpointing=True)
        run.fit(model, loader(12), **options)
        return model

    whole = fit(ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), SavingAt(5))
    assert fit(ckpt_path=tmp_path / "epoch=1.ckpt").rates == whole.rates[7:]
    resumed = fit(ckpt_path=tmp_path / "middle.ckpt")  # Lightning accumulates nothing in the rest of that epoch
    assert resumed.rates[6:] == whole.rates[7:] and resumed.clock.timestamp.epoch == 4


def test_epochs_that_are_left_early(tmp_path):
    """Lightning skips the rest of an epoch where `on_train_batch_start` returns -1."""

    class Leaving(Placed):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 6 + self.trainer.current_epoch else None

    model = Leaving(LINE, max_duration="3ep")
    trainer(tmp_path, max_epochs=3).fit(model, loader(12))
    assert model.rates == wanted(model) and len(model.rates) == 6 + 7 + 8 and model.clock.done


# Manual optimization


class Manual(Placed):
    """Steps its optimizer after every fourth microbatch, and its scheduler then or never."""

    def __init__(self, *entries, **options):
        super().__init__(*entries, **options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 4 == 3:
            self.used.append((self.optimizers().param_groups[0]["lr"], None))
            self.optimizers().step()
            self.lr_schedulers().step()


@pytest.mark.parametrize("ends", [{"max_duration": "40ba"}, {"max_duration": "40sp"}, {}])
def test_the_batches_of_manual_optimization(ends, tmp_path):
    """They are the calls of `training_step`, those after the last step of an epoch too."""
    model = Manual(LINE, **ends)
    trainer(tmp_path, max_epochs=4).fit(model, loader(10))
    assert model.rates == [LR * (1 - k / 40) for k in (0, 4, 8, 14, 18, 24, 28, 34)]  # written when it steps
    assert model.clock.timestamp.batch == 40 and model.clock.timestamp.epoch == 4


@pytest.mark.parametrize("done", [5, 10])
def test_manual_optimization_that_is_resumed(done, tmp_path):
    """In a batch, after which the clock has not counted it, and at the end of an epoch."""
    trainer(tmp_path, max_epochs=4, callbacks=[SavingAt(done - 1)]).fit(Manual(LINE, max_duration="4ep"), loader(10))
    model = Manual(LINE, max_duration="4ep")
    trainer(tmp_path, max_epochs=4).fit(model, loader(10), ckpt_path=tmp_path / "middle.ckpt")
    assert model.rates[-3:] == pytest.approx([LR * (1 - k / 40) for k in (24, 28, 34)])
    stamp = model.clock.timestamp
    assert (stamp.batch, stamp.sample, stamp.epoch, stamp.batch_in_epoch) == (40, 40, 4, 0)


class ManualWithTorch(Manual):
    """Has a scheduler of torch."""

    def configure_optimizers(self):
        optimizer = optim.AdamW(self.parameters(), lr=LR)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)]


def test_manual_optimization_after_a_run_with_a_scheduler_of_torch(tmp_path):
    """The clock begins at the microbatches that are done, not at the steps."""
    trainer(tmp_path, max_epochs=4, callbacks=[SavingAt(10 - 1)]).fit(ManualWithTorch(), loader(10))
    model = Manual(LINE, max_duration="4ep", on_change="new")
    trainer(tmp_path, max_epochs=4).fit(model, loader(10), ckpt_path=tmp_path / "middle.ckpt")
    assert model.rates[-3:] == pytest.approx([LR * (1 - k / 40) for k in (24, 28, 34)])
    assert model.clock.timestamp.batch == 40


def test_steps_of_manual_optimization_are_no_batches(tmp_path):
    with pytest.raises(ValueError, match="max_steps=40 counts the steps of all"):
        trainer(tmp_path, max_steps=40, max_epochs=-1).fit(Manual(LINE), loader(8))
    model = Manual(LINE, max_duration="160ba")
    trainer(tmp_path, max_steps=40, max_epochs=-1).fit(model, loader(8))  # nothing is warned of
    assert model.rates == [LR * (1 - k / 160) for k in range(0, 160, 4)] and model.clock.done


# Where a run ends


@pytest.mark.parametrize(
    ("length", "options", "steps"),
    [
        ("17ba", {}, 17),
        ("33sp", {"accumulate_grad_batches": 2}, 18),  # the last batch of an epoch of 15 is a single one
        ("1.5ep", {"min_epochs": 2}, 30),
        ("17ba", {"min_steps": 20}, 20),
        ("0.000001sec", {}, 1),
    ],
)
def test_the_length_that_is_given_ends_the_run(length, options, steps, tmp_path):
    """With a validation and a checkpoint of the last step, and a fit that goes on from there makes no step."""
    model, last = Validating(LINE, max_duration=length), ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, max_epochs=-1, callbacks=[last], enable_checkpointing=True, **options).fit(
        model, loader(15), loader(1)
    )
    assert len(model.used) == steps and model.validated[-1] == steps and model.clock.done
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == steps
    again = Validating(LINE, max_duration=length)
    trainer(tmp_path, max_epochs=-1, **options).fit(again, loader(15), loader(1), ckpt_path=tmp_path / "last.ckpt")
    assert again.used == []


class Stopping(Callback):
    def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
        trainer.should_stop = trainer.global_step == 5


# The length, the arguments of a Trainer of 12 batches an epoch, and what is said.
ENDS = [
    ("100ba", {}, "ended the run at 24ba, and its schedules end at 100ba"),
    ("3ep", {"max_steps": 18}, "ended the run at 1.5ep, and its schedules end at 3ep"),
    ("26sp", {}, "ended the run at 24sp, and its schedules end at 26sp"),
    ("2.05ep", {}, None),  # less than a batch is missing
    ("49sp", {"limit_train_batches": 8, "accumulate_grad_batches": 3, "max_epochs": 6}, None),
    ("100ba", {"fast_dev_run": 3}, None),
    ("100ba", {"callbacks": [Stopping()]}, None),
    ("100ba", {"max_epochs": 0}, None),
    ("100ba", {"max_time": {"seconds": 0}}, None),
    (None, {"max_steps": 18}, None),
]


@pytest.mark.parametrize(("length", "options", "words"), ENDS)
def test_a_trainer_that_ends_before_its_schedules_says_so(length, options, words, tmp_path):
    model = Placed(LINE, max_duration=length)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, **options).fit(model, loader(12))
    said = [str(each.message) for each in caught if "its schedules end" in str(each.message)]
    assert len(said) == (words is not None) and (words or "") in "".join(said)


def test_a_length_that_is_not_known_is_asked_for(tmp_path):
    with pytest.raises(ValueError) as error:
        trainer(tmp_path, **RELOADED).fit(Placed(LINE, lengths=[4, 8, 12]))
    assert str(error.value) == (
        "max_duration=None: the Trainer reloads its data loader, whose length may change. Pass a length to schedule(), "
        "such as max_duration='10000ba'."
    )
    for options in ({"reload_dataloaders_every_n_epochs": 3, "max_epochs": 3}, {"max_steps": 24, "max_epochs": -1}):
        model = Placed(LINE, lengths=[8, 8, 8])
        trainer(tmp_path, **{**RELOADED, **options}).fit(model)
        assert model.rates == [LR * (1 - k / 24) for k in range(24)]
