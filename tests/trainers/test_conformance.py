"""What all adapters promise, in runs of the real trainers. A new adapter is a row of `CANNOT`, and a file in rows/.

As a program: `FOLDER` resumes every run that was saved there, and under torchrun it checks two ranks.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import optim
from tests.building import batches_of_loop
from tests.golden.states import STATES
from tests.torchrun import Report, launch, python_output
from tests.trainers.runs import (
    AVERAGE,
    COSINE,
    DECAY,
    ENTRIES,
    EQUAL,
    GROUPS,
    IGNORE_LIGHTNING,
    KEYS,
    LR,
    MICROBATCH,
    ROUNDED,
    UNEVEN,
    Run,
    Task,
    averages,
    of_all_ranks,
    plain_loop,
    split,
)
from timesched import BatchSizeSchedule, Clock, HalfLife, LinearScheduler
from timesched.integrations.common import Binding

OF_LOOP = "It is in the hands of the user, who writes the loop."
OF_CONFIG = "It is in the config of the run."
NO_SCALER = "It has a gradient scaler on GPUs only, or none."

# The promises that a trainer cannot keep, and why.
CANNOT: dict[str, dict[str, str]] = {
    "transformers": {"growing batches": "The Trainer computes its epochs and steps from one batch size."},
    "lightning": {},
    "accelerate": dict.fromkeys(("own length", "no logs", "evaluation", "takes over"), OF_LOOP),
    "torchtitan": {
        **dict.fromkeys(("ratio", "growing batches", "no logs", "takes over"), OF_CONFIG),
        **dict.fromkeys(("average", "evaluation"), "It cannot save the shards of an average."),
        **{"skipped steps": NO_SCALER, "new keys": "A checkpoint must have all keys of a group."},
        "loaded last": "It loads the optimizer after the schedules: one step has the values of the checkpoint.",
    },
    "composer": {
        **{"moments": "Composer has intervals of its own.", "skipped steps": NO_SCALER},
        "first log": "Composer logs the values of a step after the step before it.",
        "refuses to take over": "Composer warns of a checkpoint without a state, and loads it.",
        "length of checkpoints": "The length is the Trainer's.",
    },
}
ROWS = {
    name: importlib.import_module(f"tests.trainers.rows.{name}") for name in CANNOT if importlib.util.find_spec(name)
}
LENGTHS = {name: EQUAL if name == "torchtitan" else UNEVEN for name in ROWS}  # tokens of each sample

pytestmark = [
    *IGNORE_LIGHTNING,
    # Composer's own, of a checkpoint after the last batch of an epoch: it discards all batches of the epoch.
    pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning"),
    pytest.mark.xdist_group("conformance"),  # which shares the runs that are saved
]


def able(promise: str) -> list[str]:
    """The trainers that can keep a promise."""
    return [name for name in ROWS if promise not in CANNOT[name]]


def for_trainers(promise: str = "") -> Any:
    """Run a test for each trainer that can keep a promise. Without any such trainer here, there is no test."""
    names = able(promise)
    return pytest.mark.parametrize("name", names) if names else lambda test: None


def train(name: str, folder: Path, task: Task) -> Run:
    run: Run = ROWS[name].train(folder, task)
    return run


def assert_as_plain_loop(name: str, run: Run, task: Task) -> None:
    """Each step ran with the values of its time, and all is counted."""
    plain = plain_loop(LENGTHS[name], task)
    assert run.values == plain.values
    assert run.counts == plain.counts


# The values of each step

IN_UNITS = (
    Binding(COSINE, "lr", "head"),
    Binding(LinearScheduler(alpha_f=0.1, t_max="1.5ep"), "lr", "embedding"),
    Binding(DECAY, "weight_decay"),
    Binding(LinearScheduler(alpha_f=0.5, t_max="50sp"), "betas[0]"),
    Binding(HalfLife("9ba"), "betas[1]", "head"),
)


@for_trainers()
@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_step_has_the_values_of_its_time(name: str, accumulate: int, tmp_path: Path) -> None:
    """In tokens, epochs, batches, samples and parts of the run, for groups with tags and for any key."""
    task = Task(IN_UNITS, accumulate=accumulate)
    assert_as_plain_loop(name, train(name, tmp_path, task), task)


@for_trainers("ratio")
def test_a_ratio_scales_the_run(name: str, tmp_path: Path) -> None:
    task = Task(max_duration="800tok", ssr=0.5)
    assert_as_plain_loop(name, train(name, tmp_path, task), task)


@for_trainers("own length")
def test_the_length_is_the_trainers_own(name: str, tmp_path: Path) -> None:
    task = Task((LinearScheduler(),), max_duration=None, accumulate=2)
    assert_as_plain_loop(name, train(name, tmp_path, task), task)


@for_trainers("skipped steps")
def test_a_step_that_a_gradient_scaler_skips_is_a_batch(name: str, tmp_path: Path) -> None:
    task = Task((LinearScheduler(), ENTRIES[1]), "16ba", skipped=(0, 1, 5))
    run, plain = train(name, tmp_path, task), plain_loop(UNEVEN, task)
    assert run.values == [values for step, values in enumerate(plain.values) if step not in task.skipped]
    assert run.counts == plain.counts


@for_trainers()
def test_seconds(name: str, tmp_path: Path) -> None:
    """They are measured: no step has the value of a time that has not come."""
    start = time.monotonic()
    rates = train(name, tmp_path, Task((LinearScheduler(t_max="999sec"),), "16ba")).of("lr")
    latest = LR * (1 - (time.monotonic() - start) / 999)
    assert rates == sorted(set(rates), reverse=True) and len(rates) == 16 and rates[-1] > latest


# Saved and resumed


def is_moment(clock: Clock) -> bool:
    """Whether any of some moments has come, in several units."""
    return any([clock.every("60sp"), clock.every("90tok"), clock.passed("1ep"), clock.passed("0.9dur")])


SAVED = {  # each after a step of the second epoch
    "accumulated": Task(accumulate=2, save_after=[8], moment=is_moment),
    "averaged": Task(average=AVERAGE, evaluate_every=4, evaluate_averaged=True, save_after=[16]),
}


@dataclass
class Saved:
    """Runs of all trainers that were not interrupted, and their checkpoints."""

    folder: Path
    runs: dict[tuple[str, str], Run]

    def load(self, name: str, kind: str) -> tuple[Path, int]:
        """What a task loads to resume a run."""
        return self.folder / name / kind, SAVED[kind].save_after[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    keys = product(ROWS, SAVED)
    return Saved(folder, {(name, kind): train(name, folder / name / kind, SAVED[kind]) for name, kind in keys})


@pytest.fixture(scope="module")
def resumed(saved: Saved) -> dict[tuple[str, str], Run]:
    """The rest of these runs, and of those in tests/golden/states, which another process resumed."""
    python_output(__file__, saved.folder)
    return torch.load(saved.folder / "resumed.pt", weights_only=False)


@for_trainers()
@pytest.mark.parametrize("kind", SAVED)
def test_a_run_resumes_in_another_process(name: str, kind: str, saved: Saved, resumed: Any) -> None:
    """In an epoch, bit for bit: with the weights and their average, at the same moments."""
    whole, rest, (_, step) = saved.runs[name, kind], resumed[name, kind], saved.load(name, kind)
    assert rest.values == whole.values[step:] and len(rest.values) > 1
    assert rest.counts == whole.counts
    assert rest.moments == [moment for moment in whole.moments if moment > step]
    evaluations = len(whole.evaluated) - len(rest.evaluated)
    weights = rest.after, rest.average, rest.evaluated
    expected = whole.after[step:], whole.average, whole.evaluated[evaluations:]
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def kept_kind(name: str) -> str:
    """The kind of run of which tests/golden/states keeps a checkpoint."""
    return "averaged" if name in able("average") else "accumulated"


VERSIONS = [path.name for path in sorted(STATES.iterdir()) if path.is_dir()]


@for_trainers()
@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version(name: str, version: str, saved: Saved, resumed: Any) -> None:
    """Another process resumes it."""
    kind = kept_kind(name)
    run, whole = resumed[name, version], saved.runs[name, kind]
    assert run.values == whole.values[SAVED[kind].save_after[0] :] and run.counts == whole.counts
    if whole.average is not None:  # other processors round the weights in other ways
        torch.testing.assert_close(run.average, whole.average, rtol=1e-4, atol=1e-5)


@for_trainers("moments")
def test_moments_come_once(name: str, saved: Saved) -> None:
    plain = plain_loop(LENGTHS[name], SAVED["accumulated"])
    assert saved.runs[name, "accumulated"].moments == plain.moments and len(plain.moments) > 3


@for_trainers("average")
def test_the_average_of_the_weights_is_evaluated(name: str, saved: Saved) -> None:
    """It is stepped on the clock, and the weights are back after each evaluation."""
    run = saved.runs[name, "averaged"]
    expected = averages(run.after)
    torch.testing.assert_close(run.average.double(), expected[-1], rtol=0, atol=ROUNDED)
    torch.testing.assert_close([x.double() for x in run.evaluated], expected[3::4], rtol=0, atol=ROUNDED)
    assert all(torch.equal(before, after) for before, after in zip(run.before[1:], run.after))


@for_trainers()
def test_what_a_step_runs_with_is_logged(name: str, saved: Saved) -> None:
    run, first = saved.runs[name, "accumulated"], int(name not in able("first log"))
    logs = [{key: value for key, value in row.items() if "/" in key} for row in run.logs]
    assert logs[first:] == [
        {f"{key}/{tag}": group[key] for tag, group in zip(GROUPS, values) for key in ("lr", "weight_decay")}
        for values in run.values[first:]
    ]


@for_trainers("no logs")
def test_nothing_is_logged(name: str, tmp_path: Path) -> None:
    run = train(name, tmp_path, Task((LinearScheduler(),), "3ba", log=False))
    assert len(run.values) == 3 and not any("/" in name for row in run.logs for name in row)


@for_trainers()
def test_another_batch_size(name: str, saved: Saved, tmp_path: Path) -> None:
    """A time in tokens keeps its meaning."""
    task = replace(SAVED["averaged"], batch_size=1, entries=(COSINE, Binding(COSINE, "weight_decay")), save_after=[8])
    train(name, tmp_path, replace(task, batch_size=MICROBATCH))
    rest = train(name, tmp_path, replace(task, load=(tmp_path, 8)))
    first = split(range(len(LENGTHS[name])), MICROBATCH)[:8]
    plain = plain_loop(LENGTHS[name], task, [*first, *rest.seen])
    assert rest.values[: len(plain.values) - 8] == plain.values[8:]


# What is not as it was saved, and the error.
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "schedules": ({"entries": (LinearScheduler(), ENTRIES[1])}, "different"),
    "fewer": ({"entries": (COSINE,)}, "2 schedules|state is of"),
    "new keys": ({"entries": (*ENTRIES, Binding(DECAY, "betas[0]"))}, "2 schedules|state is of"),
    "length of checkpoints": ({"max_duration": "500tok"}, "400tok.*\n.*500tok.*\n.* saved, .* now"),
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for what in OTHERS for name in able(what)])
def test_a_checkpoint_of_other_schedules(name: str, what: str, saved: Saved, tmp_path: Path) -> None:
    """It is refused, or the run continues with its own schedules at the saved time."""
    changes, words = OTHERS[what]
    task = replace(SAVED["accumulated"], **changes, load=saved.load(name, "accumulated"))
    with pytest.raises(ValueError, match=words):
        train(name, tmp_path, task)
    run, plain = train(name, tmp_path, replace(task, on_change="new")), plain_loop(LENGTHS[name], task)
    first = int(name not in able("loaded last"))
    for key in KEYS[: len(task.entries)]:
        assert run.of(key)[first:] == plain.of(key)[8 + first :]


@for_trainers("takes over")
def test_a_run_without_schedules_continues_with_schedules(name: str, tmp_path: Path) -> None:
    before = Task((), None, save_after=[15])
    train(name, tmp_path, before)
    task = replace(before, entries=(LinearScheduler(t_max="1.5ep"), ENTRIES[1]), load=(tmp_path, 15))
    if name in able("refuses to take over"):
        with pytest.raises(ValueError, match='on_change="new"'):
            train(name, tmp_path, task)
    run = train(name, tmp_path, replace(task, on_change="new"))
    assert run.values == plain_loop(LENGTHS[name], task).values[15:]


@for_trainers("average")
def test_a_checkpoint_without_an_average(name: str, saved: Saved, tmp_path: Path) -> None:
    """It is refused, or the average begins with its weights."""
    average = partial(optim.WeightAverage, half_life="3ba")
    task = replace(SAVED["accumulated"], average=average, load=saved.load(name, "accumulated"))
    with pytest.raises(ValueError, match="has no average"):
        train(name, tmp_path, task)
    run = train(name, tmp_path, replace(task, on_change="new"))
    expected = averages([saved.runs[name, "accumulated"].after[7], *run.after], copied=1)
    torch.testing.assert_close(run.average.double(), expected[-1], rtol=0, atol=ROUNDED)


# Batches that grow

GROWING = Task((LinearScheduler(alpha_f=0.1),), "80sp", sizes=BatchSizeSchedule("0sp:2 10sp:4 40sp:8"))


def growing_batches(**options: Any) -> list[list[int]]:
    """The samples of each step, on this rank."""
    return batches_of_loop(range(len(UNEVEN)), GROWING.sizes, Clock(GROWING.max_duration, **options))


@for_trainers("growing batches")
def test_batches_grow(name: str, tmp_path: Path) -> None:
    """Each step has the samples of a plain loop, also after any resume."""
    batches = growing_batches()
    whole = train(name, tmp_path, replace(GROWING, save_after=range(len(batches))))
    assert whole.seen == batches and {len(batch) for batch in batches} >= {2, 4, 8}
    for step in range(1, len(batches)):
        rest = train(name, tmp_path / "rest", replace(GROWING, load=(tmp_path, step)))
        assert rest.seen == batches[step:], step
        assert torch.equal(rest.after[-1], whole.after[-1])


# What is refused

UNCOUNTED = LinearScheduler(t_max="99tok")
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no schedule": ({"entries": ("cosine",)}, TypeError, "schedule='cosine': it is not a schedule"),
    "two of a key": ({"entries": (COSINE, Binding(DECAY, "lr", "head"))}, ValueError, "key='lr': .* was created later"),
    "no such key": ({"entries": (Binding(DECAY, "momentum"),)}, ValueError, "momentum"),
    "no such tag": ({"entries": (Binding(DECAY, "lr", "body"),)}, ValueError, "tags='body': .*'embedding', 'head'"),
    "evaluation": ({"evaluate_averaged": True}, ValueError, "evaluate_averaged=True: there is no average to evaluate"),
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for what in REFUSED for name in able(what)])
def test_refused(name: str, what: str, tmp_path: Path) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        train(name, tmp_path, replace(Task(), **changes))


# What a trainer asks for if nobody counts the tokens.
ADVICE = {
    "transformers": "include_num_input_tokens_seen='all'.*count=",
    "lightning": r"Pass schedule\(\.\.\., count=lambda batch: {'tokens': \.\.\.}",
    "accelerate": r"this batch has no count. Call step\(tokens=\.\.\.\)",
    "torchtitan": "without tokens_per_sample",
    "composer": r"nobody has counted its tokens\. .* pass DataSpec\(loader, get_num_tokens_in_batch=",
}
IN_TOKENS: dict[str, dict[str, Any]] = {
    "schedule": {"entries": (LinearScheduler(t_max="99tok"),)},
    "length": {"max_duration": "99tok"},
    "average": {"average": partial(optim.WeightAverage, half_life="99tok")},
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for what in IN_TOKENS for name in able(what)])
def test_tokens_that_nobody_counts(name: str, what: str, tmp_path: Path) -> None:
    task = Task((LinearScheduler(),), "9ba", counts_tokens=False)
    assert len(train(name, tmp_path, task).values) == 9
    with pytest.raises(ValueError, match=ADVICE[name]):
        train(name, tmp_path, replace(task, **IN_TOKENS[what]))


# In processes of their own


def resume_all(folder: Path) -> None:
    """Resume each run that was saved, here and by each earlier version."""
    rest = {}
    for name in ROWS:
        for kind, task in SAVED.items():
            rest[name, kind] = resume(name, task, folder / name / kind)
        for version in VERSIONS:  # a copy, since trainers write beside a checkpoint
            kept = shutil.copytree(STATES / version / name, folder / version / name)
            rest[name, version] = resume(name, SAVED[kept_kind(name)], kept)
    torch.save(rest, folder / "resumed.pt")


def resume(name: str, task: Task, saved: Path) -> Run:
    """The rest of a run, after its checkpoint in this folder."""
    run = train(
        name, saved.with_name(f"rest of {saved.name}"), replace(task, save_after=(), load=(saved, task.save_after[0]))
    )
    return replace(run, trainer=None)


def values_are_of_all_ranks(name: str, folder: Path) -> None:
    """Ranks have tokens of their own. torchtitan's conversion factors are of all ranks."""
    task = Task(max_duration="200tok", accumulate=2, batch_size=1, moment=lambda clock: clock.every("60tok"))
    run = train(name, folder, task)
    microbatches = [list(chain(*parts)) for parts in zip(*of_all_ranks(run.seen))]
    batches = [list(chain(*batch)) for batch in split(microbatches, task.accumulate)]
    plain = plain_loop(LENGTHS[name], task, None if name == "torchtitan" else batches)
    assert (run.values, run.counts) == (plain.values, plain.counts) and len(run.values) > 5
    assert run.moments == (plain.moments if name in able("moments") else [])
    assert of_all_ranks(run.values) == [run.values] * 2


def seconds_are_of_the_first_rank(name: str, folder: Path) -> None:
    run = train(name, folder, Task((LinearScheduler(t_max="999sec"),), "6ba"))
    assert of_all_ranks(run.values) == [run.values] * 2 and len(set(run.of("lr"))) == 6


def averages_are_of_the_first_rank(name: str, folder: Path) -> None:
    """In seconds, next to a schedule in batches."""
    average = partial(optim.WeightAverage, half_life="0.1sec")
    run = train(name, folder, Task((LinearScheduler(),), "6ba", average=average))
    assert of_all_ranks(run.average.tolist()) == [run.average.tolist()] * 2
    assert not torch.equal(run.average, run.after[-1])


def batches_grow_on_all_ranks(name: str, folder: Path) -> None:
    batches = growing_batches(process_group=True)
    whole = train(name, folder, replace(GROWING, save_after=range(len(batches))))
    assert whole.seen == batches and {len(batch) for batch in batches} == {1, 2, 4}
    parts = zip(*of_all_ranks(whole.seen))  # of the batches
    assert [*chain(*chain(*parts))][:36] == [*range(36)]  # ranks cannot share the last of the 37 samples
    for step in (1, 5, 9, 10, 14):
        rest = train(name, folder / "rest", replace(GROWING, load=(folder, step)))
        assert rest.seen == batches[step:], step
        assert torch.equal(rest.after[-1], whole.after[-1])


ON_RANKS = {
    "values": values_are_of_all_ranks,
    "seconds": seconds_are_of_the_first_rank,
    "average": averages_are_of_the_first_rank,
    "growing batches": batches_grow_on_all_ranks,
}
CHECKS = [(name, what) for what in ON_RANKS for name in able(what)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: Any) -> tuple[dict[str, str], str]:
    return launch(Path(__file__), 2, tmp_path_factory.mktemp("ranks"), 240, NODE_RANK="0")  # which Composer reads


@pytest.mark.parametrize(("name", "what"), CHECKS)
def test_two_ranks(name: str, what: str, two_ranks: Any) -> None:
    results, output = two_ranks
    assert results.get(f"{name} {what}", output) == ""


def check_ranks(folder: Path) -> None:
    dist.init_process_group("gloo")
    report, shared = Report(folder), of_all_ranks(folder)[0]
    for name, what in CHECKS:
        report.check(f"{name} {what}", partial(ON_RANKS[what], name, shared / name / what))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    check_ranks(Path(sys.argv[1])) if "RANK" in os.environ else resume_all(Path(sys.argv[1]))
