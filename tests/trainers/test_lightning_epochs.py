"""The clock follows Lightning's epochs: their lengths, its position in them after a resume, and where a run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, ModelCheckpoint
from torch.utils.data import DataLoader

from tests.trainers.rows.lightning import DATA, Module, WithTorch, make_trainer
from tests.trainers.runs import IGNORE_LIGHTNING, LR, Task, collate
from timesched import LinearScheduler, LinearWithWarmupScheduler, StepScheduler

pytestmark = IGNORE_LIGHTNING
LINE = LinearScheduler()


def loader(length: int) -> DataLoader[Any]:
    """One sample in each microbatch."""
    return DataLoader(DATA[:length], 1, collate_fn=collate)


class Placed(Module):
    """Notes Lightning's own position before each step, in epochs, and the steps before a validation."""

    def __init__(self, entry: Any = LINE, length: str | None = "3ep", lengths: Any = None, **options: Any) -> None:
        super().__init__(Task((entry,), length, **options))
        self.lengths = lengths
        self.positions: list[float] = []
        self.validated: list[int] = []

    def train_dataloader(self) -> Any:
        return loader(self.lengths[self.trainer.current_epoch])

    def optimizer_step(self, epoch: int, batch_idx: int, *rest: Any, **keywords: Any) -> None:
        microbatches = self.trainer.accumulate_grad_batches
        steps = -(-self.trainer.num_training_batches // microbatches)
        self.positions.append(epoch + min(1, batch_idx // microbatches / steps))  # at most a whole epoch
        super().optimizer_step(epoch, batch_idx, *rest, **keywords)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(self.trainer.global_step)

    @property
    def rates(self) -> list[float]:
        return [groups[0]["lr"] for groups in self.net.run.values]


class SavingAt(Callback):
    """Saves after a microbatch of the second epoch; if there is a validation, after it."""

    def __init__(self, microbatches: int) -> None:
        self.last = microbatches - 1

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, data: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (1, self.last):
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.on_train_batch_end(trainer, module, None, None, trainer.fit_loop.batch_idx)


def fit(folder: Path, module: Any, *loaders: Any, ckpt_path: Any = None, **options: Any) -> Any:
    """The module, after a fit of three epochs."""
    make_trainer(folder, module.task, **{"max_epochs": 3, **options}).fit(module, *loaders, ckpt_path=ckpt_path)
    return module


def line(module: Placed) -> Any:
    """The rates of a line over three epochs, by Lightning's own positions."""
    return pytest.approx([LR * (1 - position / 3) for position in module.positions], rel=1e-14)


@pytest.mark.parametrize(("scheduling", "steps"), [({0: 4}, [3, 3, 3, 3]), ({0: 4, 1: 5, 3: 1}, [3, 3, 3, 12])])
@pytest.mark.parametrize("length", ["4ep", "48sp"])
def test_accumulation_that_is_scheduled(scheduling: Any, steps: list[int], length: str, tmp_path: Path) -> None:
    module, gathers = Placed(StepScheduler("1ep", gamma=0.5), length), GradientAccumulationScheduler(scheduling)
    fit(tmp_path, module, loader(12), max_epochs=4, callbacks=[gathers])
    assert module.rates == [LR * 0.5**epoch for epoch in range(4) for _ in range(steps[epoch])]
    assert module.clock.done and module.clock.timestamp.batch == sum(steps) and module.clock.timestamp.epoch == 4


RELOADED = {"reload_dataloaders_every_n_epochs": 1}


def test_loaders_that_are_reloaded(tmp_path: Path) -> None:
    whole = fit(tmp_path, Placed(lengths=[4, 8, 12]), **RELOADED, callbacks=[SavingAt(6)])
    assert whole.rates == line(whole) and len(whole.rates) == 24
    rest = fit(tmp_path, Placed(lengths=[4, 8, 12]), **RELOADED, ckpt_path=tmp_path / "middle.ckpt")
    assert rest.rates == whole.rates[10:]
    assert rest.clock.timestamp.batch == 24 and rest.clock.timestamp.epoch == 3


def test_a_refused_checkpoint_changes_no_epochs(tmp_path: Path) -> None:
    fit(tmp_path, Placed(lengths=[4, 8, 12]), **RELOADED, callbacks=[SavingAt(6)])
    other = Placed(StepScheduler("1ep", gamma=0.5), lengths=[5, 8, 12])
    with pytest.raises(ValueError, match="different schedule"):
        fit(tmp_path, other, **RELOADED, ckpt_path=tmp_path / "middle.ckpt")
    assert other.clock.dataloader_len == 5 and other.clock.timestamp.batch == 0


# The loader and the accumulation of a run, those of the run that continues it, and the microbatches until then.
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
def test_a_resumed_run_is_where_lightning_is(name: str, validated: bool, tmp_path: Path) -> None:
    (length, accumulate), (new_length, new_accumulate), done = RESUMED[name]
    validation = [loader(1)] if validated else []
    options: dict[str, Any] = {"val_check_interval": 1, "callbacks": [SavingAt(done)]}
    fit(tmp_path, Placed(accumulate=accumulate), loader(length), *validation, **options)
    options = {"val_check_interval": 1, "ckpt_path": tmp_path / "middle.ckpt"}
    module = fit(tmp_path, Placed(accumulate=new_accumulate), loader(new_length), *validation, **options)
    assert module.rates == line(module) and len(module.rates) > 2
    stamp = module.clock.timestamp
    assert module.clock.done and stamp.epoch == 3 and stamp.batch_in_epoch == 0
    assert stamp.sample == length + done + len(module.net.run.seen)  # those between two steps were saved, too


def test_scheduled_accumulation_that_is_resumed(tmp_path: Path) -> None:
    """A schedule that converts batches to epochs, of which each has its own length."""

    def train(*callbacks: Any, **options: Any) -> Any:
        module = Placed(LinearWithWarmupScheduler("2ba", t_max="4ep"), "4ep")
        gathers = GradientAccumulationScheduler({0: 4, 1: 3, 3: 6})
        given = {"max_epochs": 4, "callbacks": [gathers, *callbacks], "enable_checkpointing": True}
        return fit(tmp_path, module, loader(12), **given, **options)

    whole = train(ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), SavingAt(6))
    assert train(ckpt_path=tmp_path / "epoch=1.ckpt").rates == whole.rates[7:]
    resumed = train(ckpt_path=tmp_path / "middle.ckpt")  # Lightning accumulates nothing in the rest of that epoch
    assert resumed.rates[6:] == whole.rates[7:] and resumed.clock.timestamp.epoch == 4


def test_epochs_that_are_left_early(tmp_path: Path) -> None:
    """Lightning skips the rest of an epoch where `on_train_batch_start` returns -1."""

    class Leaving(Placed):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 6 + self.trainer.current_epoch else None

    module = fit(tmp_path, Leaving(), loader(12))
    assert module.rates == line(module) and len(module.rates) == 6 + 7 + 8 and module.clock.done


# Manual optimization


class Manual(Placed):
    """Steps its optimizer after every fourth microbatch, and its scheduler then or never."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 4 == 3:
            self.optimizers().step()
            self.lr_schedulers().step()


@pytest.mark.parametrize("length", ["40ba", "40sp", None])
def test_the_batches_of_manual_optimization(length: str | None, tmp_path: Path) -> None:
    """They are the calls of `training_step`, those after the last step of an epoch too."""
    module = fit(tmp_path, Manual(length=length), loader(10), max_epochs=4)
    assert module.rates == [LR * (1 - k / 40) for k in (0, 4, 8, 14, 18, 24, 28, 34)]  # written when it steps
    assert module.clock.timestamp.batch == 40 and module.clock.timestamp.epoch == 4


class ManualWithTorch(Manual):
    configure_optimizers = WithTorch.configure_optimizers


@pytest.mark.parametrize(("kind", "done"), [(Manual, 5), (Manual, 10), (ManualWithTorch, 10)])
def test_manual_optimization_that_is_resumed(kind: Any, done: int, tmp_path: Path) -> None:
    """In a batch, after which the clock has not counted it, and at the end of an epoch; or with a scheduler of torch.

    The clock begins at the microbatches that are done, not at the steps.
    """
    fit(tmp_path, kind(length="4ep"), loader(10), max_epochs=4, callbacks=[SavingAt(done)])
    module = Manual(length="4ep", on_change="new" if kind is ManualWithTorch else "same")
    fit(tmp_path, module, loader(10), max_epochs=4, ckpt_path=tmp_path / "middle.ckpt")
    assert module.rates[-3:] == pytest.approx([LR * (1 - k / 40) for k in (24, 28, 34)])
    stamp = module.clock.timestamp
    assert (stamp.batch, stamp.epoch, stamp.batch_in_epoch) == (40, 4, 0)
    assert stamp.sample == 40 - 20 * (kind is ManualWithTorch)


def test_steps_of_manual_optimization_are_no_batches(tmp_path: Path) -> None:
    steps = {"max_steps": 40, "max_epochs": -1}
    with pytest.raises(ValueError, match="max_steps=40 counts the steps of all"):
        fit(tmp_path, Manual(length=None), loader(8), **steps)
    module = fit(tmp_path, Manual(length="160ba"), loader(8), **steps)  # nothing is warned of
    assert module.rates == [LR * (1 - k / 160) for k in range(0, 160, 4)] and module.clock.done


# Where a run ends


@pytest.mark.parametrize(
    ("length", "accumulate", "options", "steps"),
    [
        ("17ba", 1, {}, 17),
        ("33sp", 2, {}, 18),  # the last batch of an epoch of 15 is a single one
        ("1.5ep", 1, {"min_epochs": 2}, 30),
        ("17ba", 1, {"min_steps": 20}, 20),
        ("0.000001sec", 1, {}, 1),
    ],
)
def test_the_length_that_is_given_ends_the_run(
    length: str, accumulate: int, options: Any, steps: int, tmp_path: Path
) -> None:
    """With a validation and a checkpoint of the last step, and a fit that continues there makes no step."""
    last, options = ModelCheckpoint(tmp_path, save_last=True), {"max_epochs": -1, **options}
    module = Placed(length=length, accumulate=accumulate)
    fit(tmp_path, module, loader(15), loader(1), callbacks=[last], enable_checkpointing=True, **options)
    assert len(module.rates) == steps and module.validated[-1] == steps and module.clock.done
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == steps
    again = Placed(length=length, accumulate=accumulate)
    assert fit(tmp_path, again, loader(15), loader(1), ckpt_path=tmp_path / "last.ckpt", **options).rates == []


class Stopping(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == 5


EARLY = [
    ("100ba", {}, "ended the run at 24ba, and its schedules end at 100ba"),
    ("3ep", {"max_steps": 18}, "ended the run at 1.5ep, and its schedules end at 3ep"),
    ("26sp", {}, "ended the run at 24sp, and its schedules end at 26sp"),
]
NOT_EARLY: list[tuple[str | None, dict[str, Any]]] = [
    ("2.05ep", {}),  # less than a batch is missing
    ("49sp", {"limit_train_batches": 8, "accumulate_grad_batches": 3, "max_epochs": 6}),
    ("100ba", {"fast_dev_run": 3}),
    ("100ba", {"callbacks": [Stopping()]}),
    ("100ba", {"max_epochs": 0}),
    ("100ba", {"max_time": {"seconds": 0}}),
    (None, {"max_steps": 18}),
]


@pytest.mark.filterwarnings("ignore")  # the others of Lightning
@pytest.mark.parametrize(("length", "options", "words"), EARLY)
def test_a_trainer_that_ends_before_its_schedules_says_so(
    length: str, options: Any, words: str, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match=words):
        fit(tmp_path, Placed(length=length), loader(12), **{"max_epochs": 2, **options})


@pytest.mark.parametrize(("length", "options"), NOT_EARLY)
def test_nothing_is_said_of_another_end(length: str | None, options: Any, tmp_path: Path) -> None:
    fit(tmp_path, Placed(length=length), loader(12), **{"max_epochs": 2, **options})


def test_a_length_that_is_not_known(tmp_path: Path) -> None:
    gathers = [GradientAccumulationScheduler({0: 4})]
    for options in (RELOADED, {"callbacks": gathers}, {"callbacks": gathers, "max_steps": 24}):
        with pytest.raises(ValueError, match="reloads its data loader or has a Gradient.* in length. Pass a length"):
            fit(tmp_path, Placed(length=None, lengths=[4, 8, 12]), **options)
    for options in ({"reload_dataloaders_every_n_epochs": 3}, {"max_steps": 24, "max_epochs": -1}):
        module = fit(tmp_path, Placed(length=None, lengths=[8, 8, 8]), **{**RELOADED, **options})
        assert module.rates == [LR * (1 - k / 24) for k in range(24)]
