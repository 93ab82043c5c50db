"""Small runs of the Trainer of transformers, and what each of their batches ran with."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

COSINE = CosineAnnealingWithWarmupScheduler("0.2dur", alpha_f=0.1)
DECAY, BETA = LinearScheduler(1.0, 0.25), LinearScheduler(1.0, 0.9)
ENTRIES = (COSINE, Binding(DECAY, "weight_decay"), Binding(BETA, "betas[0]"))
LR, WEIGHT_DECAY, BETA1 = 0.01, 0.1, 0.9

# 21 samples in microbatches of 2, of which 3 make a batch: 6, 6, 6 and 3 samples in an epoch.
LENGTHS = [3 + 5 * i % 7 for i in range(21)]
EPOCH = [range(0, 6), range(6, 12), range(12, 18), range(18, 21)]
STEPS = 12  # in three epochs


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> list[int]:
        return [random.Random(f"{index},{i}").randrange(1, 50) for i in range(LENGTHS[index])]


def padded(samples: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, samples))
    ids = torch.tensor([sample + [0] * (longest - len(sample)) for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


class Recorder(TrainerCallback):
    """The values that each batch ran with, by key, for all groups."""

    def __init__(self) -> None:
        self.rows: list[dict[str, list[float]]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        groups = optimizer.param_groups
        row = {
            key: [float(group[key]) for group in groups if group.get(key) is not None] for key in ("lr", "weight_decay")
        }
        self.rows.append({**row, "betas[0]": [float(group["betas"][0]) for group in groups if "betas" in group]})


def new_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None))


def new_trainer(folder: Any, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """A Trainer with a `Recorder` as `recorder`. `options` go to its arguments, or to itself if it has them."""
    to_trainer = {
        name: options.pop(name)
        for name in ("model", "optimizers", "optimizer_cls_and_kwargs", "train_dataset", "callbacks")
        if name in options
    }
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 3,
        "learning_rate": LR,
        "weight_decay": WEIGHT_DECAY,
        "adam_beta1": BETA1,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
    }
    arguments = TrainingArguments(str(folder), **{**settings, **options})
    given = {"model": to_trainer.pop("model", None) or new_model(), "train_dataset": Samples(), **to_trainer}
    trainer = kind(args=arguments, data_collator=padded, **given)
    trainer.recorder = Recorder()
    trainer.add_callback(trainer.recorder)
    return trainer


def run(folder: Any, *entries: Any, resume: Any = None, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """A Trainer that has trained."""
    names = ("max_duration", "tokens_per_sample", "ssr", "on_change")
    ours = {key: options.pop(key) for key in names if key in options}
    trainer = new_trainer(folder, kind, **options)
    schedule(trainer, *(entries or ENTRIES), **ours)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
