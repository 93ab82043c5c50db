"""A value of the model in a config: what is written, what is refused, and what the command line shows."""

import pytest
import torch

import optim
from optim.config.build import make_trial
from timesched.cli import main


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.4))
        self.weights = [0.1, 0.5]
        self.length = 512
        self.lr = 0.4
        self.register_buffer("temperature", torch.tensor(0.4))


def config(**entry):
    return {"max_duration": "4ba", "optimizer": {"SGD": {"lr": 0.1}}, "schedulers": [{"LinearScheduler": entry}]}


@pytest.mark.parametrize(
    ("entry", "read", "name"),
    [
        ({"target": "model", "key": "layers.1.p"}, lambda m: m.layers[1].p, "Model.layers.1.p"),
        ({"target": "model.layers.1", "key": "p", "name": "d"}, lambda m: m.layers[1].p, "d"),
        ({"target": "model.layers[1]", "key": "p"}, lambda m: m.layers[1].p, "Model.layers[1].p"),
        ({"target": "model", "key": "lr"}, lambda m: m.lr, "Model.lr"),
        ({"target": "model.weights", "key": "[1]", "alpha_i": 0.8}, lambda m: m.weights[1], "Model.weights[1]"),
        ({"target": "model", "key": "temperature"}, lambda m: m.temperature.item(), "Model.temperature"),
    ],
)
def test_a_value_of_the_model(entry, read, name):
    model = Model()
    built = optim.build(model, config(**entry))
    (scheduler,) = built.schedulers
    assert read(model) == pytest.approx(0.4) and list(scheduler.named_values()) == [name]
    for _ in range(4):
        built.clock.tick()
        scheduler.step()
    assert read(model) == 0 and built.optimizer.param_groups[0]["lr"] == 0.1
    assert name in str(built.table("0.5dur"))


def test_a_whole_number():
    model = Model()
    optim.build(model, config(target="model", key="length", multiple_of=64, alpha_i=0.9))
    assert model.length == 448


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"target": "optimizer", "key": "lr"}, "target='optimizer': it is no part of the model"),
        ({"target": "models", "key": "lr"}, "target='models': it is no part of the model"),
        ({"target": ".layers", "key": "lr"}, "target='.layers': it is no part of the model"),
        ({"target": 1, "key": "lr"}, "target=1: it is no part of the model"),
        ({"target": "model"}, "target='model': the entry has no key"),
        ({"target": "model", "key": "layers.1.q"}, "Dropout has no 'q'"),
        ({"target": "model", "key": "lr", "tags": "head"}, "bind.tags='head'"),
        ({"key": "lr", "name": "x"}, "bind.name='x': the target is an optimizer"),
    ],
)
def test_what_is_refused(entry, words):
    with pytest.raises(ValueError, match=rf"schedulers\[0\].*{words}"):
        optim.build(Model(), config(**entry))


def test_the_model_itself_is_needed():
    with pytest.raises(ValueError, match="there are only the parameters of the model. Pass the module to build"):
        optim.build(Model().named_parameters(), config(target="model", key="lr"))


@pytest.mark.parametrize("entry", [{"target": "model", "key": "layers.1.p"}, {"target": "model.layers.1", "key": "p"}])
def test_without_a_model_there_is_the_multiplier(entry):
    trial = make_trial(config(**entry))
    (scheduler,) = trial.schedulers.values()
    assert not trial.problems and scheduler.named_values() == {"model.layers.1.p": 1.0}


def test_check_follows_the_path(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    text = "max_duration: 4ba\noptimizer: {SGD: {lr: 0.1}}\nschedulers:\n- LinearScheduler: {target: model, key: KEY}\n"
    for key, words in (
        ("layers.1.p", "nothing found"),
        ("temperature", "nothing found"),
        ("layers.1.q", "Dropout has no 'q'"),
    ):
        path.write_text(text.replace("KEY", key), encoding="utf-8")
        status = main(["check", str(path), "--model", f"{__name__}:Model"])
        assert words in capsys.readouterr().out and status == (key == "layers.1.q")
    path.write_text(text.replace("KEY", "layers.1.p"), encoding="utf-8")
    assert main(["check", str(path)]) == 0
