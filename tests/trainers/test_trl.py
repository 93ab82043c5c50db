"""The adapter for transformers in TRL's `SFTTrainer`, with documents of different lengths packed into rows."""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import optim
from tests.docs.tables import page_code
from tests.torchrun import ROOT, python_output
from tests.trainers.runs import DECAY, ENTRIES, LR, WEIGHT_DECAY, Task, plain_loop, read_counts
from timesched import Horizon, LinearScheduler
from timesched.integrations.transformers import schedule

SIZE = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
QUIET = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True}
TEXTS = [text[: 60 + 40 * i % 170] for i, (_, text) in enumerate(sorted(pydoc_data.topics.topics.items()))][:60]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator(TEXTS, WordLevelTrainer(special_tokens=["[UNK]", "[EOS]"], vocab_size=500))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[EOS]", eos_token="[EOS]", model_max_length=64
    )


@pytest.mark.parametrize(("strategy", "count"), [("bfd", "all"), ("wrapped", "all"), (None, "non_padding")])
def test_tokens_are_counted_as_they_are_trained_on(tmp_path, strategy, count):
    words = tokenizer()
    settings = {
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 1000, "max_length": 48},
        **{"weight_decay": WEIGHT_DECAY, "include_num_input_tokens_seen": count},
        **{"train_sampling_strategy": "sequential", "save_strategy": "no", "logging_steps": 1, **QUIET},
        # None: TRL's own default warns of its name in transformers 5.23.
        **{"gradient_checkpointing": None, "dataloader_pin_memory": False},
        **({"packing": True, "packing_strategy": strategy} if strategy else {}),
    }
    trainer = SFTTrainer(
        GPT2LMHeadModel(GPT2Config(**SIZE, vocab_size=len(words))),
        SFTConfig(str(tmp_path), **settings),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=words,
        optimizer_cls_and_kwargs=(optim.AdamW, {"lr": LR}),
    )
    task = Task(ENTRIES, "2500tok", accumulate=2, batch_size=2)
    schedule(trainer, *task.entries, max_duration=task.max_duration)
    trainer.train()

    # The rows as they are trained on: packed, with as little padding as there is.
    rows = [len(row) for row in trainer.train_dataset["input_ids"]]
    assert len(rows) < len(TEXTS) if strategy else len(rows) == len(TEXTS)
    plain = plain_loop(rows, task)
    logs = [row for row in trainer.state.log_history if "num_tokens" in row]
    assert [row["learning_rate"] for row in logs] == plain.of("lr")
    assert [row["weight_decay/group0"] for row in logs] == plain.of("weight_decay")
    assert read_counts(trainer.lr_scheduler.clock.timestamp) == plain.counts
    assert logs[-1]["num_tokens"] == plain.counts["token"] and plain.counts["epoch"] == 1


class CountingTrainer(GRPOTrainer):
    """Notes how many completions the loss of each microbatch has."""

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        self.__dict__.setdefault("completions", []).append(len(inputs["completion_ids"]))
        return super().compute_loss(model, inputs, *rest, **options)


def grpo_trainer(folder: Any, **options: Any) -> CountingTrainer:
    """16 prompts, and generations of two completions of four tokens each."""
    config = GPT2Config(**SIZE, vocab_size=500, bos_token_id=None, eos_token_id=1, pad_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    words = tokenizer()
    words.padding_side = "left"
    settings = {
        **{"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4, "logging_steps": 1},
        **{"save_strategy": "no", **QUIET},
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
        trainer, values = (
            grpo_trainer(tmp_path / folder, beta=0.04, max_steps=4, save_strategy="steps", save_steps=2),
            [],
        )
        trainer.create_optimizer()
        trainer.optimizer.register_step_pre_hook(lambda *_: values.append(trainer.beta))
        rise = LinearScheduler(0.0, 1.0, t_max="3ba")
        names = {"trainer": trainer, "rise": rise, "cosine": DECAY, "schedule": schedule}
        exec(page_code("values.md", "# TRL"), names)
        trainer.train(resume_from_checkpoint=resume)
        return values

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
