"""What only the adapter for Lightning promises, in runs of its real Trainer."""

from __future__ import annotations

import itertools
import re
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.tuner import Tuner

import optim
from tests.building import batches_of_loop
from tests.docs.tables import DOCS
from tests.torchrun import ROOT, python_output
from tests.trainers.rows.lightning import (
    DATA,
    Following,
    Loader,
    Memory,
    Module,
    make_loader,
    make_trainer,
    train,
)
from tests.trainers.runs import (
    AVERAGE,
    COSINE,
    IGNORE_LIGHTNING,
    LENGTH,
    LR,
    UNEVEN,
    Run,
    Task,
    collate,
    flat,
    make_optimizer,
    plain_loop,
)
from timesched import BatchSizeSchedule, Clock, LinearScheduler, Time, WarmupStableDecayScheduler
from timesched.integrations.lightning import count_tensors, schedule

pytestmark = IGNORE_LIGHTNING
LINE = LinearScheduler()


def test_logs(tmp_path: Path) -> None:
    """Every few steps, with the values that the step ran with, as `LearningRateMonitor` logs them."""
    monitor, memory = LearningRateMonitor(), Memory()
    options = {"callbacks": [monitor], "logger": memory, "log_every_n_steps": 3}
    run = train(tmp_path, Task((LINE,), None), **options)
    assert [row["lr/head"] for row in memory.rows if "lr/head" in row] == run.of("lr")[2::3]
    assert monitor.lrs["lr-AdamW/pg1"] == run.of("lr")[2::3]


def test_epochs_of_unknown_length_are_counted(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(Loader(3))

    module = Module(Task((LinearScheduler(t_max="4ep"),), "3ep", epochs=9), count=lambda batch: {"tokens": 5})
    run = train(tmp_path, module.task, module, torch.utils.data.DataLoader(Stream(), batch_size=None))
    assert run.of("lr") == [LR * left for left in (1.0, 0.75, 0.5) for _ in range(13)]
    assert (run.counts["epoch"], run.counts["token"]) == (3, 5 * 39)


# Manual optimization


class TwoOptimizers(Module):
    """One optimizer steps at each batch, and one at every other; each has schedules of its own."""

    def __init__(self, stepped: tuple[int, ...] = (0, 1), length: str = LENGTH, **options: Any) -> None:
        super().__init__(Task(), **options)
        self.automatic_optimization = False
        self.stepped, self.length = stepped, length
        self.used: tuple[list[float], list[float]] = [], []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        for i, optimizer in enumerate(self.optimizers()):
            if i == 0 or batch_idx % 2:
                self.used[i].append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                optimizer.zero_grad()
                if i in self.stepped:
                    self.lr_schedulers()[i].step()

    def configure_optimizers(self) -> Any:
        first, second = (torch.optim.SGD(part.parameters(), lr=LR) for part in (self.net.embedding, self.net.head))
        made = [schedule(self, first, COSINE, max_duration=self.length), schedule(self, second, LINE, **self.options)]
        self.clock, other = (config["lr_scheduler"]["scheduler"].clock for config in made)
        assert other is self.clock
        return made


@pytest.mark.filterwarnings("ignore:The Trainer has ended the run at 260tok")
def test_two_optimizers_on_one_clock(tmp_path: Path) -> None:
    module = TwoOptimizers()
    linear = plain_loop(UNEVEN, Task((LINE,))).of("lr")[:13:2]
    for _ in range(2):  # each fit begins again
        module.used, memory = ([], []), Memory()
        make_trainer(tmp_path, Task(epochs=1), logger=memory).fit(module, Loader(3))
        assert module.used == (plain_loop(UNEVEN, Task()).of("lr")[:13], linear[:6])
        assert module.clock.timestamp.batch == 13
        assert [row["lr"] for row in memory.rows] == module.used[0]
        assert [row["lr-1"] for row in memory.rows[1::2]] == linear[:6]


class SecondInTokens(TwoOptimizers):
    """The schedule of the first optimizer is in batches. Only the first batch has a count of tokens."""

    def configure_optimizers(self) -> Any:
        first, second = (torch.optim.SGD(part.parameters(), lr=LR) for part in (self.net.embedding, self.net.head))
        batches = itertools.count(1)

        def count(batch: Any) -> dict[str, int]:
            return {"samples": 3, "tokens": 9} if next(batches) == 1 else {"samples": 3}

        in_tokens = LinearScheduler(t_max="900tok")
        return [schedule(self, first, LINE, max_duration="9ba", count=count), schedule(self, second, in_tokens)]


def test_a_count_that_only_the_second_optimizer_reads(tmp_path: Path) -> None:
    module = SecondInTokens()
    with pytest.raises(ValueError, match="tokens: the run counts them, and this batch has no count"):
        make_trainer(tmp_path, Task(epochs=1)).fit(module, Loader(3))
    clock = module.lr_schedulers()[1].clock
    assert (clock.timestamp.batch, clock.timestamp.token) == (1, 9)
    assert [len(used) for used in module.used] == [2, 0]  # before a step of the second optimizer


class WithoutSchedules(TwoOptimizers):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=LR) for part in (self.net.embedding, self.net.head)]

    def lr_schedulers(self) -> Any:
        return [mock.Mock(), mock.Mock()]


def test_each_optimizer_begins_at_a_checkpoint_without_schedules(tmp_path: Path) -> None:
    """The average of the second optimizer begins with the loaded weights, too."""

    class Resumed(TwoOptimizers):
        def configure_optimizers(self) -> Any:
            first, second = WithoutSchedules.configure_optimizers(self)
            made = schedule(self, first, LINE, max_duration="26ba", on_change="new")
            return [made, schedule(self, second, LINE, on_change=self.on_change, average=average)]

        def on_train_batch_start(self, *arguments: Any) -> None:
            if not self.used[0]:
                self.weights = flat(self.net.head.parameters())
                with self.lr_schedulers()[1].average.swapped():
                    self.averaged = flat(self.net.head.parameters())

    average = partial(optim.WeightAverage, half_life="3ba")
    trainer = make_trainer(tmp_path, Task(epochs=1))
    trainer.fit(WithoutSchedules(), Loader(3))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    for on_change in ("new", "same"):
        module = Resumed()
        module.on_change = on_change
        fit = partial(make_trainer(tmp_path, Task(epochs=2)).fit, module, Loader(3), ckpt_path=tmp_path / "plain.ckpt")
        if on_change == "same":
            with pytest.raises(ValueError, match="on_change='same': the run continues after 13 batches"):
                fit()
        else:
            fit()
            assert torch.equal(module.averaged, module.weights)


@pytest.mark.parametrize(
    ("stepped", "words"), [((0,), "Linear"), ((1,), "CosineAnnealing"), ((), "CosineAnnealing.* and Linear")]
)
def test_a_scheduler_that_manual_optimization_forgets(stepped: Any, words: str, tmp_path: Path) -> None:
    module = TwoOptimizers(stepped, "9999tok")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, Task(epochs=10)).fit(module, Loader(3))
    (text,) = [str(warning.message) for warning in caught if "was not stepped" in str(warning.message)]
    assert re.match(rf"The clock is at 101ba, and {words}", text)


# Several fits, and other schedulers


def test_lr_find_leaves_no_trace(tmp_path: Path) -> None:
    module, trainer = Module(Task((LINE,), None)), make_trainer(tmp_path, Task())
    module.lr = LR
    options = {"num_training": 20, "early_stop_threshold": None, "update_attr": False}
    Tuner(trainer).lr_find(module, Loader(3), **options)
    module.net.run = Run()
    trainer.fit(module, Loader(3))
    assert module.net.run.values == plain_loop(UNEVEN, module.task).values


class OfAnotherInterval(Module):
    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        return {**made, "lr_scheduler": made["lr_scheduler"]["scheduler"]}  # once an epoch, for Lightning


def line(**options: Any) -> Module:
    return Module(Task((LINE,), options.pop("max_duration", None)), **options)


REFUSED = [
    (line, {"max_epochs": -1}, ValueError, "max_duration=None: the Trainer trains"),
    (lambda: OfAnotherInterval(Task()), {}, ValueError, "configure_optimizers: the scheduler must"),
    (lambda: line(count=len), {}, TypeError, r"count\(batch\)=1: it may have 'samples'"),
    (lambda: TwoOptimizers(ssr=2.0), {}, ValueError, "one clock counts for all optimizers"),
    (
        lambda: TwoOptimizers(length=Time(260, "tok"), max_duration=Time(1, "ep")),
        {},
        ValueError,
        "one clock counts for all",
    ),
]


@pytest.mark.parametrize(("make", "options", "error", "words"), REFUSED)
def test_refused(make: Any, options: Any, error: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        make_trainer(tmp_path, Task(), **options).fit(make(), Loader(3))


def test_the_module_comes_first() -> None:
    module = line()
    with pytest.raises(TypeError, match=r"schedule\(AdamW, Module, ...\): "):
        schedule(make_optimizer(module.net), module, LINE)


def test_counts_of_a_batch() -> None:
    rows = torch.zeros(3, 5)
    assert count_tensors([torch.tensor(1.0), {"image": rows}]) == {"samples": 3}
    assert count_tensors({"labels": rows[:2], "input_ids": rows}) == {"samples": 3, "tokens": 15}
    assert count_tensors({"input_ids": rows.reshape(1, 15)}) == {"samples": 1, "tokens": 15}  # padding-free: one row
    assert count_tensors(["text"]) == {}


# The average


EVALUATED = Task((LINE,), None, average=AVERAGE, evaluate_averaged=True, evaluate_every=4, save_after=[6])
VALIDATION = [collate(DATA[:3])]


def weights(module: Module) -> torch.Tensor:
    return flat(module.net.parameters())


@pytest.mark.parametrize("first", ["fit", "lr_find"])
def test_each_fit_evaluates_its_own_average(first: str, tmp_path: Path) -> None:
    module, trainer = Module(EVALUATED), make_trainer(tmp_path, replace(EVALUATED, epochs=1))
    loaders = Loader(3), torch.utils.data.DataLoader(DATA[:3], 3, collate_fn=collate)
    if first == "fit":
        trainer.fit(module, *loaders)
    else:
        Tuner(trainer).lr_find(module, *loaders, num_training=4, update_attr=False)
    run = module.net.run = Run()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, *loaders)
    assert len(run.values) == (13 if first == "fit" else 26)
    assert all(torch.equal(x, y) for x, y in zip(run.before[1:], run.after))
    assert torch.equal(weights(module), run.after[-1]) and not torch.equal(run.evaluated[-1], run.after[-1])


def test_a_validation_of_a_checkpoint(tmp_path: Path) -> None:
    """`trainer.validate()` runs on the weights of the checkpoint, or on those of the model; the average stays."""
    module = Module(EVALUATED)
    run = train(tmp_path, EVALUATED, module)
    validate = partial(run.trainer.validate, module, torch.utils.data.DataLoader(DATA[:3], 3, collate_fn=collate))
    validate(verbose=False)
    assert torch.equal(run.evaluated[-1], run.after[-1])
    validate(verbose=False, ckpt_path=tmp_path / "6.ckpt")
    assert torch.equal(run.evaluated[-1], run.after[5])
    with module.average.swapped():
        validate(verbose=False)
    assert torch.equal(run.evaluated[-1], run.average) and torch.equal(weights(module), run.after[5])


def test_a_checkpoint_of_a_validation_has_the_weights(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1)
    run = train(tmp_path, EVALUATED, callbacks=[saving], enable_checkpointing=True)
    for step in (4, 8):
        saved = torch.load(tmp_path / f"step={step}.ckpt", weights_only=False)
        assert torch.equal(flat(saved["state_dict"].values()), run.after[step - 1])


class Failing(Module):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        raise KeyError("in a validation")


def test_the_weights_are_back_after_an_error(tmp_path: Path) -> None:
    module = Failing(EVALUATED)
    with pytest.raises(KeyError, match="in a validation"):
        train(tmp_path, EVALUATED, module)
    assert torch.equal(weights(module), module.net.run.after[3])
    assert not torch.equal(module.net.run.evaluated[0], weights(module))


# Batches that grow


class WithLoader(Module):
    def train_dataloader(self) -> Any:
        return make_loader(self, num_workers=2)


class SavingEpoch(Callback):
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / f"{trainer.global_step}.ckpt")


def test_a_loader_of_the_module_with_workers(tmp_path: Path) -> None:
    """It is resumed within an epoch, and after it."""
    sizes = BatchSizeSchedule("0sp:2 10sp:4 40sp:8")
    task = Task((LINE,), "80sp", sizes=sizes, save_after=[4])
    batches = batches_of_loop(range(37), sizes, Clock("80sp"))
    assert sum(map(len, batches[:12])) == 37  # the first epoch
    for done in (0, 4, 12):
        module = WithLoader(task)
        trainer = make_trainer(tmp_path, task, callbacks=[Following(tmp_path, task), SavingEpoch()])
        trainer.fit(module, ckpt_path=tmp_path / f"{done}.ckpt" if done else None)
        assert module.net.run.seen == batches[done:]


# The callback of docs/trainers/lightning.md

PAGE = (DOCS / "trainers" / "lightning.md").read_text("utf-8")
(PROGRAM,) = [code for code in re.findall("```python\n(.*?)```", PAGE, re.DOTALL) if "class SaveAtTimes" in code]
(ASKED,) = [line.strip() for line in PROGRAM.splitlines() if line.strip().startswith("if clock.")]
STABLE = WarmupStableDecayScheduler("1ba", t_decay="0.3dur")


def saving(asked: str = ASKED) -> Callback:
    """The callback of the page, with another call in it."""
    names: dict[str, Any] = {"Callback": Callback, "STABLE": STABLE}
    exec(PROGRAM.partition("\n\n\n")[0].replace(ASKED, asked), names)
    return names["SaveAtTimes"]()


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.ckpt"))


def test_the_callback_saves_at_times(tmp_path: Path) -> None:
    """Once for each step, not for each microbatch, and the same in a run that resumes."""
    task = Task(accumulate=2, moment=lambda clock: clock.every("0.25dur"))
    run = train(tmp_path, task, callbacks=[saving()])
    assert saved_steps(tmp_path) == plain_loop(UNEVEN, task).moments == run.moments
    first, *later = run.moments
    module = Module(task)
    trainer = make_trainer(tmp_path / "rest", task, callbacks=[saving()])
    trainer.fit(module, Loader(3), ckpt_path=tmp_path / f"step-{first}.ckpt")
    assert saved_steps(tmp_path / "rest") == later


def test_a_branch_from_before_the_decay(tmp_path: Path) -> None:
    """The decay begins at 42 samples, and the seventh step ends at 40: it loads into a run that decays later."""
    before = 'if clock.before(dict(STABLE.marks(clock))["decay"]):'
    task = Task((STABLE,), "60sp", accumulate=2)
    train(tmp_path, task, Module(task, samples_per_batch=6), callbacks=[saving(before)])
    assert saved_steps(tmp_path) == [7]
    longer = replace(task, max_duration="120sp", epochs=4, load=(tmp_path, 7))
    (tmp_path / "step-7.ckpt").rename(tmp_path / "7.ckpt")
    rates = train(tmp_path, longer, Module(longer, samples_per_batch=6)).of("lr")
    assert rates[:7] == [LR] * 7 and rates[-1] < LR


def test_the_example() -> None:
    said = python_output(ROOT / "examples" / "lightning_run.py", "--batches", "8")
    assert "Done: 2 steps of the optimizer, 100% of the run" in said
