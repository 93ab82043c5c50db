"""The adapter for transformers in TRL's `SFTTrainer`, with documents of different lengths packed into rows."""

from __future__ import annotations

import pydoc_data.topics
from itertools import accumulate
from typing import Any

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import optim
from tests.docs.tables import page_code
from tests.torchrun import ROOT, python_output
from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

LR, WEIGHT_DECAY, LENGTH = 0.01, 0.1, "2500tok"
COSINE, DECAY = CosineAnnealingWithWarmupScheduler("600tok", alpha_f=0.1), LinearScheduler(alpha_f=0.2)
TEXTS = [text[: 60 + 40 * i % 170] for i, (_, text) in enumerate(sorted(pydoc_data.topics.topics.items()))][:60]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator(TEXTS, WordLevelTrainer(special_tokens=["[UNK]", "[EOS]"], vocab_size=500))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[EOS]", eos_token="[EOS]", model_max_length=64
    )


class Recorder(TrainerCallback):
    """What each batch ran with, and the tokens that TRL has counted after it."""

    def __init__(self) -> None:
        self.used: list[tuple[float, float]] = []
        self.tokens: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        group = optimizer.param_groups[0]
        self.used.append((group["lr"], group["weight_decay"]))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "num_tokens" in logs:
            self.tokens.append(logs["num_tokens"])


@pytest.mark.parametrize(("strategy", "count"), [("bfd", "all"), ("wrapped", "all"), (None, "non_padding")])
def test_tokens_are_counted_as_they_are_trained_on(tmp_path, strategy, count):
    words = tokenizer()
    settings = {
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 1000, "max_length": 48},
        **{"weight_decay": WEIGHT_DECAY},
        **{"train_sampling_strategy": "sequential", "save_strategy": "no", "report_to": "none", "logging_steps": 1},
        # None: TRL's own default warns of its name in transformers 5.23.
        **{
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": None,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
        },
        **({"packing": True, "packing_strategy": strategy} if strategy else {}),
    }
    size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": len(words)}
    trainer = SFTTrainer(
        GPT2LMHeadModel(GPT2Config(**size)),
        SFTConfig(str(tmp_path), include_num_input_tokens_seen=count, **settings),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=words,
        optimizer_cls_and_kwargs=(optim.AdamW, {"lr": LR}),
    )
    recorder = Recorder()
    trainer.add_callback(recorder)
    schedule(trainer, COSINE, Binding(DECAY, "weight_decay"), max_duration=LENGTH)
    trainer.train()

    # The rows as they are trained on: packed, with as little padding as there is.
    rows = [len(row) for row in trainer.train_dataset["input_ids"]]
    batches = [sum(rows[i : i + 4]) for i in range(0, len(rows), 4)]
    assert len(rows) < len(TEXTS) if strategy else len(rows) == len(TEXTS)
    counts = list(accumulate(batches * 2))
    steps = next(i for i, tokens in enumerate(counts) if tokens >= 2500) + 1
    assert len(batches) < steps == len(recorder.used)  # in the second epoch
    assert recorder.tokens == counts[:steps]
    run = Horizon(LENGTH)
    times = [f"{tokens}tok" for tokens in [0, *counts[: steps - 1]]]
    assert recorder.used == [(LR * COSINE.at(time, run), WEIGHT_DECAY * DECAY.at(time, run)) for time in times]
    stamp = trainer.lr_scheduler.clock.timestamp
    assert (stamp.token.value, stamp.sample.value) == (counts[steps - 1], len(rows) + 4 * (steps - len(batches)))


class KLWeights(TrainerCallback):
    """Notes the KL weight of each step."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self.values: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.values.append(self.trainer.beta)


class CountingTrainer(GRPOTrainer):
    """Notes how many completions the loss of each microbatch has."""

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        self.__dict__.setdefault("completions", []).append(len(inputs["completion_ids"]))
        return super().compute_loss(model, inputs, *rest, **options)


def grpo_trainer(folder: Any, **options: Any) -> CountingTrainer:
    """16 prompts, and generations of two completions of four tokens each."""
    size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": 500}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=1, pad_token_id=1))
    model.save_pretrained(folder / "model")
    words = tokenizer()
    words.padding_side = "left"
    settings = {
        **{"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4, "logging_steps": 1},
        **{"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True},
    }
    return CountingTrainer(
        model=GPT2LMHeadModel.from_pretrained(folder / "model"),  # the reference model is read from there, too
        reward_funcs=lambda completions, **kwargs: [float(len(text)) for text in completions],
        args=GRPOConfig(str(folder / "run"), **settings | options),
        train_dataset=Dataset.from_dict({"prompt": [text[:40] for text in TEXTS[:16]]}),
        processing_class=words,
    )


# TRL uses names that transformers has deprecated
IGNORE_DEPRECATIONS = pytest.mark.filterwarnings("ignore::FutureWarning")


@IGNORE_DEPRECATIONS
def test_a_kl_weight(tmp_path):
    """The code of docs/values.md: each step has the value of its time, also in a resumed run."""

    def train(folder, resume=None):
        trainer = grpo_trainer(tmp_path / folder, beta=0.04, max_steps=4, save_strategy="steps", save_steps=2)
        recorder = KLWeights(trainer)
        trainer.add_callback(recorder)
        rise = LinearScheduler(0.0, 1.0, t_max="3ba")
        names = {"trainer": trainer, "rise": rise, "cosine": DECAY, "schedule": schedule}
        exec(page_code("values.md", "# TRL"), names)
        trainer.train(resume_from_checkpoint=resume)
        return recorder.values

    values = train("whole")
    assert values == [0.04 * LinearScheduler(0.0, 1.0, t_max="3ba").at(f"{k}ba", Horizon("4ba")) for k in range(4)]
    assert train("rest", str(tmp_path / "whole/run/checkpoint-2")) == values[2:]


@IGNORE_DEPRECATIONS
@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [
        ({"gradient_accumulation_steps": 4}, 4, 1),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, 8, 1),
        ({"gradient_accumulation_steps": 4, "num_iterations": 2}, 4, 0),  # each completion is trained on twice
    ],
)
def test_completions_are_counted_as_they_are_trained_on(options, steps, epochs, tmp_path):
    """A batch of TRL's data loader holds the prompts of several microbatches, and comes once for each of them."""
    trainer = grpo_trainer(tmp_path, max_steps=1000, **options)
    schedule(trainer, LinearScheduler(), max_duration="32sp")
    trainer.train()
    stamp = trainer.lr_scheduler.clock.timestamp
    assert (sum(trainer.completions), stamp.sample.value) == (32, 32)
    assert (trainer.state.global_step, stamp.batch.value, stamp.epoch.value) == (steps, steps, epochs)
    assert trainer.lr_scheduler.clock.fraction == 1.0


@IGNORE_DEPRECATIONS
def test_a_generation_that_serves_several_steps_has_its_tokens_once(tmp_path):
    trainer = grpo_trainer(tmp_path, max_steps=4, num_iterations=2, include_num_input_tokens_seen="all")
    schedule(trainer, LinearScheduler(t_max="1000tok"), max_duration="1000tok")
    with pytest.warns(UserWarning, match="The Trainer has ended the run at"):
        trainer.train()
    assert trainer.lr_scheduler.clock.timestamp.token.value == trainer.state.num_input_tokens_seen > 0


def test_the_example():
    lines = python_output(ROOT / "examples/grpo.py", "--steps", 4).splitlines()
    assert [line for line in lines if line.startswith("step ")] == [
        "step 1: learning rate 0.00e+00, KL weight 0.0000",
        "step 2: learning rate 9.90e-04, KL weight 0.0200",
        "step 3: learning rate 6.91e-04, KL weight 0.0400",
        "step 4: learning rate 2.22e-04, KL weight 0.0400",
    ]
