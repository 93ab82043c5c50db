"""The plugins for axolotl and ms-swift, in runs of the real Trainer of transformers.

Neither framework installs here. stand_ins.py stands for the parts that the plugins use, and `make_axolotl_trainer` and
`SwiftTrainer` restate how axolotl 0.21 and ms-swift 4.6 call them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import Trainer, TrainingArguments

from tests.docs.tables import page_yaml
from tests.torchrun import run_python
from tests.trainers import stand_ins
from tests.trainers.rows.transformers import make_trainer
from tests.trainers.runs import LR, UNEVEN, Run, Task, plain_loop
from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
from timesched.integrations.axolotl import ScheduleArgs, SchedulePlugin
from timesched.integrations.common import Binding
from timesched.integrations.swift import ScheduleCallback, optimizers_map

SECTION = {
    "schedules": [
        "CosineAnnealingWithWarmup('0.2dur', alpha_f=0.1)",
        {"schedule": "Linear(alpha_f=0.25)", "key": "weight_decay"},
        {"schedule": "[Linear(alpha_f=0.9), Constant()]", "key": "betas[0]", "tags": None},
    ],
    "max_duration": "50sp",
}
ENTRIES = (
    CosineAnnealingWithWarmupScheduler("0.2dur", alpha_f=0.1),
    Binding(LinearScheduler(alpha_f=0.25), "weight_decay"),
    Binding(LinearScheduler(alpha_f=0.9), "betas[0]"),
)
TASK = Task(ENTRIES, "50sp", accumulate=3, epochs=3, counts_tokens=False)


class Config(dict[str, Any]):
    """The config of axolotl, in which a missing key is None."""

    def __missing__(self, key: str) -> None:
        return None


class SwiftTrainer(Trainer):
    """The order of the calls in ms-swift: the callback is made before the Trainer, and a resumed run skips batches."""

    def __init__(self, model: Any, args: TrainingArguments, **options: Any) -> None:
        self.skipped: list[int] = []
        self.optimizer_callback = optimizers_map["timesched"](args, self)
        super().__init__(model, args, **options)

    def get_train_dataloader(self, skip_batches: int = 0) -> Any:
        self.skipped.append(skip_batches)
        return super().get_train_dataloader()


def make_axolotl_trainer(folder: Path, section: Any, task: Task = TASK, **options: Any) -> Trainer:
    trainer = make_trainer(folder, task, **options)
    SchedulePlugin().post_trainer_create(Config(timesched=section, learning_rate=LR), trainer)
    return trainer


def make_swift_trainer(folder: Path, section: Any, task: Task = TASK, **options: Any) -> Trainer:
    return make_trainer(folder, task, kind=SwiftTrainer, lr_scheduler_kwargs=section, **options)


FRAMEWORKS = {"axolotl": make_axolotl_trainer, "swift": make_swift_trainer}
PATHS = {"axolotl": "timesched", "swift": "lr_scheduler_kwargs"}
both = pytest.mark.parametrize("framework", FRAMEWORKS)


def train(trainer: Trainer, checkpoint: Path | None = None) -> Run:
    """What a Trainer has done."""
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    run: Run = trainer.model.run
    return run.end(trainer.lr_scheduler.clock, trainer.lr_scheduler.average)


@both
@pytest.mark.parametrize("microbatch", [2, 3])
def test_the_trainer_writes_the_values_of_a_plain_loop(framework: str, microbatch: int, tmp_path: Path) -> None:
    task = replace(TASK, batch_size=microbatch)
    run, plain = train(FRAMEWORKS[framework](tmp_path, SECTION, task)), plain_loop(UNEVEN, task)
    assert run.values == plain.values and len(run.values) > 5
    assert run.counts["sample"] == plain.counts["sample"]


@both
@pytest.mark.parametrize("microbatch", [2, 3])
def test_a_run_that_stops_at_half_and_resumes(framework: str, microbatch: int, tmp_path: Path) -> None:
    """To the bit, in the middle of an epoch, with an average of the weights."""
    section = {**SECTION, "average": {"half_life": "10sp"}, "evaluate_averaged": True}
    task = replace(TASK, batch_size=microbatch, save_after=[3])
    make, options = FRAMEWORKS[framework], {"train_sampling_strategy": "random"}
    whole = train(make(tmp_path, section, task, **options))
    rest = train(make(tmp_path, section, replace(task, save_after=()), **options), tmp_path / "checkpoint-3")
    assert rest.values == whole.values[3:] != [] and rest.counts == whole.counts
    torch.testing.assert_close((rest.after, rest.average), (whole.after[3:], whole.average), rtol=0, atol=0)


def test_options_of_a_section_are_those_of_schedule(tmp_path: Path) -> None:
    section = {"schedules": ["Linear()"], "max_duration": "600tok", "tokens_per_sample": 6, "ssr": 0.5, "log": False}
    trainer = make_axolotl_trainer(tmp_path, {**section, "on_change": "new", "average": None})
    trainer.train()
    schedulers = trainer.lr_scheduler
    assert str(schedulers.clock.max_duration) == "300tok" and schedulers.on_change == "new"
    assert schedulers.average is None and not any("lr/" in key or key == "lr" for key in trainer.state.log_history[0])


def test_the_key_of_axolotl() -> None:
    """Its plugins are loaded in every run, and change nothing without their section."""
    name = SchedulePlugin().get_input_args()
    assert name == "timesched.integrations.axolotl.ScheduleArgs" and ScheduleArgs().timesched is None
    assert ScheduleArgs(timesched=SECTION).timesched == SECTION
    SchedulePlugin().post_trainer_create(Config(learning_rate=1.0), trainer=None)


def test_the_name_of_swift() -> None:
    assert optimizers_map == {"timesched": ScheduleCallback}


def test_the_configs_of_the_page(tmp_path: Path) -> None:
    axolotl, swift = (yaml.safe_load(page_yaml("by_config.md", f"# {name}")) for name in ("axolotl", "ms-swift"))
    kwargs = swift["lr_scheduler_kwargs"]
    assert swift["optimizer"] in optimizers_map and axolotl["timesched"] == kwargs
    assert axolotl["lr_scheduler"] == swift["lr_scheduler_type"] == TrainingArguments(str(tmp_path)).lr_scheduler_type
    for section in (axolotl["timesched"], {**kwargs, "average": {"half_life": "20000sp"}}):
        trainer = make_swift_trainer(tmp_path, {**section, "max_duration": "12sp"})
        trainer.train()
        assert [each.key for each in trainer.lr_scheduler.bound] == ["lr", "weight_decay"]


def test_a_data_loader_of_swift_skips_batches(tmp_path: Path) -> None:
    trainer = make_swift_trainer(tmp_path, {"schedules": ["Linear()"], "max_duration": "12sp"})
    trainer.train()
    trainer.get_train_dataloader(skip_batches=2)
    assert trainer.skipped == [0, 2]


WRONG = [
    ([], TypeError, "PATH=[]: this is not a mapping. Write one with schedules, max_duration"),
    ({}, TypeError, "PATH.schedules=None: this is not a list of schedules. Write ["),
    ({"schedules": "Linear"}, TypeError, "PATH.schedules='Linear': this is not a list of schedules."),
    ({"schedules": ["Linear", 3]}, TypeError, "PATH.schedules[1]=3: this is not a mapping. Write one with schedule, "),
    ({"schedules": [{"key": "lr"}]}, TypeError, "PATH.schedules[0].schedule=None: this is not a string. Write a sch"),
    ({"schedules": [{"schedul": "Linear"}]}, ValueError, "PATH.schedules[0] has no key 'schedul': did you mean 'sch"),
    ({"schedules": ["Linear", "Linaer"]}, ValueError, "PATH.schedules[1]: there is no schedule 'Linaer': "),
    ({"schedules": ["CosineDecayLR"]}, ValueError, "PATH.schedules[0]: 'CosineDecayLR' is not a schedule, but a sch"),
    ({"schedules": ["Linear(t_mx='1ba')"]}, TypeError, "PATH.schedules[0]: LinearScheduler has no argument 't_mx'"),
    ({"schedules": ["Linear(t_max='1kba')"]}, ValueError, "PATH.schedules[0]: LinearScheduler.t_max: '1kba' is not"),
    ({"schedules": ["Linear(open('x'))"]}, ValueError, "PATH.schedules[0]: there is no schedule 'open'"),
    ({"schedules": [{"schedule": "Linear", "key": "lrr"}]}, ValueError, "PATH.schedules[0]: key='lrr': param"),
    ({"schedules": ["Linear"], "max_duraton": "1ba"}, ValueError, "PATH has no key 'max_duraton': did you mean 'max_"),
    ({"schedules": ["Linear"], "ssr": 0.5}, ValueError, "PATH: schedule.ssr=0.5: it scales max_duration, which is No"),
    ({"schedules": ["Linear"], "average": {"half": 3}}, ValueError, "PATH.average has no key 'half': did you mean 'h"),
    ({"schedules": ["Linear"], "average": {"half_life": "x"}}, ValueError, "PATH.average: "),
    ({"schedules": ["Linear"], "evaluate_averaged": True}, ValueError, "PATH: evaluate_averaged=True: there is no av"),
    ({"schedules": ["Linear", "Rex"]}, ValueError, "Rex"),  # two of one key, when training begins
]


@both
@pytest.mark.parametrize(("section", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_section_is_named(
    framework: str, section: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        FRAMEWORKS[framework](tmp_path, section).train()
    assert message.replace("PATH", PATHS[framework]) in str(raised.value)


def test_a_module_that_hides_optim_is_named_where_an_average_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "optim.py"
    path.write_text("raise SystemExit(5)")
    section = {"schedules": ["Linear"], "average": {}}
    call = f"SchedulePlugin().post_trainer_create({{'timesched': {section}}}, None)"
    parts = Path(stand_ins.__file__).read_text()
    (tmp_path / "try_it.py").write_text(f"{parts}\nfrom timesched.integrations.axolotl import *\n{call}\n")
    done = run_python("try_it.py", cwd=tmp_path)
    assert f"ImportError: {path} hides the package optim of torch-timesched. Rename it" in done.stderr
