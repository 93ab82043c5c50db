"""The call for Hugging Face in README.md, in a run of the real Trainer."""

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import timesched
from tests.docs.tables import readme_code
from timesched.integrations.transformers import schedule

LR = 0.01


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids):
        return {"loss": (self.weight * input_ids.double().mean()).square().sum()}


class Rates(TrainerCallback):
    """The learning rate of each batch."""

    def __init__(self):
        self.found = []

    def on_step_begin(self, args, state, control, optimizer=None, **rest):
        self.found.append(optimizer.param_groups[0]["lr"])


def test_the_call_for_hugging_face(tmp_path):
    """10 samples, 2 in a batch: 90 epochs of 5 batches, in a Trainer that would go on."""
    options = {"per_device_train_batch_size": 2, "num_train_epochs": 100}
    quiet = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "report_to": "none"}
    arguments = TrainingArguments(tmp_path, learning_rate=LR, save_strategy="no", **options, **quiet)
    samples = [{"input_ids": torch.full((4,), number)} for number in range(10)]
    rates = Rates()
    trainer = Trainer(Model(), arguments, train_dataset=samples, callbacks=[rates])
    steps = timesched.MultiStepScheduler(milestones=["0.3dur", "0.5dur", "0.9dur"])
    exec(readme_code("schedule(trainer"), {"trainer": trainer, "schedule": schedule, "steps": steps})
    trainer.train()
    run = timesched.Horizon("90ep", batches_per_epoch=5)
    assert rates.found == [LR * steps.at(f"{batch}ba", run) for batch in range(450)]
