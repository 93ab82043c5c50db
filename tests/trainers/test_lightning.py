"""Schedules in real runs of Lightning's Trainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner

import optim
from tests.torchrun import ROOT, launch
from timesched import Clock, CosineAnnealingScheduler, LinearScheduler
from timesched.integrations.lightning import Binding, count_tensors, schedule

from .batches import BATCHES, COSINE, TOKENS, batch, expected
from .lightning_runs import Loader, Model, outcome, trainer

PROGRAM = Path(__file__).with_name("lightning_runs.py")

# Lightning's own: deprecations in torch that it meets, and advice to its users.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]


class Saving(Callback):
    """Saves in the middle of an epoch."""

    def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
        if (trainer.current_epoch, batch_idx) == (1, 3):
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 1},
        {"accumulate_grad_batches": 5, "gradient_clip_val": 0.5},
        {"accumulate_grad_batches": 5, "gradient_clip_val": 0.5, "precision": "bf16-mixed"},
    ],
    ids=str,
)
def test_each_step_runs_with_the_values_of_its_moment(options, tmp_path):
    model = Model()
    trainer(tmp_path, **options).fit(model, Loader())
    assert model.used == expected(options["accumulate_grad_batches"], epochs=2)
    assert (model.clock.timestamp.epoch, model.clock.timestamp.sample) == (2, 2 * (3 * BATCHES - 2))


def test_resumed_in_a_fresh_process_in_the_middle_of_an_epoch(tmp_path):
    whole = Model()
    trainer(tmp_path, accumulate_grad_batches=2, callbacks=[Saving()]).fit(whole, Loader())
    assert whole.used == expected(2, epochs=2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, PROGRAM, "resume", tmp_path], check=True, env=environment, timeout=120)
    resumed = torch.load(tmp_path / "resumed.pt")
    wanted = outcome(whole)
    torch.testing.assert_close(resumed.pop("used"), wanted.pop("used")[8:], rtol=0, atol=0)
    torch.testing.assert_close(resumed, wanted, rtol=0, atol=0)


def test_two_ranks_with_batches_of_their_own(tmp_path):
    found, said = launch(PROGRAM, 2, tmp_path, 120)
    assert found.get("values") == "", found or said


def test_the_length_is_the_trainers_and_the_monitor_logs_what_is_used(tmp_path):
    monitor = LearningRateMonitor(log_weight_decay=True)
    model = Model(CosineAnnealingScheduler(), Binding(LinearScheduler(t_max="0.5ep"), "weight_decay"))
    options = {"callbacks": [monitor], "logger": CSVLogger(tmp_path), "log_every_n_steps": 1, "max_steps": 15}
    trainer(tmp_path, **options).fit(model, Loader())
    run = Clock("15ba", batches_per_epoch=BATCHES)
    assert model.clock.max_duration == "15ba"
    assert [lr for lr, _ in model.used] == [0.1 * CosineAnnealingScheduler().at(f"{k}ba", run) for k in range(15)]
    assert [wd for _, wd in model.used] == [0.3 * LinearScheduler(t_max="0.5ep").at(f"{k}ba", run) for k in range(15)]
    assert monitor.lrs == {"lr-AdamW": [lr for lr, _ in model.used]}
    assert monitor.last_weight_decay_values == {"lr-AdamW-weight_decay": 0.0}


def test_epochs_of_unknown_length_are_counted(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(Loader())

    model = Model(
        LinearScheduler(t_max="4ep"),
        max_duration="4ep",
        count=lambda batch: {"tokens": batch["input_ids"].count_nonzero()},
    )
    trainer(tmp_path, max_epochs=3).fit(model, torch.utils.data.DataLoader(Stream(), batch_size=None))
    assert [lr for lr, _ in model.used] == [0.1 * part for part in [1.0] * BATCHES + [0.75] * BATCHES + [0.5] * BATCHES]
    assert model.clock.timestamp.token == 3 * sum(int(batch(k).count_nonzero()) for k in range(BATCHES))


class TwoOptimizers(Model):
    """One optimizer steps at each batch, and one at every other; each has schedules of its own."""

    def __init__(self, **options):
        super().__init__(COSINE, **options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        schedulers = self.lr_schedulers()
        self.manual_backward(super().training_step(batch, batch_idx))
        for at, optimizer in enumerate(self.optimizers()):
            if at == 0 or batch_idx % 2:
                self.used.append((at, optimizer.param_groups[0]["lr"]))
                optimizer.step()
                optimizer.zero_grad()
                schedulers[at].step()

    def configure_optimizers(self):
        first, second = (optim.SGD(part.parameters(), lr=0.1) for part in self.net)
        made = [
            schedule(self, first, COSINE, max_duration=TOKENS),
            schedule(self, second, LinearScheduler(), **self.options),
        ]
        self.clock = made[0]["lr_scheduler"]["scheduler"].clock
        assert made[1]["lr_scheduler"]["scheduler"].clock is self.clock
        return made


def test_manual_optimization_of_two_optimizers_on_one_clock(tmp_path):
    model = TwoOptimizers()
    for _ in range(2):  # each fit begins anew
        model.used.clear()
        trainer(tmp_path, max_epochs=1).fit(model, Loader())
        lrs = [lr for lr, _ in expected(1)]
        assert [lr for at, lr in model.used if at == 0] == lrs
        assert model.clock.timestamp.batch == BATCHES
        tokens = [sum(batch(k).numel() for k in range(end)) for end in range(0, BATCHES, 2)]
        linear = [0.1 * LinearScheduler().at(f"{n}tok", model.clock) for n in tokens]
        assert [lr for at, lr in model.used if at == 1] == linear


def test_lr_find_leaves_no_trace_and_its_rate_is_the_initial_one(tmp_path):
    model = Model(CosineAnnealingScheduler(), lr=0.05)
    run = trainer(tmp_path, max_epochs=3)
    Tuner(run).lr_find(model, Loader(), num_training=20, early_stop_threshold=None, update_attr=False)
    model.used.clear()
    model.lr = 0.2
    run.fit(model, Loader())
    end = f"{3 * BATCHES}ba"
    assert [lr for lr, _ in model.used] == [
        0.2 * CosineAnnealingScheduler().at(f"{k}ba", Clock(end)) for k in range(3 * BATCHES)
    ]


class OfAnotherInterval(Model):
    def configure_optimizers(self):
        made = super().configure_optimizers()
        return {**made, "lr_scheduler": made["lr_scheduler"]["scheduler"]}  # once an epoch, for Lightning


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (lambda: Model(LinearScheduler()), {"max_epochs": -1}, ValueError, r"length is .* steps.*max_duration="),
        (OfAnotherInterval, {}, ValueError, "as it is"),
        (lambda: Model(LinearScheduler(), count=len), {}, TypeError, r"returned 2: let it return \{'samples'"),
        (
            lambda: Model(LinearScheduler(t_max="9tok"), count=lambda batch: {"samples": 3}),
            {},
            ValueError,
            r"counts tokens.*'tokens': \.\.\.",
        ),
        (lambda: TwoOptimizers(ssr=2.0), {}, ValueError, r"in the first schedule\(\) alone"),
        (lambda: Model(Binding(LinearScheduler(), "momentum")), {}, ValueError, "momentum"),
        (lambda: Model(LinearScheduler(), LinearScheduler()), {}, ValueError, "superseded"),
    ],
)
def test_wrong_use_is_refused(model, options, error, words, tmp_path):
    with pytest.raises(error, match=words):
        trainer(tmp_path, **options).fit(model(), Loader())


def test_what_is_counted_in_a_batch():
    rows = torch.zeros(3, 5)
    assert count_tensors([torch.tensor(1.0), {"image": rows}]) == {"samples": 3}
    assert count_tensors({"labels": rows[:2], "input_ids": rows}) == {"samples": 3, "tokens": 15}
    assert count_tensors(["text"]) == {}


def test_the_example():
    command = [sys.executable, ROOT / "examples" / "lightning_run.py", "--batches", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, check=True, env=environment, timeout=120, capture_output=True, text=True).stdout
    assert "Done: 2 steps of the optimizer, 100% of the run" in said
