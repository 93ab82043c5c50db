"""Train a small GPT-2 with the Trainer of Hugging Face transformers, its learning
rate and weight decay on schedules of timesched that count tokens.

The model reads bytes, and the text is the manual that ships with Python. With
--resume the run goes on from the last checkpoint in the folder, exactly.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import optim
from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

LENGTH = 128  # tokens in a sample, which are bytes
BATCH_SIZE = 32  # samples in a step of the optimizer, in microbatches of 8


def samples() -> list[dict[str, Any]]:
    """The manual in samples of LENGTH bytes."""
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, LENGTH, LENGTH)
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of the optimizer (default: %(default)s)")
    parser.add_argument("--out", default="transformers_run", help="folder of checkpoints (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    options = parser.parse_args()

    set_seed(0)
    size = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": LENGTH, "vocab_size": 256}
    trainer = Trainer(
        GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None)),
        TrainingArguments(
            options.out,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=BATCH_SIZE // 8,
            dataloader_drop_last=True,
            include_num_input_tokens_seen="all",  # for times in tokens
            weight_decay=0.1,
            logging_steps=max(1, options.steps // 10),
            save_steps=max(1, options.steps // 2),
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=samples(),
        # The Trainer gives the groups their weight decay, and its own AdamW has this eps: ours is 1e-6.
        optimizer_cls_and_kwargs=(optim.AdamW, {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8}),
    )
    schedule(
        trainer,
        CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1),
        Binding(LinearScheduler(alpha_f=0.1), "weight_decay"),
        max_duration=f"{options.steps * BATCH_SIZE * LENGTH}tok",
    )
    trainer.train(resume_from_checkpoint=options.resume)

    clock, (group, *_) = trainer.lr_scheduler.clock, trainer.optimizer.param_groups
    print(f"batches {clock.timestamp.batch.value}, tokens {clock.timestamp.token.value}")
    print(f"next learning rate {group['lr']:.6g}, next weight decay {group['weight_decay']:.6g}")


if __name__ == "__main__":
    main()
