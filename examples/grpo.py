"""GRPO with TRL: the learning rate, and the weight of the KL loss, which rises from 0. Runs on a CPU in seconds.

    python examples/grpo.py [--steps 6]

It needs `pip install ".[transformers]" trl`. Nothing is downloaded: the model is a new small GPT-2, and a word of the
tokenizer is a number from 0 to 99. The reward counts the even numbers of a completion.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler, Schedule
from timesched.integrations.transformers import schedule

BETA = 0.04  # the full weight of the KL loss


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {str(number): number for number in range(100)} | {"[END]": 100}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[END]"))
    tokenizer.pre_tokenizer = Whitespace()
    names = {"unk_token": "[END]", "pad_token": "[END]", "eos_token": "[END]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def make_model(folder: Path) -> GPT2LMHeadModel:
    """A new model, read from a folder: the trainer reads its reference model from there, too."""
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 101}
    GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=100, pad_token_id=100)).save_pretrained(folder)
    return GPT2LMHeadModel.from_pretrained(folder)


def count_even(completions: list[str], **_: object) -> list[float]:
    """The reward: how many numbers of each completion are even."""
    return [float(sum(int(word) % 2 == 0 for word in text.split() if word.isdigit())) for text in completions]


class SetBeta(TrainerCallback):
    """Sets the weight of the KL loss before each step, and notes it."""

    def __init__(self, trainer: GRPOTrainer, rise: Schedule) -> None:
        self.trainer, self.rise = trainer, rise
        self.betas: list[float] = []

    def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
        self.trainer.beta = BETA * self.rise(self.trainer.lr_scheduler.clock)
        self.betas.append(self.trainer.beta)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="steps of the optimizer (default: %(default)s)")
    steps = parser.parse_args().steps
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            str(Path(folder) / "run"), beta=BETA, max_steps=steps, learning_rate=1e-3, logging_steps=1,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=8,
            use_cpu=True, bf16=False, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            make_model(Path(folder) / "model"),
            reward_funcs=count_even,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [f"{number} {number + 1}" for number in range(98)]}),
            processing_class=make_tokenizer(),
        )
        set_beta = SetBeta(trainer, LinearScheduler(0.0, 1.0, t_max="0.5dur"))
        schedule(trainer, CosineAnnealingWithWarmupScheduler("0.2dur"))
        trainer.add_callback(set_beta)
        trainer.train()
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    for step, (rate, beta) in enumerate(zip(rates, set_beta.betas), start=1):
        print(f"step {step}: learning rate {rate:.2e}, KL weight {beta:.4f}")


if __name__ == "__main__":
    main()
