"""Configs as the Model Zoo's Trainer reads them: weight decay, aliases, factors, text numbers, files, the old form.

Each test states a fact of that Trainer (Cerebras/modelzoo, release 2.10), or where ours differs on purpose.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import optim
from optim import lr_scheduler, weight_decay_scheduler
from optim.config import build
from tests.building import values
from tests.optim.config.objects import DECAY, LINEAR
from timesched import Clock

CONSTANT = {"ConstantLR": {"learning_rate": 0.1}}
SCHEDULE = {"LinearScheduler": {}}
RUN = {"max_duration": "20ba"}


class RMSNorm(nn.Module):
    """A norm of a model's own, known by its name."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(2, 4, 4))
        self.expert_biases = nn.Parameter(torch.zeros(2, 4))


class Decoder(nn.Module):
    """A small language model whose parameters are called as in the Model Zoo."""

    def __init__(self):
        super().__init__()
        self.embedding_layer = nn.Embedding(8, 4)
        self.transformer_decoder = nn.ModuleDict(
            {"proj_dense_layer": nn.Linear(4, 4), "linear_layer": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}
        )
        self.experts, self.ln_f, self.lm_head = Experts(), RMSNorm(), nn.Linear(4, 8, bias=False)


NOT_DECAYING = {
    "transformer_decoder.proj_dense_layer.bias",
    "transformer_decoder.linear_layer.bias",
    "transformer_decoder.norm.weight",
    "transformer_decoder.norm.bias",
    "experts.expert_biases",
    "ln_f.weight",
}
NAMES = {name for name, _ in Decoder().named_parameters()}
KERNELS = {"transformer_decoder.proj_dense_layer.weight", "transformer_decoder.linear_layer.weight"}


def config(optimizer, *schedulers, **run):
    return {"optimizer": optimizer, "schedulers": list(schedulers), **run}


def by_name(optimizer, key):
    """A hyperparameter of each parameter, by the name of the parameter."""
    return {name: group.get(key) for group in optimizer.param_groups for name in group["param_names"]}


def with_value(values, wanted):
    return {name for name, value in values.items() if value == wanted}


# Weight decay


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_norms_and_biases_do_not_decay_by_default(name):
    decays = by_name(build(Decoder(), config({name: {"lr": 0.1, "weight_decay": 0.25}})).optimizer, "weight_decay")
    assert with_value(decays, 0.0) == NOT_DECAYING and with_value(decays, 0.25) == NAMES - NOT_DECAYING


def test_weight_decay_of_what_muon_leaves_to_adamw():
    entry = {"Muon": {"weight_decay": 0.0, "adamw": {"lr": 0.1, "weight_decay": 0.25}}}
    decays = by_name(build(Decoder(), config(entry)).optimizer, "weight_decay")
    assert with_value(decays, 0.25) == {"embedding_layer.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    ("entry", "split"),
    [
        ({"AdamW": {}}, False),  # AdamW's default is 0
        ({"AdamW": {"weight_decay": 0}}, False),
        ({"AdamW": {"weight_decay": 0.0, "no_decay": True}}, True),
        ({"AdamW": {"weight_decay": 0.25, "no_decay": False}}, False),
        ({"Muon": {"matrices": "muon"}}, True),  # Muon's default is 0.01
        ({"Muon": {"weight_decay": 0.0, "adamw": {}}}, False),
        ({"Muon": {"weight_decay": 0.0, "lion": {"weight_decay": 0.25}}}, True),
        ({"AdamW": {"params": [{"params": "*head*", "weight_decay": 0.25}]}}, False),
        ({"AdamW": {"decay_tag": "decays"}}, True),  # the tag is for what decays by a schedule
    ],
)
def test_groups_are_split_where_something_decays(entry, split):
    ((_, arguments),) = entry.items()
    optimizer = build(Decoder(), config(entry)).optimizer
    decays = by_name(optimizer, "weight_decay")
    alone = {frozenset(group["param_names"]) for group in optimizer.param_groups}
    assert (frozenset(NOT_DECAYING) in alone) is split and {decays[name] for name in NOT_DECAYING} <= {0.0, 0.25}
    if arguments.get("no_decay") is False:
        assert set(decays.values()) == {0.25}


def test_a_rule_of_its_own_wins_over_the_split():
    rule = {"params": "*norm.weight", "weight_decay": 0.5}
    built = build(Decoder(), config({"AdamW": {"weight_decay": 0.25, "params": rule}}, SCHEDULE, **RUN))
    assert with_value(by_name(built.optimizer, "weight_decay"), 0.5) == {"transformer_decoder.norm.weight"}
    assert built.table().note == "no_decay: true, but params gives norms and biases weight decay, too"


def test_adam_drops_the_weight_decay_of_no_group():
    """There, Adam's constructor gives its weight decay to every group as L2."""
    optimizer = build(Decoder(), config({"Adam": {"lr": 0.1, "weight_decay": 0.25}})).optimizer
    assert sorted(set(by_name(optimizer, "weight_decay").values())) == [0.0, 0.25]
    theirs = build(Decoder(), config({"Adam": {"lr": 0.1, "weight_decay": 0.25, "no_decay": False}})).optimizer
    assert set(by_name(theirs, "weight_decay").values()) == {0.25}


def test_named_parameters_need_no_decay_false():
    with pytest.raises(ValueError, match="no_decay=True"):
        build(Decoder().named_parameters(), config({"AdamW": {"weight_decay": 0.25}}))
    entry = {"AdamW": {"weight_decay": 0.25, "no_decay": False, "adjust_learning_rate": {"embedding": 0.5}}}
    (other, embedding) = sorted(
        build(Decoder().named_parameters(), config(entry, CONSTANT)).optimizer.param_groups,
        key=lambda group: len(group["params"]),
        reverse=True,
    )
    assert embedding["param_names"] == ["embedding_layer.weight"] and (embedding["lr"], other["lr"]) == (0.05, 0.1)


@pytest.mark.parametrize(
    ("entry", "schedulers", "note"),
    [
        ({}, [], ""),
        ({"weight_decay": 0.1}, [], "no_decay: true (norms and biases have no weight decay)"),
        (
            {"weight_decay": 0.1},
            [CONSTANT, {"LinearWD": DECAY}],
            "no_decay: true, but schedulers[1] gives norms and biases weight decay, too",
        ),
        (
            {"params": {"params": "*bias", "tag": "b"}, "decay_tag": "d"},
            [{"LinearWD": {**DECAY, "param_group_tags": tag}} for tag in ("b", "d")],
            "no_decay: true, but schedulers[0] gives norms and biases weight decay, too",
        ),
        (
            {"weight_decay": 0.1, "decay_tag": "d"},
            [{"LinearWD": {**DECAY, "param_group_tags": "d"}}],
            "no_decay: true (norms and biases have no weight decay)",
        ),
        ({}, [{"LinearWD": DECAY}], "no_decay: false (norms and biases have weight decay, too)"),
        (
            {"params": {"params": "lm_head*", "weight_decay": 0.1}},
            [],
            "no_decay: false (norms and biases have no weight decay)",
        ),
    ],
)
def test_the_tables_note_is_true(entry, schedulers, note):
    built = build(Decoder(), config({"AdamW": {"lr": 0.1, **entry}}, *schedulers, **RUN))
    built.schedulers.append(lr_scheduler.ConstantLR(built.optimizer, 0.1))  # a column for the table
    assert built.table().note == note
    decays = by_name(built.optimizer, "weight_decay")
    assert any(decays[name] for name in NOT_DECAYING) is ("too" in note)


def test_weight_decay_schedulers_set_what_they_select():
    """As there, without an error; where `no_decay` is written, that is a contradiction."""
    optimizer = build(Decoder(), config({"AdamW": {"weight_decay": 0.1}}, {"LinearWD": DECAY})).optimizer
    assert set(by_name(optimizer, "weight_decay").values()) == {0.1}
    with pytest.raises(ValueError, match="none because of 'no_decay'"):
        build(Decoder(), config({"AdamW": {"weight_decay": 0.1, "no_decay": True}}, {"LinearWD": DECAY}))


def test_a_scheduler_may_set_weight_decay_that_a_rule_left_out():
    entry = {"weight_decay": 0.1, "no_decay": True}
    tagged = {"LinearWD": {**DECAY, "param_group_tags": "head"}}
    rule = {"params": "lm_head*", "tags": "head", "weight_decay": 0.0}
    decays = by_name(build(Decoder(), config({"AdamW": {**entry, "params": rule}}, tagged)).optimizer, "weight_decay")
    assert decays["lm_head.weight"] == 0.1 and with_value(decays, 0.0) == NOT_DECAYING
    norm = {"params": "ln_f*", "tags": "head"}  # `no_decay` excludes this parameter of the same group
    with pytest.raises(ValueError, match="none because of 'no_decay'"):
        build(Decoder(), config({"AdamW": {**entry, "params": [rule, norm]}}, tagged))


# Learning rates


@pytest.mark.parametrize("name", ["SGD", "AdamW", "adafactor"])
@pytest.mark.parametrize("key", ["lr", "learning_rate"])
def test_learning_rate_is_lr(name, key):
    assert values(build(Decoder(), config({name: {key: 0.5}})).optimizer) == [0.5]


class OwnOptimizer(optim.SGD):
    def __init__(self, params, learning_rate, momentum=0.0):
        super().__init__(params, learning_rate, momentum)


def test_lr_is_learning_rate_where_a_class_calls_it_so():
    for key in ("lr", "learning_rate"):
        assert values(build(Decoder(), config({"OwnOptimizer": {key: 0.5}})).optimizer) == [0.5]
    assert values(build(Decoder(), config({"OwnOptimizer": {}}, CONSTANT)).optimizer) == [0.1]


@pytest.mark.parametrize("name", ["SGD", "AdaFactor"])
def test_a_missing_learning_rate_is_the_schedulers(name):
    optimizer, (scheduler,) = build(Decoder(), config({name: {}}, {"LinearLR": {**LINEAR, "total_iters": 4}}))
    assert values(optimizer) == [0.1]
    scheduler.step()
    assert values(optimizer) == [pytest.approx(0.075, rel=1e-15)]  # one rounding of the formula
    rules = [{"params": "lm_head*", "tag": "head"}, {"params": "ln*", "lr": 0.5}]
    rates = [{"ConstantLR": {"learning_rate": 0.2, "param_group_tags": tag}} for tag in ("head", [None])]
    assert sorted(values(build(Decoder(), config({name: {"params": rules}}, *rates)).optimizer)) == [0.2, 0.2, 0.2]
    rates[1]["ConstantLR"]["param_group_tags"] = "head"
    with pytest.raises(ValueError, match=f"optimizer.{name}: no scheduler sets"):
        build(Decoder(), config({name: {"params": rules}}, rates[0]))


# Rules


def test_tag_is_tags():
    """A parameter that several rules match has all their tags, also on both halves of a split."""
    rules = [{"params": ["*dense*", "*linear*"], "tag": "kernels"}, {"params": "*.bias", "tag": ["biases", "all"]}]
    optimizer = build(Decoder(), config({"AdamW": {"weight_decay": 0.1, "params": rules}})).optimizer
    tags = by_name(optimizer, "tags")
    assert tags["transformer_decoder.linear_layer.weight"] == {"kernels"}
    assert tags["transformer_decoder.linear_layer.bias"] == {"kernels", "biases", "all"}
    assert tags["lm_head.weight"] is None
    one = build(Decoder(), config({"AdamW": {"params": {"params": "*.bias", "tag": "b"}}})).optimizer
    assert [group.get("tags") for group in one.param_groups] == [None, {"b"}]


def test_a_schedule_for_each_layer():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    rules = [{"params": [f"{i}.*"], "tag": f"layer_{i}"} for i in range(3)]
    rates = [{"ConstantLR": {"learning_rate": 0.1 * (i + 1), "param_group_tags": f"layer_{i}"}} for i in range(3)]
    optimizer = build(layers, config({"AdamW": {"params": rules, "weight_decay": 0.1}}, *rates)).optimizer
    rate_of = by_name(optimizer, "lr")
    for i in range(3):
        assert rate_of[f"{i}.weight"] == rate_of[f"{i}.bias"] == 0.1 * (i + 1)


# Factors


def group(globs, scale=1.0):
    return SimpleNamespace(param_filter_patterns=globs, scale=scale)


class Scaled(Decoder):
    """A model with groups of its own, as those with maximal update parametrization have."""

    def __init__(self):
        super().__init__()
        self.lr_adjustment_groups = {
            "embedding": group("*embedding*weight"),
            "kernels": group(["*dense*weight", "*linear*weight", "*conv*weight"], 0.25),
            "encoder": group("*encoder*weight", 0.5),  # matches nothing
        }


def rates_of(model, factors, *schedulers):
    entry = {"AdamW": {"weight_decay": 0.1, **({} if factors is None else {"adjust_learning_rate": factors})}}
    return by_name(build(model, config(entry, *(schedulers or (CONSTANT,)))).optimizer, "lr")


def test_the_models_own_groups():
    model = Scaled()
    assert with_value(rates_of(model, None), 0.025) == KERNELS  # a scale counts without any key
    replaced = rates_of(model, {"kernels": "0.5", "embedding": 0.2})
    assert with_value(replaced, 0.05) == KERNELS and with_value(replaced, 0.1 * 0.2) == {"embedding_layer.weight"}
    assert model.lr_adjustment_groups["kernels"].scale == 0.25  # nothing is written to the model
    assert with_value(rates_of(nn.DataParallel(model), None), 0.025) == KERNELS
    assert with_value(rates_of(model, {"lm_head.*": 0.5}), 0.05) == {"lm_head.weight"}  # globs are left
    for key, match in (("encoder", r"'\*encoder\*weight' matches no"), ("decoder_kernel", "name are 'embedding', 'ke")):
        with pytest.raises(ValueError, match=match):
            rates_of(model, {key: 0.5})
    model.lr_adjustment_groups["kernels"].scale = math.nan
    with pytest.raises(ValueError, match=r"adjust_learning_rate\['kernels'\]=nan"):
        rates_of(model, None)


def test_the_default_groups():
    factors = rates_of(Decoder(), {"embedding": 0.5, "decoder_kernel": 0.25})
    assert with_value(factors, 0.05) == {"embedding_layer.weight"} and with_value(factors, 0.025) == KERNELS
    model = Decoder()
    model.embedding = nn.Parameter(torch.ones(2))  # a glob or layer type comes first
    assert with_value(rates_of(model, {"embedding": 0.5}), 0.05) == {"embedding"}
    assert with_value(rates_of(Decoder(), {"Embedding": 0.5}), 0.05) == {"embedding_layer.weight"}
    with pytest.raises(ValueError, match="'embeding'.* 'embedding', 'decoder_k"):
        rates_of(Decoder(), {"embeding": 0.5})
    with pytest.raises(
        ValueError,
        match=r"\*decoder\*dense\*weight' matches no",
    ):
        rates_of(nn.Linear(2, 2), {"decoder_kernel": 0.5})


def test_schedulers_are_wrapped_where_a_group_has_a_factor():
    rule = {"params": "lm_head*", "tag": "head", "adjust_learning_rate": 0.5}
    children = [{"LinearLR": {**LINEAR, "total_iters": 4}}, CONSTANT]
    sequence = {"SequentialLR": {"schedulers": children, "param_group_tags": "head", "on_change": "new"}}
    rest = {"ConstantLR": {"learning_rate": 0.3, "param_group_tags": [None]}}
    optimizer, (scaled, plain) = build(Decoder(), config({"SGD": {"lr": 1.0, "params": rule}}, sequence, rest))
    assert type(scaled) is lr_scheduler.ScalePerParamLR and scaled.on_change == "new" and scaled.tags == "head"
    assert type(plain) is lr_scheduler.ConstantLR and sorted(values(optimizer)) == [0.05, 0.3]
    for _ in range(2):
        scaled.step()
    assert sorted(values(optimizer)) == [0.025, 0.3]
    already = {"ScalePerParamLR": {"scheduler": CONSTANT}}
    inside = {"SequentialLR": {"schedulers": [already], "milestones": []}}
    for entry, kind in ((already, "ScalePerParamLR"), (inside, "SequentialLR")):
        optimizer, (scheduler,) = build(Decoder(), config({"SGD": {"lr": 1.0, "params": rule}}, entry))
        assert type(scheduler).__name__ == kind and sorted(values(optimizer)) == [0.05, 0.1]
    made = build(Decoder(), config({"SGD": {"lr": 1.0, "params": rule}}, already, {"ConstantWD": {"val": 0.5}}))
    assert type(made.schedulers[1]) is weight_decay_scheduler.ConstantWD


def test_schedules_multiply_by_the_factors():
    entry = {"AdamW": {"lr": 0.5, "adjust_learning_rate": {"kernels": 0.5}}}
    built = build(Scaled(), config(entry, {"LinearScheduler": {"alpha_i": 0.5}}, **RUN))
    assert with_value(by_name(built.optimizer, "lr"), 0.125) == KERNELS
    assert set(by_name(built.optimizer, "initial_lr").values()) == {0.5}


@pytest.mark.parametrize("schedulers", [[], [{"LinearScheduler": {"key": "eps"}}], [{"ConstantWD": {"val": 0.1}}]])
@pytest.mark.parametrize("model", [Scaled, Decoder])
def test_factors_that_nothing_uses(model, schedulers):
    entry = {"lr": 0.1}
    if model is Decoder:
        entry["params"] = {"params": "lm_head*", "adjust_learning_rate": 0.5}
    with pytest.raises(ValueError, match="the factors of 'adjust_learning_rate'"):
        build(model(), config({"AdamW": entry}, *schedulers, **RUN))


# Other keys, and numbers that are text


def test_correct_bias():
    assert values(build(Decoder(), config({"Adam": {"lr": 0.1, "correct_bias": True}})).optimizer) == [0.1]
    for value in (False, "yes", None):
        with pytest.raises(ValueError, match="optimizer.Adam: Adam has no argument 'correct_bias'"):
            build(Decoder(), config({"Adam": {"lr": 0.1, "correct_bias": value}}))
    assert build(Decoder(), config({"AdamW": {"correct_bias": False}})).optimizer.defaults["correct_bias"] is False


def test_numbers_that_are_text():
    """PyYAML reads `1e-6` as a string."""
    rules = [{"params": "*dense*", "tag": "1e3", "lr": "2e-3", "eps": "1"}]
    entry = {"AdamW": {"lr": "1e-6", "betas": ["0.9", "9.5e-1"], "params": rules, "no_decay": "*bias*"}}
    line = {"initial_learning_rate": "+1E-2", "end_learning_rate": ".5", "total_iters": "10"}
    inner = {"SequentialLR": {"schedulers": [{"LinearLR": line}, CONSTANT], "milestones": ["10"]}}
    inner["SequentialLR"]["param_group_tags"] = "1e3"
    built = build(Decoder(), config(entry, inner))
    tagged, other = built.optimizer.param_groups[2], built.optimizer.param_groups[0]
    assert tagged["tags"] == {"1e3"} and (tagged["lr"], tagged["eps"]) == (0.01, 1) and other["lr"] == 1e-6
    assert other["betas"] == (0.9, 0.95) and built.schedulers[0].values(11)[9:] == [0.451, 0.1]
    muon = build(Decoder(), config({"Muon": {"adamw": {"lr": "1e-3"}}})).optimizer
    assert 1e-3 in values(muon)
    for text in ("0x10", "1_000", "1e", "nan", ".inf", "", "1 ", "١"):
        with pytest.raises((TypeError, ValueError)):
            build(Decoder(), config({"SGD": {"lr": text}}))
    with pytest.raises(TypeError):  # a call by hand takes numbers
        optim.config.configure_optimizer("SGD", Decoder().parameters(), lr="1e-6")


def test_a_glob_that_matches_the_ends_of_names():
    """Theirs are anchored at the end alone."""
    rule = {"params": "bias", "tag": "b"}
    with pytest.raises(ValueError, match=r"'bias' matches no .*'\*bias'"):
        build(Decoder(), config({"AdamW": {"params": rule}}))
    with pytest.raises(ValueError, match="'' matches no parameter"):
        build(Decoder(), config({"AdamW": {"params": {"params": "", "tag": "b"}}}))


# The old form


OLD = {"optimizer_type": "sgd", "momentum": 0.9, "loss_scaling_factor": 1.0, "max_gradient_norm": 1.0}
WARMUP = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 2}
DECAYING = {"scheduler": "CosineDecay", "initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 4}
HALVED = {"scheduler": "Step", "initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}
MESSAGE = "'loss_scaling_factor', 'max_gradient_norm'"


@pytest.mark.parametrize(
    ("rate", "lr", "expected"),
    [
        (0.5, 0.5, [0.5, 0.5, 0.5, 0.5]),
        ("5e-1", 0.5, [0.5, 0.5, 0.5, 0.5]),
        (WARMUP, 0.1, [0.0, 0.05, 0.1, 0.1]),
        ([WARMUP, DECAYING], 0.1, [0.0, 0.05, 0.1, pytest.approx(0.0853553390593, rel=1e-11)]),
        ([WARMUP, {**HALVED, "main_scheduler": "chained"}], 0.1, [0.0, 0.05, 0.05, 0.05]),
    ],
)
def test_the_old_form(rate, lr, expected):
    given = {
        "model": {"hidden_size": 4},
        "optimizer": {**OLD, "weight_decay": 0.25, "learning_rate": rate},
        "runconfig": {"max_steps": 20, "seed": 1},
    }
    with pytest.warns(UserWarning, match=MESSAGE):
        built = build(Decoder(), given)
    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        build(Decoder(), {"trainer": [given]})
    assert caught[0].filename == __file__
    assert built.optimizer.defaults["lr"] == lr and built.clock.max_duration == "20ba"
    assert with_value(by_name(built.optimizer, "weight_decay"), 0.0) == NOT_DECAYING
    found = []
    for _ in range(4):
        found.append(values(built.optimizer)[0])
        built.schedulers[0].step()
    assert found == expected


def test_the_old_form_without_a_schedule():
    built = build(Decoder(), {"optimizer": {"optimizer_type": "AdamW", "lr": 0.5}, "runconfig": None})
    assert values(built.optimizer) == [0.5] and built.schedulers == [] and built.clock is None
    scaled = {"optimizer_type": "AdamW", "learning_rate": 0.5, "adjust_learning_rate": {"embedding": 0.5}}
    optimizer, (scheduler,) = build(Decoder(), {"optimizer": scaled})
    assert type(scheduler) is lr_scheduler.ScalePerParamLR and sorted(values(optimizer)) == [0.25, 0.5]


def test_the_clock_adds_lengths_of_different_units_in_the_old_form():
    phases = [{**WARMUP, "total_iters": "100ba"}, {**DECAYING, "total_iters": "0.5dur"}, HALVED]
    entry = {"optimizer_type": "SGD", "learning_rate": phases}
    (scheduler,) = build(Decoder(), {"optimizer": entry, "max_duration": "400ba"}).schedulers
    assert list(map(str, scheduler.milestones)) == ["100", "0.75dur"]


# Whole files


def whole(init):
    return {"trainer": {"init": {"backend": {"backend_type": "CSX"}, "loop": {"num_steps": 40}, **init}, "fit": {}}}


def test_a_whole_file():
    init = config({"AdamW": {"lr": 0.1, "weight_decay": 0.1}}, {"LinearScheduler": {"t_max": "0.5dur"}})
    for given in (whole(init), {"trainer": [whole(init)]}):
        built = build(Decoder(), given)
        assert built.clock.max_duration == "40ba" and built.config == given
        for _ in range(10):
            built.clock.tick()
        built.schedulers[0].step()
        assert set(values(built.optimizer)) == {0.05}
    for loop, length in (
        ({"num_steps": None, "max_steps": 30}, "30ba"),
        ({"num_steps": 20, "max_steps": 30}, "20ba"),
        ({"num_steps": 20.0}, "20ba"),
    ):
        assert build(Decoder(), whole({**init, "loop": loop})).clock.max_duration == length
    own_length = whole({**init, "max_duration": "2ep", "batches_per_epoch": 5})
    assert build(Decoder(), own_length).clock.max_duration == "2ep"
    clock = Clock("7ba")
    assert build(Decoder(), whole(init), clock).clock is clock  # the length of the loop gives way
    no_length = whole({**init, "loop": {"num_epochs": 2}})
    assert build(Decoder(), no_length, clock).clock is clock
    with pytest.raises(ValueError, match="a schedule needs a clock"):
        build(Decoder(), no_length)


# What is refused


SGD = {"SGD": {"lr": 0.1}}
REFUSED = [
    (config({"SGD": {"lr": 0.1, "learning_rate": 0.1}}), "optimizer.SGD: 'learning_rate' and 'lr'"),
    (config({"SGD": {}}, SCHEDULE, **RUN), "optimizer.SGD: SGD needs 'lr'"),
    (config({"SGD": {}}, {"ConstantWD": {"val": 0.1}}), "optimizer.SGD: SGD needs 'lr'"),
    (config({"SGD": {"lr": 0.1, "params": {"params": "*", "tag": "a", "tags": "b"}}}), "'tag' and 'tags' mean"),
    (config({"SGD": {"lr": 0.1, "correct_bias": True}}), "SGD has no argument 'correct_bias'"),
    (config({"optimizer_type": "SGD", "learning_rate": 0.1, "lr": 0.1}), "optimizer: 'learning_rate' and 'lr' mean"),
    (config({"optimizer_type": "SGD", "learning_rate": 0.1}, CONSTANT), "and config has 'schedulers'"),
    (config({"optimizer_type": "SGD", "learning_rate": None}), "optimizer.learning_rate=None: this is no"),
    (config({"optimizer_type": "SGD", "learning_rate": {**WARMUP, "scheduler": "Lni"}}), "no lr scheduler 'Lni'"),
    (config({"optimizer_type": "SDG", "lr": 0.1}), "optimizer: there is no optimizer 'SDG'"),
    ({"trainer": [whole(config(SGD))] * 2}, "config has 2 trainers"),
    ({"trainer": []}, "config has 0 trainers"),
    (whole({**config(SGD), "loop": {"num_steps": "many"}}), "loop.num_steps='many': "),
    (whole({**config(SGD), "loop": {"max_steps": 0}}), "max_duration"),
    (whole({**config(SGD), "schedulr": []}), "config has the unknown key 'schedulr'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(given, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        build(Decoder(), given)
    assert message in str(raised.value)


# Optimizers and schedulers as ten of the files have them, with the learning rates that the formulas give


def line(start, end, steps):
    return {"LinearLR": {"initial_learning_rate": start, "end_learning_rate": end, "total_iters": steps}}


def cosine(start, end, steps):
    return {"CosineDecayLR": {"initial_learning_rate": start, "end_learning_rate": end, "total_iters": steps}}


def sequence(*children):
    return {"SequentialLR": {"schedulers": list(children)}}


def half(start, end):
    """The middle of a line, and of a cosine."""
    return (start + end) / 2


GPT = {"betas": [0.9, 0.95], "correct_bias": True, "eps": 1e-9}
FILES = {  # the optimizer, its scheduler, and learning rates by their steps
    "bert": (
        {"AdamW": {"weight_decay": 0.01}},
        sequence(line(0.0, 2e-4, 3200), line(2e-4, 0.0, 77600)),
        {0: 0.0, 1600: 1e-4, 3200: 2e-4, 42000: 1e-4, 80800: 0.0, 99999: 0.0},
    ),
    "classifier": (
        {"AdamW": {"eps": 1e-6, "weight_decay": 0.01}},
        sequence(line(0.0, 1e-5, 2000), {"ConstantLR": {"learning_rate": 1e-5}}),
        {0: 0.0, 1000: 5e-6, 2000: 1e-5, 9000: 1e-5},
    ),
    "gpt": (
        {"AdamW": {**GPT, "weight_decay": 0.1}},
        sequence(line(0.0, 1.2e-4, 170), cosine(1.2e-4, 1.2e-5, 116000)),
        {0: 0.0, 85: 6e-5, 170: 1.2e-4, 58170: half(1.2e-4, 1.2e-5), 116170: 1.2e-5},
    ),
    "bloom": (  # jumps where the last scheduler begins, as the file does
        {"AdamW": {**GPT, "weight_decay": 0.1}},
        sequence(line(0.0, 5e-5, 1800), cosine(5e-5, 5e-6, 2000), {"ConstantLR": {"learning_rate": 3e-6}}),
        {900: 2.5e-5, 2800: half(5e-5, 5e-6), 3799: pytest.approx(5e-6, rel=1e-5), 3800: 3e-6},
    ),
    "llama": (
        {"Adam": {"betas": [0.9, 0.95], "correct_bias": True, "weight_decay": 0.1}},
        line(0.0, 3e-4, 4768),
        {0: 0.0, 2384: 1.5e-4, 4768: 3e-4, 9000: 3e-4},
    ),
    "summarization": (
        {"Adam": {"eps": 1e-6}},
        sequence(line(0.0, 2e-5, 10000), line(2e-5, "1.4e-5", 10000), line("1.4e-5", 1e-5, 10000)),
        {5000: 1e-5, 15000: 1.7e-5, 25000: 1.2e-5, 40000: 1e-5},
    ),
    "t5": (
        {"AdaFactor": {}},
        {"InverseSquareRootDecayLR": {"scale": 1.0, "warmup_steps": 8192}},
        {0: 8192**-0.5, 8192: 8192**-0.5, 32768: 32768**-0.5},
    ),
    "experts": (
        {"AdamW": {**GPT, "weight_decay": 0.1, "adjust_learning_rate": {"decoder_kernel": 0.25}}},
        {"ScalePerParamLR": {"scheduler": sequence(line(0.0, 0.016, 950), line(0.016, 0.0, 4600))}},
        {475: 0.008, 950: 0.016, 3250: 0.008, 5550: 0.0},
    ),
    "diffusion": (
        {"AdamW": {"learning_rate": 1e-4, "weight_decay": 0.0}},
        {"ConstantLR": {"learning_rate": 1e-4}},
        {0: 1e-4, 1000: 1e-4},
    ),
    "linear probe": (
        {"SGD": {"momentum": 0.9, "weight_decay": 0.0}},
        sequence({"CosineAnnealingLR": {"T_max": 12500, "eta_min": 0.0, "initial_learning_rate": 0.025}}),
        {0: 0.025, 6250: 0.0125, 12500: 0.0},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name):
    optimizer, scheduler, rates = FILES[name]
    built = build(Decoder(), whole({**config(optimizer, scheduler), "seed": 1, "precision": {"fp16_type": "bfloat16"}}))
    (made,) = built.schedulers
    ((_, arguments),) = optimizer.items()
    decays = by_name(built.optimizer, "weight_decay")
    assert with_value(decays, 0.0) >= NOT_DECAYING and decays["lm_head.weight"] == arguments.get("weight_decay", 0.0)
    written = made.values(max(rates) + 1)
    assert {step: written[step] for step in rates} == {
        step: pytest.approx(rate, rel=1e-12, abs=1e-18) if isinstance(rate, float) else rate
        for step, rate in rates.items()
    }
    factors = by_name(built.optimizer, "adjust_learning_rate")
    assert with_value(factors, 0.25) == (KERNELS if name == "experts" else set())
