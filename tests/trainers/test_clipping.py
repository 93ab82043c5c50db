"""The code of docs/muon.md that clips all gradients but Muon's, in runs of Hugging Face's and Lightning's Trainers."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import optim
from tests.trainers.rows import lightning, transformers
from tests.trainers.runs import Model, Task

PAGE = (Path(__file__).parents[2] / "docs" / "muon.md").read_text("utf-8")
SECTION = PAGE.split("## Clip the gradients of the other groups")[1].split("\n## ")[0]
(FUNCTION,) = [x.source for x in doctest.DocTestParser().get_examples(SECTION) if x.source.startswith("def ")]
CALLBACK, MODULE = [code for code in re.findall("```python\n(.*?)```", SECTION, re.DOTALL) if "class " in code]
LARGEST = 1e-3  # the norm that is clipped to, which all gradients exceed


def defined_in(code: str, **names: Any) -> dict[str, Any]:
    """The names that the class in a block of the page defines, without the lines that use it."""
    exec(FUNCTION, names)
    exec(code.partition("\n\n\n")[0], names)
    return names


def make_muon(model: Model, norms: list[dict[str, float]]) -> Any:
    """An optimizer that notes the norms of the gradients of each step, by algorithm."""

    def note(optimizer: Any, *_: Any) -> None:
        gradients: dict[str, list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            gradients.setdefault(group["algorithm"], []).extend(p.grad for p in group["params"] if p.grad is not None)
        norms.append({name: torch.nn.utils.get_total_norm(tensors).item() for name, tensors in gradients.items()})

    groups = optim.configure_param_groups(model, matrices="muon", output_head="head.1*")
    optimizer = optim.Muon(groups, lr=1e-3, adamw={"lr": 1e-3})
    optimizer.register_step_post_hook(note)  # Lightning computes the gradients in the step
    return optimizer


def assert_clipped(norms: list[dict[str, float]]) -> None:
    assert len(norms) > 2
    for by_algorithm in norms:
        assert by_algorithm["adamw"] == pytest.approx(LARGEST, rel=1e-2) and by_algorithm["muon"] > 2 * LARGEST


def test_hugging_face(tmp_path: Path) -> None:
    model, norms = Model(), []
    options = {"optimizers": (make_muon(model, norms), None), "max_grad_norm": 0.0}
    trainer = transformers.make_trainer(tmp_path, Task(epochs=1), model, **options)
    ClipOthers = defined_in(CALLBACK, TrainerCallback=TrainerCallback, torch=torch)["ClipOthers"]
    trainer.add_callback(ClipOthers(trainer, LARGEST))
    trainer.train()
    assert_clipped(norms)


@pytest.mark.filterwarnings("ignore")  # what Lightning warns of
def test_lightning(tmp_path: Path) -> None:
    norms: list[dict[str, float]] = []
    Clipping = defined_in(MODULE, LightningModule=lightning.Module, torch=torch)["Model"]

    class Module(Clipping):
        def configure_optimizers(self) -> Any:
            return make_muon(self.net, norms)

    task = Task(epochs=1)
    lightning.train(tmp_path, task, Module(task), gradient_clip_val=LARGEST)
    assert_clipped(norms)
