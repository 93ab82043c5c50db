"""What people write first, and wrongly: each error names the value, the rule and the fix, and nothing is changed."""

import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.building import sgd
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.findings import FindingWarning
from timesched.integrations.common import CountingSchedulers, Schedulers, check_average, make_average, read_counts
from timesched.testing import check_schedule_laws

CLOCK = Clock("4ba")
UNKNOWN = "samples_per_batch. Pass samples_per_batch=... to the Clock, the Horizon or the adapter"
WRONG = [
    ("12 has no unit. Pass a string with one of iter,", lambda: Clock(12)),
    ("12 has no unit. Pass a string with one of iter,", lambda: Horizon(12)),
    ("12 has no unit. Pass a string with one of iter,", lambda: Clock("4ba").extend(12)),
    (
        "'500M' may mean minutes or millions. Write '500m', or a unit, as in '500Mtok'.",
        lambda: Clock("500M"),
    ),
    ("'500mtok' is not a time", lambda: Clock("500mtok")),  # nobody trains on half a token
    ("1000.1tok is not a whole count", lambda: Clock("1.0001Ktok")),
    ("the threshold '500M' has no unit. Write '500Mtok', or pass", lambda: BatchSizeSchedule({"0tok": 8, "500M": 16})),
    ("0.1 has no unit. Pass a string with one of iter,", lambda: WarmupStableDecayScheduler("10ba", t_decay=0.1)),
    (
        f"3ba cannot be converted to sp without {UNKNOWN}",
        lambda: CosineAnnealingWithWarmupScheduler("3ba").at("1sp", Horizon("1000sp", ssr=0.25)),
    ),
    ("tags='head': .* no group has any", lambda: bind(LinearScheduler(), sgd(), CLOCK, tags="head")),
    (
        "tags='head': .* the tags are 'a', 'b'",
        lambda: bind(LinearScheduler(), sgd({"tags": ["a", "b"]}), CLOCK, tags="head"),
    ),
    (
        r"reads state.timestamp.batch.value instead",
        lambda: bind(lambda step: 1 / (1 + step), sgd(), CLOCK),
    ),
    (r"is not a schedule. .* a function of \(state, ssr\)", lambda: bind(CosineAnnealingLR(sgd(), 4), sgd(), CLOCK)),
    (r"schedule='cosine': .* a function of \(state, ssr\)", lambda: bind("cosine", sgd(), CLOCK)),
    (
        "this is the state of a scheduler. Load it there, or pass its entry 'clock' here",
        lambda: CLOCK.load_state_dict(bind(LinearScheduler(), sgd(), CLOCK).state_dict()),
    ),
]


@pytest.mark.parametrize(("words", "make"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_errors(words, make):
    with pytest.raises((TypeError, ValueError, KeyError), match=words):
        make()
    assert CLOCK.timestamp == Timestamp()


def test_thousands_and_more():
    for text, count in {"1.5Ktok": 1500, "500Mtok": 5 * 10**8, "2B tok": 2 * 10**9, "3Tsp": 3 * 10**12}.items():
        assert Time.from_timestring(text) == Time(count, re.sub(".* |.*[KMBT]", "", text))
    assert Clock("500m").max_duration == "30000sec" and Clock("1H20M").max_duration == "80m"
    assert BatchSizeSchedule({"0tok": 8, "500Mtok": 16}) == BatchSizeSchedule("0:8 500M:16", unit="tok")


def test_a_count_may_be_a_tensor_of_one_number():
    clock = Clock("10ba")
    clock.tick(samples=torch.tensor(3), tokens=torch.tensor([5]))
    assert clock.timestamp.sample == 3 and clock.timestamp.token == 5


def test_a_run_is_extended_whatever_its_length_converts_to():
    for clock, longer, end in (
        (Clock("3ba", ssr=0.5), "6ba", "3ba"),
        (Clock("1000sp", samples_per_batch=64), "100ba", "100ba"),
    ):
        clock.extend(longer)
        assert clock.max_duration == end
    with pytest.raises(ValueError, match="max_duration='15ba': a run of 1000sp"):
        Clock("1000sp", samples_per_batch=64).extend("15ba")


@pytest.mark.parametrize(
    ("key", "decays", "tags", "warns"),
    [
        ("weight_decay", (0.0, 0.0), None, True),
        ("weight_decay", (0.0, 0.1), None, False),
        ("weight_decay", (0.0, 0.1), "body", True),
        ("lr", (0.0, 0.0), None, False),
    ],
)
def test_a_multiple_of_zero_is_a_warning(key, decays, tags, warns):
    optimizer = sgd(*({"weight_decay": decay, "tags": name} for decay, name in zip(decays, ("body", "head"))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bind(LinearScheduler(), optimizer, Clock("10ba"), key, tags)
    texts = [str(each.message) for each in caught]
    assert (
        texts
        == [
            "bind.key='weight_decay': the value is 0 in every group that is selected. Multiplied, it stays 0: "
            "give the optimizer a weight_decay above 0."
        ]
        * warns
    )
    assert all(each.filename == __file__ for each in caught)


def test_a_value_in_place_of_zero_is_no_warning():
    bind(HalfLife("2ba"), sgd(), Clock("10ba"), key="momentum")  # a warning would be an error here


@pytest.mark.parametrize(
    ("schedule", "ssr", "end"),
    [
        (LinearWithWarmupScheduler("20ba"), 1.0, "20ba"),
        ([LinearScheduler(), LinearWithWarmupScheduler("8ba")], 0.5, "8ba"),
        (LinearWithWarmupScheduler("10ba", scale_warmup=True), 0.5, None),
        (LinearWithWarmupScheduler("10ba"), 1.0, None),
        (MultiStepWithWarmupScheduler("10sec", ["5ba"]), 1.0, None),  # seconds do not convert to batches
    ],
)
def test_a_warmup_longer_than_the_run_is_a_warning(schedule, ssr, end):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bind(schedule, sgd(), Clock("10ba", ssr=ssr))
    assert len(caught) == (end is not None)
    for each in caught:
        run = Clock("10ba", ssr=ssr).max_duration
        assert f": the warmup takes {end}, longer than the run of {run}. Shorten it." in str(each.message)
        assert each.category is FindingWarning
        assert each.filename == __file__


def inverse_decay(step):
    """A function for torch's LambdaLR, which gets a number of steps."""
    return 1 / (1 + step)


def bind_at_half(schedule, **options):
    """A scheduler in the middle of its run."""
    clock = Clock("4ba")
    scheduler = bind(schedule, sgd(), clock, **options)
    for _ in range(2):
        clock.tick()
        scheduler.step()
    return scheduler


def step_superseded():
    optimizer = sgd()
    first = bind(ConstantScheduler(0.5), optimizer, CLOCK)
    _second = bind(ConstantScheduler(0.25), optimizer, CLOCK)
    first.step()


def step_unbound():
    scheduler = bind(ConstantScheduler(0.5), sgd(), CLOCK)
    scheduler.unbind()
    scheduler.step()


def step_without_a_group():
    optimizer = sgd({}, {})
    scheduler = bind(ConstantScheduler(0.5), optimizer, CLOCK)
    del optimizer.param_groups[1]
    scheduler.step()


def step_with_two_owners():
    optimizer = sgd({"tags": "a"}, {"tags": "b"})
    first = bind(ConstantScheduler(0.5), optimizer, CLOCK, tags="a")
    _second = bind(ConstantScheduler(0.25), optimizer, CLOCK, tags="b")
    optimizer.add_param_group({"params": [torch.ones(1)], "tags": ["a", "b"]})
    first.step()


# The complete text of an error, and the call that raises it.
TIMES_AND_CLOCKS = [
    (
        "'3' has no unit. Append one of iter, ep, ba, sp, tok, dur, sec, as in '3ba'.",
        lambda: Time.from_timestring("3"),
    ),
    (
        "12 has no unit. Pass a string with one of iter, ep, ba, sp, tok, dur, sec, such as '12ep'.",
        lambda: Time.from_input(12),
    ),
    ("'100 steps' is not a time: did you mean '100ba'?", lambda: Time.from_timestring("100 steps")),
    (
        "1.5ba is not a whole count. Only 'ep', 'dur' and 'sec' can be fractional.",
        lambda: Time.from_timestring("1.5ba"),
    ),
    (
        "Cannot compare 1ep and 3ba: their units differ. Convert one with Horizon.convert.",
        lambda: Time(1, "ep") < "3ba",
    ),
    (
        "Timestamp.get.unit='dur': a timestamp does not know the length of the run. Use clock.fraction >= 0.6, or "
        "clock.passed('0.6dur') for the moment itself.",
        lambda: CLOCK.timestamp >= "0.6dur",
    ),
    ("Clock.max_duration=None: a clock must know when its run ends. Pass a time, such as '10ep'.", lambda: Clock(None)),
    ("max_duration='1dur': it is a fraction of itself. Pass a time such as '10ep'.", lambda: Clock("1dur")),
    ("samples_per_batch=0: it is not above 0. Pass a positive number.", lambda: Clock("4ba", samples_per_batch=0)),
    (
        "Clock.process_group=True: torch.distributed is not initialized. Call init_process_group() before you create "
        "the clock.",
        lambda: Clock("4ba", process_group=True),
    ),
    (
        "Clock.tick.tokens=None: a run of 100tok needs the tokens of each batch. Pass tick(tokens=...), or pass "
        "tokens_per_sample to the clock.",
        lambda: Clock("100tok").tick(samples=3),
    ),
    (
        "Clock.next_epoch: epoch 0 has no batch yet, since tick() ends an epoch by itself. Leave out next_epoch(), or "
        "batches_per_epoch=2.",
        lambda: Clock("4ep", batches_per_epoch=2).next_epoch(),
    ),
    (
        "Clock.extend.max_duration='3ba': a run of 4ba cannot be extended to 3ba. Pass a greater length.",
        lambda: CLOCK.extend("3ba"),
    ),
    (
        "3ba cannot be converted to tok without samples_per_batch and tokens_per_sample. Pass samples_per_batch=... "
        "and tokens_per_sample=... to the Clock, the Horizon or the adapter of the trainer, or write both times in one "
        "unit.",
        lambda: CLOCK.horizon.convert("3ba", "tok"),
    ),
    (
        "3ba cannot be converted to sec: no conversion factor links 'sec' to another unit. Write both times in one "
        "unit.",
        lambda: CLOCK.horizon.convert("3ba", "sec"),
    ),
    (
        "0.5dur needs the length of the run, which is not known. Set max_duration.",
        lambda: Horizon(None).locate("0.5dur"),
    ),
    (
        "BatchSizeSchedule.sizes: the threshold '500M' has no unit. Write '500Mtok', or pass unit='tok'.",
        lambda: BatchSizeSchedule({"0tok": 8, "500M": 16}),
    ),
    (
        "BatchSizeSchedule.sizes: the first threshold is 8sp, not 0. Begin with the size at 0, as in {'0sp': 8, "
        "'160sp': 16}.",
        lambda: BatchSizeSchedule({"8sp": 8}),
    ),
    (
        "weight_decay_for.horizon: under a batch-size schedule, 5sp has no single number of steps. Pass a horizon with "
        "one batch size.",
        lambda: weight_decay_for("5sp", 0.1, Clock("9ba", samples_per_batch=BatchSizeSchedule("0sp:8 16sp:16"))),
    ),
]
SCHEDULES = [
    (
        "StepScheduler.step_size='0ba': the time is not above 0. Pass a time above 0.",
        lambda: StepScheduler("0ba"),
    ),
    (
        "ConstantScheduler.t_max='-1ba': the time is negative. Pass a time of 0 or more.",
        lambda: ConstantScheduler(0.5, t_max="-1ba"),
    ),
    (
        "time='-1ba': the time is negative. Pass a time of 0 or more.",
        lambda: LinearScheduler().at("-1ba", CLOCK),
    ),
    (
        "ExponentialScheduler.gamma=-0.5: the value is below 0. Pass a number of at least 0.",
        lambda: ExponentialScheduler(gamma=-0.5),
    ),
    (
        "RexScheduler.d=1.0: the value is not below 1. Pass a number below 1.",
        lambda: RexScheduler(d=1.0),
    ),
    (
        "MultiStepScheduler.milestones='10ba': the value is not a list. Pass a list of times, as in ['10ba', "
        "'0.5dur'].",
        lambda: MultiStepScheduler("10ba"),
    ),
    (
        "WarmupStableDecayScheduler.decay='sqrt': the value is unknown. Pass one of 'linear', 'cosine', "
        "'1-sqrt', '1-square', 'exponential', 'geometric', 'harmonic'. Did you mean '1-sqrt'?",
        lambda: WarmupStableDecayScheduler("1ba", decay="sqrt"),
    ),
    (
        "WarmupStableDecayScheduler.alpha_f=0.0: there is no geometric decay from 1.0 to 0.0. Pass values above "
        "0, such as 0.01, or another shape, such as 'exponential'.",
        lambda: WarmupStableDecayScheduler("1ba", decay="geometric"),
    ),
    (
        "WarmupStableDecayScheduler(t_warmup='60ba', t_decay='50ba', t_max='1.0dur', alpha_s=0.0, alpha_f=0.0, "
        "warmup='linear', decay='linear', decay_rate=0.5, scale_warmup=False): t_warmup (60ba) and t_decay "
        "(50ba) take longer than t_max (100ba) on this run. Shorten one of the two.",
        lambda: WarmupStableDecayScheduler("60ba", t_decay="50ba").at("1ba", Horizon("100ba")),
    ),
    (
        "t_max 3ba must be greater than or equal to max_duration 4ba: RexScheduler(t_max='3ba', alpha_f=0.0, "
        "d=0.5) ends before the run. Pass t_max='1dur', or a longer time.",
        lambda: RexScheduler("3ba")(CLOCK),
    ),
    (
        "LinearWithWarmupScheduler.scale_warmup=1: the value is not a bool. Pass True or False.",
        lambda: LinearWithWarmupScheduler("1ba", scale_warmup=1),
    ),
    (
        "CosineAnnealingWarmRestartsScheduler.t_mult=1.05: this growth is too small. Pass 1 for equal cycles, or "
        "at least 1.1.",
        lambda: CosineAnnealingWarmRestartsScheduler("1ba", t_mult=1.05),
    ),
    (
        "OneCycleScheduler.pct_start=0.6: the rise is too long for the cycle. Pass at most 1, or at most 0.5 "
        "with three phases.",
        lambda: OneCycleScheduler(pct_start=0.6, three_phase=True),
    ),
    (
        "PiecewiseScheduler.points[0]=['0ba']: this is not a point. Pass [time, value] or [time, value, shape].",
        lambda: PiecewiseScheduler([["0ba"]]),
    ),
    (
        "PiecewiseScheduler.points=[['2ba', 0.0], ['1ba', 1.0]]: 2ba is listed before 1ba. Put the points in order.",
        lambda: PiecewiseScheduler([["2ba", 0.0], ["1ba", 1.0]]),
    ),
    (
        "WarmupScheduler.schedule='cosine': the value is not a schedule of timesched. Pass schedules here, and "
        "functions to bind([...]).",
        lambda: WarmupScheduler("cosine", "1ba"),
    ),
    (
        "ProductScheduler.schedules=[]: the list is empty. Pass at least one schedule.",
        lambda: ProductScheduler([]),
    ),
    (
        "HalfLife('1ba'): this schedule returns values, not multipliers of a learning rate. Bind it to a beta or "
        "to momentum: bind(..., key='betas[1]'), or Binding(..., 'betas[1]') in a trainer. For the value itself, call "
        "half_life.at(clock.timestamp, clock).",
        lambda: ProductScheduler([LinearScheduler(), HalfLife("1ba")]),
    ),
    (
        "SequenceScheduler.milestones=['1ba', '2ba']: the number of milestones does not fit 2 schedules. Pass 1: "
        "one for each schedule except the first.",
        lambda: SequenceScheduler([LinearScheduler(), LinearScheduler()], ["1ba", "2ba"]),
    ),
    (
        "CooldownScheduler.t_decay='5ba': on this run the decay takes 5ba, which is longer than t_max (4ba). "
        "Shorten t_decay.",
        lambda: CooldownScheduler(LinearScheduler(), "5ba")(CLOCK),
    ),
    (
        "at='5ba': the value is not a moment of a run. Pass a Clock at that moment.",
        lambda: LinearScheduler().cooldown(at="5ba", t_decay="1ba"),
    ),
    (
        "unit='dur': no counter has this unit. Pass the unit of max_duration.",
        lambda: LinearScheduler().curve(CLOCK, "dur"),
    ),
    (
        "max_duration=None: a picture needs the length of the run. Pass max_duration.",
        lambda: LinearScheduler(t_max="3ba").plot(Horizon(None)),
    ),
    (
        "StepScheduler is inf at 2ba: only finite values can be drawn. Change the schedule, or end the run earlier.",
        lambda: StepScheduler("1ba", gamma=1e300).plot(Horizon("3ba")),
    ),
    (
        "check_schedule_laws.laws=['speed']: 'speed' is not a law. Pass names out of 'purity', 'ratio', 'unit', "
        "'ends', 'epochs', 'one formula', 'rates', 'cost'.",
        lambda: check_schedule_laws(LinearScheduler(), laws=["speed"]),
    ),
]
BINDING = [
    # Arguments
    (
        "tags='head': no parameter group has such a tag, and no group has any. Pass tags of the groups, or "
        "None for all groups.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, tags="head"),
    ),
    (
        "tags='head': no parameter group has such a tag, and the tags are 'a', 'b'. Pass tags of the groups, "
        "or None for all groups.",
        lambda: bind(LinearScheduler(), sgd({"tags": ["a", "b"]}), CLOCK, tags="head"),
    ),
    (
        "tags=3: it is not a tag. Pass a tag, a list of tags, or None.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, tags=3),
    ),
    (
        "key='learning_rate': parameter group 0 has no such key. Pass one of its keys: dampening, "
        "differentiable, foreach, fused, lr, maximize, momentum, nesterov, weight_decay.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, key="learning_rate"),
    ),
    (
        "key='beta 1': it names no key of a parameter group. Pass a name such as 'lr' or 'betas[0]'.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, key="beta 1"),
    ),
    (
        "key='lr[0]': parameter group 0 has lr=1.0, which has no element 0. Pass another index, or a key "
        "without an index.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, key="lr[0]"),
    ),
    (
        "key='lr': parameter group 1 has None, not a finite number. Give the group a number or a tensor with "
        "one float, or pass another key.",
        lambda: bind(LinearScheduler(), sgd({}, {"lr": None}), CLOCK),
    ),
    (
        "schedule=[]: the list is empty. Pass at least one schedule.",
        lambda: bind([], sgd(), CLOCK),
    ),
    (
        "schedule='cosine': it is not a schedule. Pass a schedule of timesched, or a function of (state, ssr).",
        lambda: bind("cosine", sgd(), CLOCK),
    ),
    (
        "schedule=inverse_decay: unsupported operand type(s) for +: 'int' and 'Clock'. Pass a function of "
        "(state) or (state, ssr), which reads state.timestamp.batch.value instead of a number of steps.",
        lambda: bind(inverse_decay, sgd(), CLOCK),
    ),
    (
        "HalfLife('2ba'): this schedule returns values, not multipliers of a learning rate. Bind it to a beta "
        "or to momentum: bind(..., key='betas[1]'), or Binding(..., 'betas[1]') in a trainer. For the value itself, "
        "call half_life.at(clock.timestamp, clock).",
        lambda: bind(HalfLife("2ba"), sgd(), CLOCK),
    ),
    (
        "bind.optimizer: it is of the class Linear, not a torch.optim.Optimizer. Set any other value in the training "
        "loop: value = initial * schedule(clock).",
        lambda: bind(LinearScheduler(), torch.nn.Linear(2, 2), CLOCK),
    ),
    (
        "bind.clock=None: it is not a clock. Pass a Clock, or a state with timestamp.",
        lambda: bind(LinearScheduler(), sgd(), None),
    ),
    (
        "ssr=0: it is not above 0. Pass a positive number.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, ssr=0),
    ),
    (
        "ssr='half': a str is not a number. Pass an int or a float.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, ssr="half"),
    ),
    (
        "BoundLR.on_change='keep': the option does not exist. Pass 'same' or 'new'.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, on_change="keep"),
    ),
    # Steps
    (
        "BoundLR.step.epoch=3: the scheduler counts its own steps. Set last_epoch or its clock instead.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK).step(3),
    ),
    (
        "BoundLR.key='lr': ConstantScheduler(alpha=0.5, t_max='1.0dur') no longer controls it, since "
        "ConstantScheduler(alpha=0.25, t_max='1.0dur') was created later. Step the later scheduler, give them "
        "different tags, or combine them: bind a list, or make a SequentialLR or ChainedLR.",
        lambda: step_superseded(),
    ),
    (
        "BoundLR.key='lr': ConstantScheduler(alpha=0.5, t_max='1.0dur') was unbound. Make another scheduler.",
        lambda: step_unbound(),
    ),
    (
        "key='lr': the optimizer has 1 parameter groups, and had 2 when it was scheduled. Call unbind() on "
        "the scheduler, and make another one.",
        lambda: step_without_a_group(),
    ),
    (
        "key='lr': the new parameter group 2 has tags of two schedulers, ConstantScheduler(alpha=0.5, "
        "t_max='1.0dur') and ConstantScheduler(alpha=0.25, t_max='1.0dur'). Give it tags of one of them, or "
        "unbind() one.",
        lambda: step_with_two_owners(),
    ),
    # States
    (
        "BoundLR.schedule: the state is of a different schedule.\n    saved LinearScheduler(alpha_i=0.5, "
        "alpha_f=0.0, t_max='1.0dur')\n    now   LinearScheduler(alpha_i=1.0, alpha_f=0.0, "
        "t_max='1.0dur')\n    value at step 2: [0.25] saved, [0.5] now\nMake the saved schedule again, or "
        "pass on_change='new' to continue with the present schedule. See docs/troubleshooting.md.",
        lambda: bind_at_half(LinearScheduler()).load_state_dict(bind_at_half(LinearScheduler(0.5)).state_dict()),
    ),
    (
        "BoundLR.key='lr': the state is of key='weight_decay'. Load the state of a scheduler with the same key.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK).load_state_dict(
            bind(LinearScheduler(), sgd({"weight_decay": 0.1}), CLOCK, "weight_decay").state_dict()
        ),
    ),
    (
        "BoundLR.state_dict={'batch': 0, 'batch_in_epoch': 0, 'batch_wct': 0, 'epoch': 0, ...}: it lacks "
        "'key', 'tags', 'last_epoch', 'schedule', 'value', 'base'. Load the state_dict() of a scheduler.",
        lambda: bind(LinearScheduler(), sgd(), CLOCK).load_state_dict(CLOCK.state_dict()),
    ),
    (
        "BoundLR: the state has 1 initial values, and 2 parameter groups are selected. Load it into the "
        "groups that were saved.",
        lambda: bind(LinearScheduler(), sgd({}, {}), CLOCK).load_state_dict(
            bind(LinearScheduler(), sgd(), CLOCK).state_dict()
        ),
    ),
    (
        "Clock: this is the state of a scheduler. Load it there, or pass its entry 'clock' here.",
        lambda: CLOCK.load_state_dict(bind(LinearScheduler(), sgd(), CLOCK).state_dict()),
    ),
]
ADAPTERS = [
    (
        "entries=[]: there is no schedule. Pass a schedule of timesched, or a Binding.",
        lambda: Schedulers(sgd(), Clock("4ba"), []),
    ),
    (
        "on_change='same': the state is of 0 schedules, and here are 1. Make the schedules that were saved, or pass "
        'on_change="new" to continue with the present ones.',
        lambda: Schedulers(sgd(), Clock("4ba"), [LinearScheduler()]).load_state_dict({"schedulers": []}),
    ),
    (
        'average: the state has no average of the weights. Leave average= out, or pass on_change="new" to begin one '
        "with the present weights.",
        lambda: Schedulers(sgd(), Clock("4ba"), [LinearScheduler()], average=object()).load_state_dict(
            Schedulers(sgd(), Clock("4ba"), [LinearScheduler()]).state_dict()
        ),
    ),
    (
        "on_change='same': the run continues after 3 batches, and its checkpoint has no state of these schedules. Pass "
        'on_change="new" to start them at this batch.',
        lambda: Schedulers(sgd(), Clock("4ba"), [LinearScheduler()]).begin_at(3),
    ),
    (
        "evaluate_averaged=True: there is no average to evaluate. Pass average=, a function that makes one.",
        lambda: check_average(True, None),
    ),
    (
        "average: the parameters are DTensors, and a trainer saves the scheduler as one file, without their shards. "
        "Leave average= out, and step and save optim.WeightAverage(model.parameters(), scheduler.clock) yourself, as "
        "docs/averages.md shows.",
        lambda: make_average(SimpleNamespace(param_groups=[{"params": [SimpleNamespace(placements=())]}]), CLOCK, sgd),
    ),
    (
        "tokens: the run counts them, and this batch has no count. Give the clock conversion factors, or count the "
        "tokens.",
        lambda: CountingSchedulers(sgd(), Clock("9ba"), [LinearScheduler(t_max="9tok")]).tick({"samples": 4}),
    ),
    (
        "samples: the run counts them, and this batch has no count. Give the clock conversion factors, or count the "
        "samples.",
        lambda: CountingSchedulers(sgd(), Clock("9ba"), [LinearScheduler(t_max="9sp")]).tick({}),
    ),
    (
        "count(batch)=2: it may have 'samples' and 'tokens' only. Return {'samples': ..., 'tokens': ...}.",
        lambda: read_counts(len, [1, 2]),
    ),
    (
        "count(batch)={'words': 3}: it may have 'samples' and 'tokens' only. Return {'samples': ..., 'tokens': ...}.",
        lambda: read_counts(lambda batch: {"words": 3}, None),
    ),
]
COMPLETE = [*TIMES_AND_CLOCKS, *SCHEDULES, *BINDING, *ADAPTERS]


@pytest.mark.parametrize(("text", "call"), COMPLETE, ids=[str(i) for i in range(len(COMPLETE))])
def test_complete_texts(text, call):
    with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)) as error:
        call()
    assert error.value.args[0] == text
