"""The callback in the real Trainer: the value of every batch, in runs of all kinds, and what it refuses."""

from __future__ import annotations

import copy
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer import Callback, DataSpec, Event, Trainer
from composer.utils.checkpoint import save_checkpoint

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.scheduler import Scheduler
from optim.weight_decay_scheduler import ConstantWD, CosineDecayWD, LinearWD, PiecewiseConstantWD
from tests.integration import training
from tests.integration.training import (
    At,
    Crash,
    NextByte,
    Record,
    Stream,
    assert_goes_on,
    data,
    die,
    finish,
    in_another_process,
    split,
    windows,
)
from timesched import (
    BatchSizeSchedule,
    Clock,
    CosineAnnealingWithWarmupScheduler,
    HalfLife,
    LinearScheduler,
    MultiStepScheduler,
    bind,
)
from timesched.integrations.composer import Binding, Schedules

BATCHES = 20  # two epochs of 8 batches, and a half
EMBEDDING, MATRIX, BIAS = range(3)  # the groups
TAGS: tuple[Any, ...] = ({"embedding"}, {"head", "matrix"}, None)  # of the three groups
LR, WEIGHT_DECAY, BETA = 0.1, 0.25, 0.9
MOMENTS = (3, Event.BATCH_CHECKPOINT), (8, Event.EPOCH_CHECKPOINT), (13, Event.BATCH_CHECKPOINT)
BOTH = pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW])
HALVED = [1.0 - 0.5 * k / BATCHES for k in range(BATCHES)]  # the values of `linear`


def linear(state: Any, ssr: float = 1.0) -> float:
    return 1.0 - 0.5 * state.timestamp.batch.value / (BATCHES * ssr)


class Beta(Scheduler):
    """A key of its own, in closed form."""

    param_group_key = "betas[1]"

    def _get_closed_form(self) -> torch.Tensor:
        return 1.0 - 1.0 / (self.last_epoch.double() + 10.0)


def sequence(optimizer: Any, clock: Any) -> Any:
    """Warmup and decay in closed form, with times; their parent is what the Trainer steps."""
    children = [LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.01, 15)]
    return SequentialLR(optimizer, children, ["0.25dur"], clock=clock)


def counted(optimizer: Any, tags: Any = None) -> LinearWD:
    """What counts its own steps."""
    return LinearWD(optimizer, 1.0, 0.0, 20, param_group_tags=tags)


def torchs(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


CASES: dict[str, list[Any]] = {
    # of timesched: tagged learning rates, weight decay, and the first beta as a product with a function
    "bindings": [
        Binding(CosineAnnealingWithWarmupScheduler("4ba", "1dur", alpha_f=0.1), "lr", "head"),
        Binding(LinearScheduler(1.0, 0.5, "1000tok"), "lr", ["embedding", None]),
        Binding(MultiStepScheduler(["1ep", "0.8dur"], gamma=0.5), "weight_decay", "matrix"),
        Binding([LinearScheduler(0.9, 1.0, "40sp"), linear], "betas[0]"),
    ],
    # in closed form: some count their steps, some follow the clock, and one is of a user's own
    "closed": [
        sequence,
        partial(CosineDecayWD, initial_val=0.3, end_val=0.1, total_iters="1dur", param_group_tags="matrix"),
        lambda optimizer: PiecewiseConstantWD(optimizer, [0.2, 0.1], [7], param_group_tags=["embedding", None]),
        Beta,
    ],
    "mixed": [
        partial(ConstantWD, val=0.05, param_group_tags=[None]),
        lambda optimizer, run: bind(linear, optimizer, run, key="betas[0]"),
        torchs,
    ],
}


def make_optimizer(kind: Any = torch.optim.AdamW) -> tuple[NextByte, Any]:
    """The small model, and an optimizer of it in three groups."""
    model = NextByte()
    parts = model.embedding.weight, model.head.weight, model.head.bias
    groups = [{"params": [part]} | ({"tags": tags} if tags else {}) for part, tags in zip(parts, TAGS, strict=True)]
    return model, kind(groups, lr=LR, weight_decay=WEIGHT_DECAY, betas=(BETA, 0.999))


def make_trainer(callbacks: list[Any], kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Trainer, Record]:
    """A Trainer of the small model, with an optimizer of three groups unless one is given, and its record."""
    settings: dict[str, Any] = {"max_duration": f"{BATCHES}ba"}
    if "optimizers" not in options:
        settings["model"], settings["optimizers"] = make_optimizer(kind)
    return training.make_trainer(callbacks, **(settings | options))


def done(callback: Schedules, **options: Any) -> Record:
    """The record of a run with the callback to its end."""
    trainer, record = make_trainer([callback], **options)
    finish(trainer, record)
    return record


def run(name: str, *callbacks: Callback, **options: Any) -> dict[str, Any]:
    """A run of one of the cases, with torch's optimizer or, where the name says so, with ours."""
    case, _, ours = name.partition("-")
    kind = optim.AdamW if ours else torch.optim.AdamW
    return finish(*make_trainer([Schedules(*CASES[case]), *callbacks], kind, run_name=name, **options))


def saving(folder: Path) -> dict[str, Any]:
    """The options that save a run inside an epoch, at the end of one, and inside a later one."""
    return training.saving(folder, *MOMENTS)


def falling(start: float, first: int, last: int, steps: int = BATCHES) -> Any:
    """A line from `start` to 0 in so many steps, from step `first` up to `last`."""
    return pytest.approx([start * (1 - k / steps) for k in range(first, last)], rel=4e-16, abs=1e-16)


LINE = LinearScheduler()
DECAY = partial(LinearWD, initial_val=0.2, end_val=0.0)
RATE = partial(CosineDecayLR, initial_learning_rate=0.1, end_learning_rate=0.0, total_iters=20)


@BOTH
def test_schedulers_in_closed_form(kind: Any) -> None:
    """By hand, to the rounding of a cosine: step k is what batch k runs with, whether counted or read off the clock."""
    record = done(Schedules(*CASES["closed"]), kind=kind)
    decay = [0.1 + 0.2 * (1 + math.cos(math.pi * k / 20)) / 2 for k in range(BATCHES)]
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * k / 15)) / 2 for k in range(15)]
    betas = [1 - 1 / (k + 10) for k in range(BATCHES)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, *cosine], rel=0, abs=1e-15)
        assert record.of("betas[1]", group) == pytest.approx(betas, rel=1e-15)
    assert record.of("weight_decay", MATRIX) == pytest.approx(decay, rel=1e-14)
    assert record.of("weight_decay", BIAS) == record.of("weight_decay", EMBEDDING) == [0.2] * 7 + [0.1] * 13


def test_the_ratio() -> None:
    """A run that is half as long: times in batches shrink with it, also those of a closed form that has the clock.

    Composer refuses the ratio without `schedulers=`: the length is scaled already, as docs/trainers/composer.md says.
    """
    entries = Binding(linear, "betas[0]"), partial(DECAY, total_iters="20ba")
    with pytest.raises(ValueError, match="scale_schedule_ratio"):
        make_trainer([Schedules(*entries, ssr=0.5)], max_duration="20ba", scale_schedule_ratio=0.5)
    record = done(Schedules(*entries, ssr=0.5), max_duration="10ba")
    assert record.of("betas[0]", BIAS) == [BETA * (1.0 - 0.5 * k / 10) for k in range(10)]
    assert record.of("weight_decay", BIAS) == falling(0.2, 0, 10, 10)


def test_a_checkpoint_at_the_end_of_an_epoch_resumes_with_another_batch_size(tmp_path: Path) -> None:
    """Within an epoch, Composer skips as many batches as were done, whatever their size: samples are seen again."""
    rows, line = windows()[:24], Binding(LINE, "weight_decay")
    options = training.saving(tmp_path, (3, Event.BATCH_CHECKPOINT), (6, Event.EPOCH_CHECKPOINT))
    finish(*make_trainer([Schedules(line)], max_duration="2ep", train_dataloader=data(rows, 4), **options))
    values = {}
    for batch, size, samples in ((6, 8, 48), (3, 2, 54)):
        options = {"train_dataloader": data(rows, size), "load_path": str(tmp_path / f"{batch}.pt")}
        trainer, record = make_trainer([Schedules(line)], max_duration="2ep", **options)
        finish(trainer, record)
        assert trainer.state.timestamp.sample == samples
        values[batch] = record.of("weight_decay", BIAS)
    assert values[6] == pytest.approx([WEIGHT_DECAY * left for left in (1 / 2, 1 / 3, 1 / 6)], rel=1e-15)


def test_copies_of_the_clock() -> None:
    callback = Schedules(Binding(LINE, "weight_decay"), ssr=0.5, tokens_per_sample=8)
    make_trainer([callback])
    clock = callback.clock
    for copied in (copy.copy(clock), copy.deepcopy(clock, {id(clock._state): clock._state})):
        assert (copied.ssr, copied.max_duration, copied.timestamp) == (0.5, "20ba", clock.timestamp)
    with pytest.raises(AttributeError, match="_state"):
        _ = object.__new__(type(clock)).timestamp  # as in the first moment of unpickling


def test_tokens_that_nobody_counts() -> None:
    """A scheduler in closed form that reads them is refused. One that counts its own steps needs none."""
    trainers = []
    for total_iters in ("4ba", "400tok"):
        uncounted = DataSpec(data().dataloader, split_batch=split)
        schedules = Schedules(partial(RATE, total_iters=total_iters), counted)
        trainers.append(make_trainer([schedules], max_duration="4ba", train_dataloader=uncounted))
    finish(*trainers[0])
    with pytest.raises(ValueError, match=r"nobody has counted its tokens\. .* pass DataSpec\("):
        trainers[1][0].fit()


def test_half_lives() -> None:
    """The callback's conversion factors make steps of tokens. In `schedulers=`, half-lives are refused."""
    tokens = Binding(HalfLife("1024tok"), "betas[1]")
    record = done(Schedules(tokens, samples_per_batch=4, tokens_per_sample=128))
    assert record.of("betas[1]", MATRIX) == [0.5**0.5] * BATCHES
    sizes = BatchSizeSchedule({"0dur": 4, "0.5dur": 8})
    record = done(Schedules(tokens, samples_per_batch=sizes, tokens_per_sample=128))
    assert record.of("betas[1]", MATRIX) == [0.5**0.5] * (BATCHES // 2) + [0.5] * (BATCHES // 2)
    with pytest.raises(TypeError, match="this schedule returns values"):
        make_trainer([], schedulers=HalfLife("4ba"))[0].fit()


def test_one_step_for_every_batch() -> None:
    """Whatever the microbatches, and how often the Trainer steps the schedulers of its own; made before or here."""
    model, optimizer = make_optimizer()
    theirs, made = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), counted(optimizer, [None])
    entries = Binding(LINE, "weight_decay", "matrix"), partial(counted, tags="embedding"), made
    options = {"model": model, "optimizers": optimizer, "schedulers": theirs, "device_train_microbatch_size": 2}
    record = done(Schedules(*entries), **options)
    assert record.of("lr", MATRIX) == [0.1] * 8 + [0.05] * 8 + [0.025] * 4
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * (1 - k / 20) for k in range(BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == record.of("weight_decay", BIAS) == falling(1.0, 0, BATCHES)
    assert made.last_epoch == BATCHES


def test_several_fits(tmp_path: Path) -> None:
    """Each has the length that it is given; one that sets the time back sets back what follows the clock."""
    entries = Binding(LINE, "weight_decay", "matrix"), lambda on: LinearWD(on, 1.0, 0.0, 40, param_group_tags=[None])
    trainer, record = make_trainer([Schedules(*entries)], max_duration=None)
    assert trainer.state.optimizers[0].param_groups[MATRIX]["weight_decay"] == WEIGHT_DECAY
    trainer.fit(duration="10ba")
    trainer.fit(duration="10ba")
    trainer.save_checkpoint(str(tmp_path / "20.pt"))
    finish(trainer, record, duration="10ba", reset_time=True)
    first, second = [1 - k / 10 for k in range(10)], [1 - k / 20 for k in range(10, 20)]
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * x for x in first + second + first]
    assert record.of("weight_decay", BIAS) == falling(1.0, 0, 30, 40)
    # The same from a checkpoint, by way of a Trainer that knows another length when it loads and saves without a fit.
    again, _ = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "20.pt"))
    again.save_checkpoint(str(tmp_path / "same.pt"))
    again, more = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "same.pt"))
    finish(again, more, duration="10ba", reset_time=True)
    assert more.rows == record.rows[20:]


def test_epochs_whose_length_is_not_known() -> None:
    """The count of epochs moves after the end of a batch, and the next batch has the value of it."""
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    record = done(Schedules(Binding(schedule, "weight_decay")), train_dataloader=data(Stream()))
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


def test_one_callback_for_one_trainer_after_another() -> None:
    """Also one that only evaluates."""
    callback = Schedules(*CASES["bindings"])
    trainer, _ = make_trainer([callback], train_dataloader=None, max_duration=None, eval_dataloader=data())
    trainer.eval()
    trainer.close()
    rows = [finish(*make_trainer([callback]))["rows"] for _ in range(2)]
    assert rows[0] == rows[1]


def test_a_function_of_an_optimizer_and_any_others_gets_the_optimizer_alone() -> None:
    received = []

    def make(optimizer: Any, *others: Any) -> Any:
        received.append(others)
        return RATE(optimizer)

    assert done(Schedules(make), max_duration="2ba").of("lr", BIAS)[0] == 0.1
    assert received == [()]


# What it refuses


def child(optimizer: Any) -> LinearLR:
    """The scheduler of another one, which owns it."""
    made = LinearLR(optimizer, 0.0, 0.1, 5)
    SequentialLR(optimizer, [made, RATE(optimizer)], [5])
    return made


DECAY_20 = partial(DECAY, total_iters=20)
COSINE = composer.optim.CosineAnnealingScheduler()
# What is given to the callback, options of the Trainer, and the error.
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda: [LINE], {}, TypeError, r"LinearScheduler\(.* has no key. Pass a Binding"),
    (lambda: ["weight_decay"], {}, TypeError, "Schedules.entries: 'weight_decay' cannot be"),
    (lambda: [lambda optimizer: 3], {}, TypeError, "returned 3: this is not a scheduler"),
    (lambda: [], {"ssr": -1.0}, ValueError, r"ssr.*-1"),
    (lambda: [], {"callbacks": [Schedules()]}, ValueError, "Schedules: there are two such callbacks"),
    # two schedulers on one number
    (
        lambda: [DECAY_20, Binding(linear, "weight_decay", "head")],
        {},
        ValueError,
        "'weight_decay': .* created later",
    ),
    (lambda: [child], {}, ValueError, "since SequentialLR.* was created later"),
    (lambda: [Binding(linear, "lr", "head")], {"schedulers": LINE}, ValueError, r"'lr' of .* 1: two schedulers set it"),
    (lambda: [RATE], {"schedulers": COSINE}, ValueError, r"'lr' of .* 0: two .* of schedulers="),
    # schedulers that cannot run in this Trainer
    (lambda: [counted(make_optimizer()[1])], {}, ValueError, "LinearWD: its optimizer is not the Trainer"),
    (lambda: [partial(DECAY_20, clock=Clock("20ba"))], {}, ValueError, r"LinearWD: it follows a timesched\.Clock"),
    (lambda: [lambda on, clock: bind(linear, on, Clock("20ba"))], {}, ValueError, "BoundLR: it follows a"),
    (lambda: [lambda on: sequence(on, Clock("20ba"))], {}, ValueError, r"SequentialLR: it follows a timesched"),
]


@pytest.mark.parametrize(("entries", "options", "error", "said"), REFUSED)
def test_refused(entries: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    model, optimizer = make_optimizer()
    own = {"ssr": options["ssr"]} if "ssr" in options else {}
    trainers = {key: value for key, value in options.items() if key not in ("ssr", "callbacks")}
    with pytest.raises(error, match=said):
        mine = [Schedules(*entries(), **own), *options.get("callbacks", [])]
        make_trainer(mine, model=model, optimizers=optimizer, **trainers)


@pytest.mark.parametrize("length", [None, "4ba"])
def test_schedulers_given_to_a_fit(length: str | None) -> None:
    """They are refused beside the callback's, and dropped as the error says."""
    trainer, record = make_trainer([Schedules(Binding(LINE, "lr"))], max_duration=length)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"trainer\.state\.schedulers = \[\] drops"):
            trainer.fit(duration=None if length else "4ba", schedulers=LINE)
    trainer.state.schedulers = []
    finish(trainer, record, duration=None if length else "4ba")
    assert record.of("lr", MATRIX) == falling(LR, 0, 4, 4)


def test_a_scheduler_of_other_tags_may_be_the_trainers() -> None:
    model, optimizer = make_optimizer()
    other = RATE(optimizer, param_group_tags=["embedding", None])
    options = {"model": model, "optimizers": optimizer, "schedulers": other, "step_schedulers_every_batch": True}
    record = done(Schedules(Binding(linear, "lr", "head")), **options)
    assert record.of("lr", MATRIX) == [LR * half for half in HALVED]
    cosine = [0.1 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(BATCHES)]
    assert record.of("lr", EMBEDDING) == pytest.approx(cosine, rel=1e-14)


# Where a run goes on: from a checkpoint, anew, after an error, on the same optimizer


FALLING = Binding(LinearScheduler(), "lr")
IGNORED = {"load_ignore_keys": ["state/callbacks/Schedules"]}
FIRST = pytest.mark.parametrize("first", [True, False])


def test_every_case_resumed_in_another_process(tmp_path: Path) -> None:
    """From every checkpoint, and after a crash: saved every five batches, dead at the twelfth, by autoresume."""
    names = [*CASES, "closed-optim"]
    full = {name: run(name, **saving(tmp_path / name)) for name in names}
    crashed = "closed-optim"
    with pytest.raises(Crash):
        run(crashed, At(12, die), save_folder=str(tmp_path / "crashed" / crashed), save_interval="5ba")
    resumed = in_another_process("tests.integration.test_callback", tmp_path)
    assert_goes_on(full[crashed], resumed.pop(f"crashed/{crashed}"), 10)
    assert len(resumed) == 3 * len(names)
    for name, after in resumed.items():
        case, batch = name.split("/")
        assert_goes_on(full[case], after, int(batch), name)
    # What the callback saved is plain.
    saved = torch.load(tmp_path / "closed" / "8.pt", weights_only=False)["state"]["callbacks"]["Schedules"]
    torch.save(saved, tmp_path / "callback.pt")
    assert torch.load(tmp_path / "callback.pt", weights_only=True) == saved
    assert (tmp_path / "callback.pt").stat().st_size < 8192


def steps(values: list[float]) -> Any:
    return lambda optimizer: PiecewiseConstantWD(optimizer, values, [4, 12])


SAVED = [Binding([LinearScheduler(0.5, 1.0, "1dur"), linear], "betas[0]", "head"), steps([0.3, 0.2, 0.1]), torchs]
SAME = Binding([LinearScheduler(0.5, 1, "1.0dur"), linear], "betas[0]", ["head"])
OTHERS: list[tuple[list[Any], dict[str, Any], str]] = [
    (
        [lambda on, run: bind(linear, on, run, "betas[0]", "head"), *SAVED[1:]],
        {},
        r"(?s)saved \[Linear.*now   linear.*load_ig",
    ),
    ([SAVED[0], steps([0.3, 0.1, 0.2]), torchs], {}, r"(?s)Schedule 1 .*\[0\.2, .* saved, \[0\.1, "),
    ([*SAVED[:2], lambda on: torch.optim.lr_scheduler.ConstantLR(on)], {}, "Schedule 2 .*'StepLR'.*'ConstantLR'"),
    (SAVED, {"ssr": 2.0}, r"'ssr': 1\.0.* here it is .*'ssr': 2\.0"),
    ([], {}, "has 3 schedules, and here are 0"),
]


def test_a_checkpoint_of_other_schedules_is_refused(tmp_path: Path) -> None:
    path = {"load_path": str(tmp_path / "8.pt")}
    before = finish(*make_trainer([Schedules(*SAVED)], **saving(tmp_path)))
    for entries, options, said in OTHERS:
        with pytest.raises(ValueError, match=said):
            make_trainer([Schedules(*entries, **options)], **path)
    # The same in other words goes on; so does one that counts its steps and has the saved value.
    assert_goes_on(before, finish(*make_trainer([Schedules(SAME, *SAVED[1:])], **path)), 8)
    assert done(Schedules(SAME, steps([0.9, 0.2, 0.5]), torchs), **path).of("weight_decay") == [0.2] * 4 + [0.5] * 8
    finish(*make_trainer([Schedules()], **saving(tmp_path / "none")))
    with pytest.raises(ValueError, match="has 0 schedules, and here are 1"):
        make_trainer([Schedules(FALLING)], load_path=str(tmp_path / "none" / "8.pt"))


def test_a_refused_checkpoint_changes_no_schedule(tmp_path: Path) -> None:
    """Also none before the schedule whose state does not fit, and not the average."""
    entries = [counted, Binding(LINE, "lr"), Binding(LINE, "betas[0]")]
    average = partial(optim.WeightAverage, half_life="3ba")
    finish(*make_trainer([Schedules(*entries, average=average)], **saving(tmp_path)))
    callback = Schedules(*entries[:2], Binding(LinearScheduler(0.5), "betas[0]"), average=average)
    model, optimizer = make_optimizer()
    initial = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="Schedule 2 of the checkpoint: .*different schedule"):
        make_trainer([callback], load_path=str(tmp_path / "8.pt"), model=model, optimizers=optimizer)
    assert [scheduler.last_epoch for scheduler in callback.schedulers] == [0, 0, 0]
    assert callback.average is not None and not torch.equal(next(model.parameters()), initial[0])
    with callback.average.swapped(model):
        assert all(map(torch.equal, model.parameters(), initial))


@BOTH
@pytest.mark.filterwarnings("ignore:Schedules is not in the state_dict:UserWarning")
def test_a_run_begins_anew(kind: Any, tmp_path: Path) -> None:
    """From the initial values of the new optimizer, whatever those in the checkpoint are; Composer warns."""
    finish(*make_trainer([Schedules(Binding(LinearScheduler(0.5), "lr"), *SAVED[:2])], kind, **saving(tmp_path)))
    path = {"load_path": str(tmp_path / "8.pt"), "kind": kind, **IGNORED}
    entries = [
        Binding(LinearScheduler(), "lr", "matrix"),
        lambda optimizer, clock: bind(LinearScheduler(), optimizer, clock, "lr", ["embedding", None]),
        Binding(LinearScheduler(), "betas[0]"),
        partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="1dur", param_group_tags="embedding"),
        partial(counted, tags=[None]),
    ]
    record = done(Schedules(*entries), **path)
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == falling(LR, 8, 20)
        assert record.of("betas[0]", group) == falling(BETA, 8, 20)
    assert record.of("weight_decay", MATRIX) == [0.2] * 12  # which nobody sets
    cosine = [0.2 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(8, BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
    assert record.of("weight_decay", BIAS) == falling(1.0, 0, 12)  # what counts its steps begins at the first
    # Schedulers of torch multiply what is there, which is not to be what was loaded.
    assert done(Schedules(torchs), **path).of("lr", MATRIX) == [LR] * 4 + [LR / 2] * 4 + [LR / 4] * 4


@pytest.mark.parametrize("more", [{}, IGNORED])
def test_a_load_before_the_length_is_known(more: Any, tmp_path: Path) -> None:
    """Refused when it fits, with what to write: the initial values would be those of the checkpoint."""
    finish(*make_trainer([Schedules(FALLING)], **saving(tmp_path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Composer's, of what is ignored
        trainer, _ = make_trainer([Schedules(FALLING)], max_duration=None, load_path=str(tmp_path / "8.pt"), **more)
    with pytest.raises(ValueError, match=r"Trainer\(max_duration=\.\.\.\)"):
        trainer.fit(duration="12ba")
    trainer.close()


@FIRST
def test_an_error_before_the_turn_of_the_callback(first: bool) -> None:
    errors = [KeyError("boom")]

    def fail_once(state: Any) -> None:
        if errors:
            raise errors.pop()

    callbacks = [At(5, fail_once), Schedules(counted, torchs, Binding(linear, "betas[0]"))]
    trainer, record = make_trainer(callbacks if first else callbacks[::-1])
    with pytest.raises(KeyError, match="boom"):
        trainer.fit()
    finish(trainer, record)
    assert len(record.rows) == BATCHES
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
    assert record.of("lr", MATRIX) == [LR / 2 ** (k // 4) for k in range(BATCHES)]
    assert record.of("betas[0]", MATRIX) == [BETA * half for half in HALVED]


@FIRST
def test_a_checkpoint_saved_before_the_turn_of_the_callback(first: bool, tmp_path: Path) -> None:
    saver = At(5, lambda state: save_checkpoint(state, str(tmp_path / "5.pt")))
    callbacks, path = [saver, Schedules(counted)], {"load_path": str(tmp_path / "5.pt")}
    before = finish(*make_trainer(callbacks if first else callbacks[::-1]))
    assert_goes_on(before, finish(*make_trainer([Schedules(counted)], **path)), 5)
    # What counts its steps goes on when the time is set back, and misses none.
    trainer, record = make_trainer([Schedules(counted)], **path)
    trainer.fit(duration="6ba", reset_time=True)
    finish(trainer, record, duration="6ba", reset_time=True)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 5, 17)


@BOTH
def test_a_new_trainer_takes_over(kind: Any) -> None:
    """As when a cell of a notebook runs again; the one before says so when it is fitted on."""
    model, optimizer = make_optimizer(kind)
    options: dict[str, Any] = {"model": model, "optimizers": optimizer}
    entries = [Binding(LinearScheduler(), "lr", "matrix"), counted]
    former, _ = make_trainer([Schedules(*entries)], **options)
    former.fit(duration="5ba")
    # One that is refused takes nothing over.
    with pytest.raises(ValueError, match="tags='body': no parameter group has"):
        make_trainer([Schedules(Binding(linear, "lr", "body"))], **options)
    former.fit(duration="5ba")
    # One that fails later lets go, though the traceback holds on to it, as sys.last_value does in a notebook.
    with pytest.raises(FileNotFoundError) as caught:
        make_trainer([Schedules(*entries)], load_path="nowhere.pt", **options)
    trainer, record = make_trainer([Schedules(*entries)], **options)
    assert caught.tb is not None
    with pytest.raises(ValueError, match="was created later"):
        former.fit(duration="5ba")
    former.close()  # lets go of nothing that is another's
    finish(trainer, record)
    assert record.of("lr", MATRIX) == falling(LR, 0, BATCHES)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
