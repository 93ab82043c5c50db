"""The 40 mistakes that a beginner makes: the complete text of each error says what is wrong and what to do.

This is the only table of complete texts. Tests of other errors match the class, the argument and the value.
"""

import contextlib
import io

import pytest
import torch

import optim
from optim.lr_scheduler import ConstantLR, LinearLR
from tests.building import parameters, sgd
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.cli import main
from timesched.integrations.common import Schedulers

CLOCK = Clock("4ba")
MODEL = torch.nn.Linear(2, 2)
SGD = "optimizer: {SGD: {lr: 0.1}}\n"


def inverse_decay(step):
    """A function for torch's LambdaLR, which gets a number of steps."""
    return 1 / (1 + step)


def step_twice(schedule, clock):
    scheduler = bind(schedule, sgd(), clock)
    scheduler.step(), scheduler.step()


def step_the_first_of_two():
    optimizer = sgd()
    first = bind(ConstantScheduler(0.5), optimizer, CLOCK)
    bind(ConstantScheduler(0.25), optimizer, CLOCK)
    first.step()


def load_into_another(schedule, other):
    """Save a scheduler after two of four batches, and load it into a scheduler of another schedule."""
    clock = Clock("4ba")
    saved = bind(schedule, sgd(), clock)
    clock.tick(), clock.tick()
    saved.step()
    bind(other, sgd(), Clock("4ba")).load_state_dict(saved.state_dict())


def run_command(*arguments):
    """Run the command line, and raise the error that it prints."""
    with contextlib.redirect_stderr(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main(arguments)
    raise ValueError(printed.getvalue().removesuffix("\n"))


MISTAKES = [
    # Times and clocks
    (
        "max_duration: 12 has no unit. Pass a string with one of iter, ep, ba, sp, tok, dur, sec, such as '12ba'.",
        lambda: Clock(12),
    ),
    ("max_duration: '100 steps' is not a time: did you mean '100ba'?", lambda: Clock("100 steps")),
    (
        "max_duration: '500M' may mean minutes or millions. Write '500m', or a unit, as in '500Mtok'.",
        lambda: Clock("500M"),
    ),
    ("Clock.max_duration=None: a clock must know when its run ends. Pass a time, such as '10ep'.", lambda: Clock(None)),
    ("max_duration='1dur': it is a fraction of itself. Pass a time such as '10ep'.", lambda: Clock("1dur")),
    (
        "0.5dur needs the length of the run, which is not known. Set max_duration.",
        lambda: StepScheduler("0.5dur").at("9ba", Horizon(None)),
    ),
    (
        "Clock.tick.tokens=None: a run of 100tok needs the tokens of each batch. Pass tick(tokens=...), or pass "
        "tokens_per_sample to the clock. With ScheduleLR, pass step(tokens=...), or tokens_per_sample to ScheduleLR.",
        lambda: Clock("100tok").tick(samples=3),
    ),
    (
        "Clock.extend.max_duration='3ba': a run of 4ba cannot be extended to 3ba. Pass a greater length.",
        lambda: CLOCK.extend("3ba"),
    ),
    (
        "Clock: this is the state of a scheduler. Load it there, or pass its entry 'clock' here.",
        lambda: CLOCK.load_state_dict(bind(LinearScheduler(), sgd(), CLOCK).state_dict()),
    ),
    (
        "BatchSizeSchedule.sizes: the threshold '500M' has no unit. Write '500Mtok', or pass unit='tok'.",
        lambda: BatchSizeSchedule({"0tok": 8, "500M": 16}),
    ),
    # Schedules
    (
        "WarmupStableDecayScheduler.t_decay: 0.1 has no unit. Pass a string with one of iter, ep, ba, sp, tok, dur, "
        "sec, such as '0.1dur'.",
        lambda: WarmupStableDecayScheduler("10ba", t_decay=0.1),
    ),
    (
        "LinearWithWarmupScheduler has no argument 'num_warmup_steps': did you mean 't_warmup'? There are t_warmup, "
        "alpha_i, alpha_f, t_max, scale_warmup, alpha_s.",
        lambda: LinearWithWarmupScheduler(num_warmup_steps=100),
    ),
    (
        "WarmupStableDecayScheduler.decay='sqrt': the value is unknown. Pass one of 'linear', 'cosine', '1-sqrt', "
        "'1-square', 'exponential', 'geometric', 'harmonic'. Did you mean '1-sqrt'?",
        lambda: WarmupStableDecayScheduler("1ba", decay="sqrt"),
    ),
    (
        "Cannot use warmup scheduler LinearWithWarmupScheduler(t_warmup='10ba', alpha_i=1.0, alpha_f=0.0, "
        "t_max='1.0dur', scale_warmup=False, alpha_s=0.0) on this run: 10ba cannot be converted to tok without "
        "samples_per_batch and tokens_per_sample. Pass samples_per_batch=... and tokens_per_sample=... to the Clock, "
        "the Horizon or the adapter of the trainer, or write both times in one unit.",
        lambda: bind(LinearWithWarmupScheduler("10ba"), sgd(), Clock("1000tok")),
    ),
    (
        "t_max 3ba must be greater than or equal to max_duration 4ba: RexScheduler(t_max='3ba', alpha_f=0.0, d=0.5) "
        "ends before the run. Pass t_max='1dur', or a longer time. To keep the last value to the end of the run, pass "
        "SequenceScheduler([schedule], []) in its place.",
        lambda: bind(RexScheduler("3ba"), sgd(), CLOCK),
    ),
    # Schedulers of an optimizer
    (
        "bind.clock=None: it is not a clock. Pass a Clock, or a state with timestamp.",
        lambda: bind(LinearScheduler(), sgd(), None),
    ),
    (
        "bind.optimizer: it is of the class Linear, not a torch.optim.Optimizer. Set any other value in the training "
        "loop: value = initial * schedule(clock).",
        lambda: bind(LinearScheduler(), MODEL, CLOCK),
    ),
    (
        "ScheduleLR.optimizer: it is of the class Linear, not a torch.optim.Optimizer. Set any other value in the "
        "training loop: value = initial * schedule(clock).",
        lambda: ScheduleLR(MODEL, "Linear", "4ba"),
    ),
    (
        "tags='head': no parameter group has such a tag, and the tags are 'a', 'b'. Pass tags of the groups, or None "
        "for all groups.",
        lambda: bind(LinearScheduler(), sgd({"tags": ["a", "b"]}), CLOCK, tags="head"),
    ),
    (
        "key='learning_rate': parameter group 0 has no such key: did you mean 'lr'?",
        lambda: bind(LinearScheduler(), sgd(), CLOCK, key="learning_rate"),
    ),
    (
        "schedule=inverse_decay: unsupported operand type(s) for +: 'int' and 'Clock'. Pass a function of (state) or "
        "(state, ssr), which reads state.timestamp.batch.value instead of a number of steps.",
        lambda: bind(inverse_decay, sgd(), CLOCK),
    ),
    (
        "HalfLife('2ba'): this schedule returns values, not multipliers of a learning rate. Bind it to a beta or to "
        "momentum: bind(..., key='betas[1]'), or Binding(..., 'betas[1]') in a trainer. For the value itself, call "
        "half_life.at(clock.timestamp, clock).",
        lambda: bind(HalfLife("2ba"), sgd(), CLOCK),
    ),
    (
        "The clock of this LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max='1.0dur') has not moved in two steps. Call "
        "clock.tick() after each step of the optimizer, before scheduler.step(). See docs/troubleshooting.md.",
        lambda: step_twice(LinearScheduler(), CLOCK),
    ),
    (
        "BoundLR.key='lr': ConstantScheduler(alpha=0.5, t_max='1.0dur') no longer controls it, since "
        "ConstantScheduler(alpha=0.25, t_max='1.0dur') was created later. Step the later scheduler, give them "
        "different tags, or combine them: bind a list, or make a SequentialLR or ChainedLR.",
        step_the_first_of_two,
    ),
    (
        "BoundLR.schedule: the state is of a different schedule.\n    saved LinearScheduler(alpha_i=0.5, alpha_f=0.0, "
        "t_max='1.0dur')\n    now   LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max='1.0dur')\n    value at step 1: "
        "[0.25] saved, [0.5] now\nMake the saved schedule again, or pass on_change='new' to continue with the present "
        "schedule. See docs/troubleshooting.md.",
        lambda: load_into_another(LinearScheduler(0.5), LinearScheduler()),
    ),
    (
        "on_change='same': the run continues after 3 batches, and its checkpoint has no state of these schedules. Pass "
        'on_change="new" to start them at this batch.',
        lambda: Schedulers(sgd(), CLOCK, [LinearScheduler()]).begin_at(3),
    ),
    # Optimizers and their groups
    (
        "AdamW.lr='1e-3': it must be a finite number at least 0. Pass 0.001, for example.",
        lambda: optim.AdamW(parameters(), lr="1e-3"),
    ),
    (
        "Lion has no argument 'learning_rate': did you mean 'lr'? There are params, lr, betas, weight_decay, "
        "cautious_weight_decay, enable_global_step, master_weights, stochastic_rounding, rounding_seed, state_dtype.",
        lambda: optim.Lion(parameters(), learning_rate=1e-3),
    ),
    (
        "AdamW.params=Linear(in_features=2, out_features=2, bias=True): it must be a list or iterator. Pass the "
        "parameters, or dicts with the key 'params'.",
        lambda: optim.AdamW(MODEL),
    ),
    (
        "Muon, group 0: a parameter of shape (2,) and dtype torch.float32 is no real matrix. Put biases, norms and "
        "embeddings into a group with 'algorithm': 'adamw', or pass matrices='muon' to configure_param_groups.",
        lambda: optim.Muon(MODEL.parameters()),
    ),
    (
        "Adam: the state dict has 2 parameter groups, but this optimizer has 1. Build the optimizer with the saved "
        "groups.",
        lambda: sgd(kind=optim.Adam).load_state_dict(sgd({}, {}, kind=optim.Adam).state_dict()),
    ),
    (
        "rules[0] ('*.biass'): '*.biass' matches no parameter's name. The nearest names are 'bias'.",
        lambda: optim.configure_param_groups(MODEL, [{"params": "*.biass", "lr": 0.1}]),
    ),
    # Absolute-value schedulers
    (
        "ConstantLR has no argument 'lr': there are optimizer, learning_rate, total_iters, param_group_tags, clock, "
        "on_change.",
        lambda: ConstantLR(sgd(), lr=0.1),
    ),
    (
        "LinearLR.clock=None: 10ep needs a clock. Pass clock=timesched.Clock(...), or a number of steps.",
        lambda: LinearLR(sgd(), 0.1, 0.0, "10ep"),
    ),
    # Configs
    (
        "optimizer: there is no optimizer 'AdamX': did you mean 'Adamax' or 'Adam' or 'RAdam'? A class of your own is "
        "found once its module is imported.",
        lambda: optim.build(MODEL, "optimizer: {AdamX: {}}"),
    ),
    (
        "schedulers[0].CosineAnealingLR: there is no scheduler 'CosineAnealingLR': did you mean 'CosineAnnealingLR' or "
        "'CosineAnnealingWD' or 'CosineAnnealingScheduler'? A class of your own is found once its module is imported.",
        lambda: optim.build(MODEL, SGD + "schedulers: {CosineAnealingLR: {}}"),
    ),
    (
        "schedulers[0].LinearScheduler: a schedule needs a clock. Write 'max_duration' at the top of the config, or "
        "pass clock=timesched.Clock(...).",
        lambda: optim.build(MODEL, SGD + "schedulers: {LinearScheduler: {}}"),
    ),
    (
        "config has the unknown key 'max_steps': did you mean 'max_duration'? There are optimizer, schedulers, "
        "max_duration, batches_per_epoch, samples_per_batch, tokens_per_sample, ssr, process_group, stop_at.",
        lambda: optim.build(MODEL, SGD + "max_steps: 9"),
    ),
    (
        "the text, line 1, column 27: found undefined alias 'bias'. Put a string that begins with * in quotes, as in "
        "'*bias'.",
        lambda: optim.build(MODEL, "optimizer: {SGD: {params: *bias}}"),
    ),
    # The command line
    (
        "timesched show: SCHEDULE: there is no scheduler 'LinearSheduler': did you mean 'LinearScheduler' or "
        "'ChainedScheduler' or 'LinearLR'?",
        lambda: run_command("show", "LinearSheduler", "--max-duration", "9ba"),
    ),
    (
        "timesched show: --batch-size is not an option: did you mean --samples-per-batch? Run timesched show --help "
        "for the options.",
        lambda: run_command("show", "Linear", "--batch-size=4"),
    ),
]


@pytest.mark.parametrize(("text", "call"), MISTAKES, ids=[str(i) for i in range(len(MISTAKES))])
def test_complete_texts(text, call):
    with pytest.raises((TypeError, ValueError, KeyError, UserWarning)) as error:  # pytest raises each warning
        call()
    assert error.value.args[0] == text
    assert CLOCK.timestamp == Timestamp() and CLOCK.max_duration == "4ba"
