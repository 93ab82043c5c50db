"""The epoch of a data loader of transformers' Trainer: its batches, and the samples that all ranks read in it.

The Trainer knows the size of a microbatch. A batch sampler may have a different one, and accelerate may divide it among
the ranks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher
from torch.utils.data import DistributedSampler
from transformers import Trainer
from transformers.trainer_utils import has_length


class Epoch(NamedTuple):
    """The batches and samples that a data loader returns in an epoch, to all ranks."""

    batches: int | None  # steps of the optimizer; None where the loader has no length
    samples_per_batch: int  # of a full batch
    samples: int  # of all batches, without samples that ranks repeat to fill a batch

    def samples_of(self, batches: int) -> int:
        """The samples of the first `batches` batches of a run."""
        epochs, batch_in_epoch = divmod(batches, self.batches or 1)
        return epochs * self.samples + min(batch_in_epoch * self.samples_per_batch, self.samples)


def measure_epoch(loader: Any, trainer: Trainer) -> Epoch:
    """Measure the epoch of a Trainer's data loader, by the sizes of the loader if its batch sampler has a length."""
    accumulation = trainer.args.gradient_accumulation_steps
    microbatch = _microbatch_samples(loader, trainer)
    batch = microbatch * accumulation
    if not has_length(loader):
        return Epoch(None, batch, batch)
    samples = _epoch_samples(loader, trainer, len(loader) * microbatch, batch)
    return Epoch(max(1, math.ceil(len(loader) / accumulation)), batch, samples)


def _microbatch_samples(loader: Any, trainer: Trainer) -> int:
    """The samples of a full microbatch, of all ranks."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    size = _sampler_batch_size(loader, trainer)
    if getattr(batch_sampler, "split_batches", False) or getattr(loader, "split_batches", False):
        return size  # the ranks divide one batch of the sampler
    if isinstance(batch_sampler, BatchSamplerShard) and has_length(_find_sampler(loader)):
        return size * int(batch_sampler.num_processes)
    return size * _count_ranks(trainer)


def _sampler_batch_size(loader: Any, trainer: Trainer) -> int:
    """The size of a batch of the loader's batch sampler, or else the Trainer's."""
    if _repeats_samples(_find_sampler(loader)):
        return int(trainer._train_batch_size)
    return getattr(_find_batch_sampler(loader), "batch_size", None) or int(trainer._train_batch_size)


def _epoch_samples(loader: Any, trainer: Trainer, full: int, batch: int) -> int:
    """The samples of an epoch. `full`: the samples if each microbatch is full. `batch`: the samples of a full batch."""
    sampler = _find_sampler(loader)
    if _repeats_samples(sampler):
        return full
    if not has_length(sampler):  # the samples of the dataset, if the loader can have read all of it
        samples = int(trainer.num_examples(loader))
        return samples if full - batch < samples < full else full
    is_shard = isinstance(loader.batch_sampler, BatchSamplerShard)
    if isinstance(sampler, DistributedSampler) and not is_shard:
        return min(int(trainer.num_examples(loader)), full)
    is_shared = is_shard or isinstance(loader, DataLoaderDispatcher)
    # Otherwise each rank has its own sampler.
    return min(len(sampler) if is_shared else len(sampler) * _count_ranks(trainer), full)


def _find_batch_sampler(loader: Any) -> Any:
    """The user's batch sampler, also in accelerate's shard, which divides it among the ranks. None if there is none."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return getattr(batch_sampler, "batch_sampler", batch_sampler)


def _find_sampler(loader: Any) -> Any:
    """The sampler of the user's batch sampler; None if there is none."""
    return getattr(_find_batch_sampler(loader), "sampler", None)


def _repeats_samples(sampler: object) -> bool:
    """Whether it is TRL's sampler: the loader's batch has the prompts of several microbatches, and comes once for each.

    The size of a microbatch is the Trainer's, and each microbatch is full.
    """
    return hasattr(sampler, "repeat_count") and hasattr(sampler, "mini_repeat_count")


def _count_ranks(trainer: Trainer) -> int:
    """The ranks that have different data."""
    args = trainer.args
    ranks = trainer.get_total_train_batch_size(args) // (args.gradient_accumulation_steps * trainer._train_batch_size)
    return int(ranks)
