"""The adapter for transformers in TRL's `SFTTrainer`, with documents of different lengths packed into rows."""

from __future__ import annotations

import pydoc_data.topics
from itertools import accumulate

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
from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

LR, WEIGHT_DECAY, LENGTH = 0.01, 0.1, "2500tok"
COSINE, DECAY = CosineAnnealingWithWarmupScheduler("600tok", alpha_f=0.1), LinearScheduler(alpha_f=0.2)
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
    schedule(trainer, COSINE, Binding(DECAY, "weight_decay"), max_duration=LENGTH)
    trainer.train()

    # The rows as they are trained on: packed, with as little padding as there is.
    rows = [len(row) for row in trainer.train_dataset["input_ids"]]
    batches = [sum(rows[i : i + 4]) for i in range(0, len(rows), 4)]
    assert len(rows) < len(TEXTS) if strategy else len(rows) == len(TEXTS)
    counts = list(accumulate(batches * 2))
    steps = next(i for i, tokens in enumerate(counts) if tokens >= 2500) + 1
    logs = [row for row in trainer.state.log_history if "num_tokens" in row]
    assert [row["num_tokens"] for row in logs] == counts[:steps] and len(batches) < steps  # in the second epoch
    run, times = Horizon(LENGTH), [f"{tokens}tok" for tokens in [0, *counts[: steps - 1]]]
    assert [row["learning_rate"] for row in logs] == [LR * COSINE.at(time, run) for time in times]
    assert [row["weight_decay/group0"] for row in logs] == [WEIGHT_DECAY * DECAY.at(time, run) for time in times]
    stamp = trainer.lr_scheduler.clock.timestamp
    assert (stamp.token.value, stamp.sample.value) == (counts[steps - 1], len(rows) + 4 * (steps - len(batches)))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL uses names that transformers has deprecated
def test_a_kl_weight(tmp_path):
    """The code of docs/values.md: each step has the value of its time, also in a resumed run."""
    config = GPT2Config(**SIZE, vocab_size=500, bos_token_id=None, eos_token_id=1, pad_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    words = tokenizer()
    words.padding_side = "left"
    settings = {
        **{"beta": 0.04, "max_steps": 4, "per_device_train_batch_size": 2, "num_generations": 2},
        **{"max_completion_length": 4, "save_steps": 2, "logging_steps": 1, **QUIET},
    }

    def train(folder, resume=None):
        trainer = GRPOTrainer(
            model=GPT2LMHeadModel.from_pretrained(tmp_path),  # the reference model is read from there, too
            reward_funcs=lambda completions, **kwargs: [float(len(text)) for text in completions],
            args=GRPOConfig(str(tmp_path / folder), **settings),
            train_dataset=Dataset.from_dict({"prompt": [text[:40] for text in TEXTS[:16]]}),
            processing_class=words,
        )
        values = []
        trainer.create_optimizer()
        trainer.optimizer.register_step_pre_hook(lambda *_: values.append(trainer.beta))
        rise = LinearScheduler(0.0, 1.0, t_max="3ba")
        names = {"trainer": trainer, "rise": rise, "cosine": DECAY, "schedule": schedule}
        exec(page_code("values.md", "# TRL"), names)
        trainer.train(resume_from_checkpoint=resume)
        return values

    values = train("whole")
    assert values == [0.04 * LinearScheduler(0.0, 1.0, t_max="3ba").at(f"{k}ba", Horizon("4ba")) for k in range(4)]
    assert train("rest", str(tmp_path / "whole" / "checkpoint-2")) == values[2:]
