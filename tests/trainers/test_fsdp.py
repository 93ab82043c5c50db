"""Muon in the real Trainer under FSDP2: it makes the optimizer, shards the model, and hands the shards over.

As a program, under torchrun: `FOLDER` checks two ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, default_data_collator

import optim
from tests.torchrun import Report, launch
from tests.trainers.rows.transformers import make_trainer
from tests.trainers.runs import Task
from timesched import LinearScheduler
from timesched.integrations.transformers import Binding, schedule

ARGUMENTS = {"lr": 0.01, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw", "adamw": {"lr": 0.003}}
SIZE = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
IDS = [1 + 3 * i % 50 for i in range(12)]
# All ranks have the same gradients, so their mean is bit-identical to the gradients of one process.
DATA = {"train_dataset": [{"input_ids": IDS, "labels": IDS}] * 21, "data_collator": default_data_collator}


def make_muon(model: torch.nn.Module, **arguments: Any) -> torch.optim.Optimizer:
    return optim.Muon(optim.configure_param_groups(model, matrices="muon"), **arguments)


def trained(folder: Path, resume: Path | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZE, **WITHOUT_DROPOUT, bos_token_id=None, eos_token_id=None))
    options |= {"max_steps": 4, "max_grad_norm": 0.0, "save_strategy": "steps", "save_steps": 2}
    made = lambda: make_muon, ARGUMENTS
    trainer = make_trainer(folder, Task(), model, **DATA, optimizer_cls_and_kwargs=made, **options)
    if trainer.args.fsdp:
        enable_fsdp_on_the_cpu(trainer)
    schedule(trainer, LinearScheduler(alpha_f=0.5), Binding(LinearScheduler(), "momentum", tags="muon"))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def enable_fsdp_on_the_cpu(trainer: Trainer) -> None:
    """accelerate has FSDP on accelerators alone, so it is told that this is one; all that it then does is real."""
    state = trainer.accelerator.state
    PartialState().distributed_type = state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
    trainer.is_fsdp_enabled = True
    assert trainer.accelerator.is_fsdp2


def outcome(trainer: Trainer) -> dict[str, Any]:
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    full = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in weights.items()}
    logs = [row for row in trainer.state.log_history if "learning_rate" in row]
    return {"values": [{name: row[name] for name in row if "/" in name} for row in logs], "weights": full}


def test_two_ranks(tmp_path: Path) -> None:
    torch.save(outcome(trained(tmp_path / "alone")), tmp_path / "alone.pt")
    results, output = launch(Path(__file__), 2, tmp_path, 150)
    assert results == {"one process": "", "resumed": ""}, "\n".join([*results.values(), output])


# In processes of their own


def assert_equal_to_one_process(folder: Path) -> None:
    trainer = trained(folder / "sharded", fsdp=True)
    groups, state = trainer.optimizer.param_groups, trainer.optimizer.optimizer.state
    assert [group["algorithm"] for group in groups] == ["adamw", "adamw", "muon"]
    assert set(state) == set(trainer.model.parameters()) and all(isinstance(p, DTensor) for p in state)
    momenta = [state[p]["momentum_buffer"] for p in groups[2]["params"]]
    assert len(momenta) == 4 and all(isinstance(momentum, DTensor) for momentum in momenta)
    torch.testing.assert_close(outcome(trainer), torch.load(folder / "alone.pt"), rtol=0, atol=0)


def assert_resumed(folder: Path) -> None:
    checkpoint = folder / "sharded" / "checkpoint-2"
    resumed, whole = outcome(trained(folder / "resumed", checkpoint, fsdp=True)), torch.load(folder / "alone.pt")
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    report = Report(folder)
    report.check("one process", lambda: assert_equal_to_one_process(folder))
    report.check("resumed", lambda: assert_resumed(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
