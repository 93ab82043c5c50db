"""The line for Hugging Face in README.md, in a run of the real Trainer."""

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import timesched
from tests.docs.tables import readme_line
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


def test_the_line_for_hugging_face(tmp_path):
    """20 batches of 50,000 tokens, in a Trainer that would go on."""
    options = {"per_device_train_batch_size": 50, "max_steps": 30, "include_num_input_tokens_seen": "all"}
    quiet = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "report_to": "none"}
    arguments = TrainingArguments(tmp_path, learning_rate=LR, save_strategy="no", **options, **quiet)
    samples = [{"input_ids": torch.full((1000,), number)} for number in range(100)]
    rates = Rates()
    trainer = Trainer(Model(), arguments, train_dataset=samples, callbacks=[rates])
    names = {**vars(timesched), "trainer": trainer, "schedule": schedule}
    exec(readme_line("wsd = "), names)
    exec(readme_line("schedule("), names)
    trainer.train()
    run = timesched.Horizon("1Mtok")
    assert rates.found == [LR * names["wsd"].at(f"{50_000 * batch}tok", run) for batch in range(20)]
