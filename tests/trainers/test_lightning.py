"""Schedules in real runs of Lightning's Trainer, which note what each step of the optimizer was run with.

As a program: `resume FOLDER` goes on from a checkpoint, and under torchrun `FOLDER` checks two ranks.
"""

from __future__ import annotations

import csv
import re
import sys
import warnings
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner

import optim
from tests.docs.tables import DOCS
from tests.torchrun import ROOT, Report, launch, python_output
from tests.trainers.batches import BATCHES, COSINE, DECAY, LR, TOKENS, WEIGHT_DECAY, batch, expected
from timesched import Clock, CosineAnnealingScheduler, LinearScheduler, WarmupStableDecayScheduler
from timesched.integrations.lightning import Binding, count_tensors, schedule

# Lightning's own: deprecations in torch that it meets, and advice to its users.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning:lightning") for kind in ("Deprecation", "Future", "User")
]


class Loader:
    """A data loader that can be resumed within an epoch."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.at = rank, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Any:
        start, self.at = self.at, 0
        for k in range(start, BATCHES):
            self.at = (k + 1) % BATCHES
            yield {"weight": torch.tensor(0.5), "input_ids": batch(k, self.rank)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Model(LightningModule):
    """A small model that notes the learning rate and the weight decay of each step."""

    def __init__(self, *entries: Any, lr: float = LR, **options: Any) -> None:
        super().__init__()
        self.entries = entries or (COSINE, Binding(DECAY, "weight_decay"))
        self.options = options if entries else {"max_duration": TOKENS}
        self.lr = lr
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
        self.used: list[tuple[float, float]] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(batch["input_ids"]).square().mean()

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        (group,) = optimizer.param_groups
        self.used.append((group["lr"], group["weight_decay"]))
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_optimizers(self) -> Any:
        optimizer = optim.AdamW(self.parameters(), lr=self.lr, weight_decay=WEIGHT_DECAY)
        made = schedule(self, optimizer, *self.entries, **self.options)
        self.clock = made["lr_scheduler"]["scheduler"].clock
        return made


def trainer(folder: Path, **options: Any) -> Trainer:
    usual = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    usual |= {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder}
    return Trainer(**usual | options)


def outcome(model: Model) -> dict[str, Any]:
    """What two runs that are the same have in common."""
    state = model.optimizers().optimizer.state_dict()["state"]
    counts = {name: count for name, count in model.clock.state_dict().items() if not name.endswith("wct")}
    return {"used": model.used, "parameters": model.state_dict(), "state": state, "counts": counts}


class Saving(Callback):
    """Saves in the middle of an epoch."""

    def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
        if (trainer.current_epoch, batch_idx) == (1, 3):
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")


@pytest.mark.parametrize("accumulate", [1, 5])
def test_each_step_runs_with_the_values_of_its_moment(accumulate, tmp_path):
    model, more = Model(), {"gradient_clip_val": 0.5, "precision": "bf16-mixed"} if accumulate > 1 else {}
    trainer(tmp_path, accumulate_grad_batches=accumulate, **more).fit(model, Loader())
    assert model.used == expected(accumulate, epochs=2)
    assert (model.clock.timestamp.epoch, model.clock.timestamp.sample) == (2, 2 * (3 * BATCHES - 2))


def test_resumed_in_a_fresh_process_in_the_middle_of_an_epoch(tmp_path):
    whole = Model()
    trainer(tmp_path, accumulate_grad_batches=2, callbacks=[Saving()]).fit(whole, Loader())
    assert whole.used == expected(2, epochs=2)
    python_output(__file__, "resume", tmp_path)
    resumed, wanted = torch.load(tmp_path / "resumed.pt"), outcome(whole)
    torch.testing.assert_close(resumed.pop("used"), wanted.pop("used")[8:], rtol=0, atol=0)
    torch.testing.assert_close(resumed, wanted, rtol=0, atol=0)


def test_two_ranks_with_batches_of_their_own(tmp_path):
    found, said = launch(Path(__file__), 2, tmp_path, 120)
    assert found.get("values") == "", found or said


def test_the_length_is_the_trainers_and_the_monitor_logs_what_is_used(tmp_path):
    monitor, cosine, line = LearningRateMonitor(log_weight_decay=True), CosineAnnealingScheduler(), LinearScheduler
    model = Model(cosine, Binding(line(t_max="0.5ep"), "weight_decay"))
    options = {"callbacks": [monitor], "logger": CSVLogger(tmp_path), "log_every_n_steps": 1, "max_steps": 15}
    trainer(tmp_path, **options).fit(model, Loader())
    run = Clock("15ba", batches_per_epoch=BATCHES)
    assert model.clock.max_duration == "15ba"
    values = [(0.1 * cosine.at(f"{k}ba", run), 0.3 * line(t_max="0.5ep").at(f"{k}ba", run)) for k in range(15)]
    assert model.used == values
    assert monitor.lrs == {"lr-AdamW": [lr for lr, _ in model.used]}
    assert monitor.last_weight_decay_values == {"lr-AdamW-weight_decay": 0.0}


@pytest.mark.parametrize("log", [True, False])
def test_each_logged_batch_has_the_values_that_it_ran_with(tmp_path, log):
    entries = CosineAnnealingScheduler(), Binding(LinearScheduler(), "weight_decay")
    model, logger = Model(*entries, log=log), CSVLogger(tmp_path)
    trainer(tmp_path, logger=logger, log_every_n_steps=3, accumulate_grad_batches=2).fit(model, Loader())
    path = Path(logger.log_dir) / "metrics.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    assert [int(row["step"]) for row in rows] == [2, 5, 8, 11] * log
    found = [(float(row["lr"]), float(row["weight_decay"])) for row in rows]
    assert found == model.used[2::3][: len(rows)] and len(model.used) == 12


def test_epochs_of_unknown_length_are_counted(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(Loader())

    count = {"count": lambda batch: {"tokens": batch["input_ids"].count_nonzero()}}
    model = Model(LinearScheduler(t_max="4ep"), max_duration="3ep", **count)
    trainer(tmp_path, max_epochs=9).fit(model, torch.utils.data.DataLoader(Stream(), batch_size=None))
    assert [lr for lr, _ in model.used] == [0.1 * part for part in (1.0, 0.75, 0.5) for _ in range(BATCHES)]
    assert model.clock.timestamp.token == 3 * sum(int(batch(k).count_nonzero()) for k in range(BATCHES))


class TwoOptimizers(Model):
    """One optimizer steps at each batch, and one at every other; each has schedules of its own."""

    def __init__(self, **options):
        super().__init__(COSINE, **options)
        self.automatic_optimization = False
        self.stepped, self.length = (0, 1), TOKENS

    def training_step(self, batch, batch_idx):
        schedulers = self.lr_schedulers()
        self.manual_backward(super().training_step(batch, batch_idx))
        for at, optimizer in enumerate(self.optimizers()):
            if at == 0 or batch_idx % 2:
                self.used.append((at, optimizer.param_groups[0]["lr"]))
                optimizer.step()
                optimizer.zero_grad()
                if at in self.stepped:
                    schedulers[at].step()

    def configure_optimizers(self):
        first, second = (optim.SGD(part.parameters(), lr=0.1) for part in self.net)
        made = [
            schedule(self, first, COSINE, max_duration=self.length),
            schedule(self, second, LinearScheduler(), **self.options),
        ]
        self.clock, other = (each["lr_scheduler"]["scheduler"].clock for each in made)
        assert other is self.clock
        return made


@pytest.mark.filterwarnings("ignore:The Trainer has ended the run at 237tok")
def test_manual_optimization_of_two_optimizers_on_one_clock(tmp_path):
    model = TwoOptimizers()
    for _ in range(2):  # each fit begins anew
        model.used.clear()
        logger = CSVLogger(tmp_path)
        trainer(tmp_path, max_epochs=1, logger=logger, log_every_n_steps=1).fit(model, Loader())
        assert [lr for at, lr in model.used if at == 0] == [lr for lr, _ in expected(1)]
        assert model.clock.timestamp.batch == BATCHES
        tokens = [sum(batch(k).numel() for k in range(end)) for end in range(0, BATCHES, 2)]
        linear = [0.1 * LinearScheduler().at(f"{n}tok", model.clock) for n in tokens]
        assert [lr for at, lr in model.used if at == 1] == linear
        rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text().splitlines()))
        assert [float(row["lr"]) for row in rows] == [lr for at, lr in model.used if at == 0]
        assert [float(row["lr-1"]) for row in rows[1::2]] == linear


@pytest.mark.parametrize(
    ("stepped", "words"), [((0,), "Linear"), ((1,), "CosineAnnealing"), ((), "CosineAnnealing.* and Linear")]
)
def test_a_scheduler_that_manual_optimization_forgets_is_said(stepped, words, tmp_path):
    model = TwoOptimizers()
    model.stepped, model.length = stepped, "9999tok"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, max_epochs=10).fit(model, Loader())
    (text,) = [str(warning.message) for warning in caught if "was not stepped" in str(warning.message)]
    assert re.match(rf"The clock is at 101ba, and {words}", text)


def test_lr_find_leaves_no_trace_and_its_rate_is_the_initial_one(tmp_path):
    cosine, length = CosineAnnealingScheduler(), 3 * BATCHES
    model, run = Model(cosine, lr=0.05), trainer(tmp_path, max_epochs=3)
    Tuner(run).lr_find(model, Loader(), num_training=20, early_stop_threshold=None, update_attr=False)
    model.used.clear()
    model.lr = 0.2
    run.fit(model, Loader())
    assert [lr for lr, _ in model.used] == [0.2 * cosine.at(f"{k}ba", Clock(f"{length}ba")) for k in range(length)]


class OfAnotherInterval(Model):
    def configure_optimizers(self):
        made = super().configure_optimizers()
        return {**made, "lr_scheduler": made["lr_scheduler"]["scheduler"]}  # once an epoch, for Lightning


LINE, SAMPLES = LinearScheduler(), {"count": lambda batch: {"samples": 3}}
REFUSED = [
    (lambda: Model(LINE), {"max_epochs": -1}, ValueError, "max_duration=None: the Trainer trains"),
    (OfAnotherInterval, {}, ValueError, "configure_optimizers: the scheduler must"),
    (lambda: Model(LINE, count=len), {}, TypeError, r"count\(batch\)=2: it may have 'samples'"),
    (
        lambda: Model(LinearScheduler(t_max="9tok"), **SAMPLES),
        {},
        ValueError,
        r"tokens: .*'tokens': \.\.\.",
    ),
    (lambda: TwoOptimizers(ssr=2.0), {}, ValueError, r"one clock counts for all optimizers"),
    (lambda: Model(Binding(LINE, "momentum")), {}, ValueError, "momentum"),
    (lambda: Model(LINE, LINE), {}, ValueError, "created later"),
]


@pytest.mark.parametrize(("model", "options", "error", "words"), REFUSED)
def test_wrong_use_is_refused(model, options, error, words, tmp_path):
    with pytest.raises(error, match=words):
        trainer(tmp_path, **options).fit(model(), Loader())


def test_what_is_counted_in_a_batch():
    rows = torch.zeros(3, 5)
    assert count_tensors([torch.tensor(1.0), {"image": rows}]) == {"samples": 3}
    assert count_tensors({"labels": rows[:2], "input_ids": rows}) == {"samples": 3, "tokens": 15}
    assert count_tensors({"input_ids": rows.reshape(1, 15)}) == {"samples": 1, "tokens": 15}  # padding-free: one row
    assert count_tensors(["text"]) == {}


def test_the_example():
    said = python_output(ROOT / "examples" / "lightning_run.py", "--batches", "8")
    assert "Done: 2 steps of the optimizer, 100% of the run" in said


# The callback of docs/trainers/lightning.md

PAGE = (DOCS / "trainers" / "lightning.md").read_text("utf-8")
(PROGRAM,) = [code for code in re.findall("```python\n(.*?)```", PAGE, re.DOTALL) if "class SaveAtTimes" in code]
(ASKED,) = [line.strip() for line in PROGRAM.splitlines() if line.strip().startswith("if clock.")]
ACCUMULATED = [sum(batch(k + i).numel() for i in range(2)) for k in range(0, BATCHES, 2)]
TOKENS_AFTER = list(accumulate(ACCUMULATED * 2))  # each of the 12 steps of two epochs, of two microbatches each
STABLE = WarmupStableDecayScheduler("1ba", t_decay="0.3dur")


def saving(asked: str = ASKED) -> Callback:
    """The callback of the page, with another call in it."""
    names: dict[str, Any] = {"Callback": Callback, "STABLE": STABLE}
    exec(PROGRAM.partition("\n\n\n")[0].replace(ASKED, asked), names)
    return names["SaveAtTimes"]()


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.ckpt"))


def steps_that_pass(*moments: float) -> list[int]:
    """The first step that reaches each moment, in tokens."""
    return sorted({sum(count < moment for count in TOKENS_AFTER) + 1 for moment in moments})


EVENTS = [
    (ASKED, steps_that_pass(*(0.25 * k * 470 for k in range(1, 5)))),  # as on the page
    ('if clock.every("90tok"):', steps_that_pass(90, 180, 270, 360, 450)),
    ('if clock.passed("100tok") or clock.passed("1ep"):', sorted({*steps_that_pass(100), 6})),
    ('if clock.every("5ba"):', [5, 10]),
]


@pytest.mark.parametrize(("asked", "steps"), EVENTS)
def test_saves_at_times_once_and_the_same_in_a_run_that_resumes(asked, steps, tmp_path):
    options, whole, first = {"accumulate_grad_batches": 2}, Model(), tmp_path / "whole"
    trainer(first, callbacks=[saving(asked)], **options).fit(whole, Loader())
    assert saved_steps(first) == steps and len(whole.used) == 12
    for step in steps:
        folder, resumed = tmp_path / f"from {step}", Model()
        run = trainer(folder, callbacks=[saving(asked)], **options)
        run.fit(resumed, Loader(), ckpt_path=first / f"step-{step}.ckpt")
        assert saved_steps(folder) == [later for later in steps if later > step]
        assert resumed.used == whole.used[step:]
        torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_without_the_comparison_of_the_step_it_saves_for_microbatches_too(tmp_path):
    times = []

    class Asking(Callback):
        def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
            clock = trainer.lr_scheduler_configs[0].scheduler.clock
            times.extend([trainer.global_step] * clock.passed("5ba"))

    trainer(tmp_path, callbacks=[Asking()], accumulate_grad_batches=2).fit(Model(), Loader())
    assert times == [5, 5]


def test_a_branch_from_before_the_decay(tmp_path):
    """The decay begins at 42 samples, and the seventh step ends at 40: it loads into a run that decays later."""
    options = {"accumulate_grad_batches": 2, "max_epochs": -1}
    before = 'if clock.before(dict(STABLE.marks(clock))["decay"]):'
    first = Model(STABLE, max_duration="60sp", samples_per_batch=6)
    trainer(tmp_path, callbacks=[saving(before)], **options).fit(first, Loader())
    assert saved_steps(tmp_path) == [7]
    branch = Model(STABLE, max_duration="120sp", samples_per_batch=6)
    trainer(tmp_path / "branch", **options).fit(branch, Loader(), ckpt_path=tmp_path / "step-7.ckpt")
    rates = [lr for lr, _ in branch.used]
    assert rates[:7] == [LR] * 7 and rates[-1] < LR


# In processes of their own


def resume(folder: Path) -> None:
    model = Model()
    trainer(folder, accumulate_grad_batches=2).fit(model, Loader(), ckpt_path=folder / "middle.ckpt")
    torch.save(outcome(model), folder / "resumed.pt")


def values_are_those_of_the_sum(folder: Path) -> None:
    model = Model()
    options = {"devices": 2, "strategy": "ddp", "accumulate_grad_batches": 5, "use_distributed_sampler": False}
    run = trainer(folder, **options, callbacks=[saving('if clock.every("200tok"):')])
    run.fit(model, Loader(run.global_rank))
    assert model.used == expected(5, epochs=2, ranks=2)
    ends = list(accumulate(sum(batch(k, r).numel() for r in range(2)) for k in range(BATCHES)))
    steps = [ends[k] for k in (4, 9, 11)]  # of the first epoch, in which the run ends
    assert saved_steps(folder) == [1 + sum(end < 200 * i for end in steps) for i in (1, 2)]


def ranks(folder: Path) -> None:
    dist.init_process_group("gloo")
    Report(folder).check("values", lambda: values_are_those_of_the_sum(folder))


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    resume(Path(sys.argv[2])) if sys.argv[1] == "resume" else ranks(Path(sys.argv[1]))
