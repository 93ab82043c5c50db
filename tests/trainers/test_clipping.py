"""The code of docs/muon.md that clips all gradients but Muon's, in runs of Hugging Face's and Lightning's Trainers."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from transformers import TrainerCallback

import optim
from tests.trainers import test_lightning as lightning_runs
from tests.trainers import test_transformers as transformers_runs

PAGE = (Path(__file__).parents[2] / "docs" / "muon.md").read_text("utf-8")
SECTION = PAGE.split("## Clip the gradients of the other groups")[1].split("\n## ")[0]
(FUNCTION,) = [
    example.source for example in doctest.DocTestParser().get_examples(SECTION) if example.source.startswith("def ")
]
CALLBACK, MODULE = [code for code in re.findall("```python\n(.*?)```", SECTION, re.DOTALL) if "class " in code]
LARGEST = 1e-3  # the norm that is clipped to, which all gradients exceed


def defined_in(code: str, **names: Any) -> dict[str, Any]:
    """The names that the class in a block of the page defines, without the lines that use it."""
    exec(FUNCTION, names)
    exec(code.partition("\n\n\n")[0], names)
    return names


def norms(optimizer: Any) -> dict[str, float]:
    """The norms of the gradients, by algorithm."""
    gradients: dict[str, list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        gradients.setdefault(group["algorithm"], []).extend(p.grad for p in group["params"] if p.grad is not None)
    return {algorithm: torch.nn.utils.get_total_norm(found).item() for algorithm, found in gradients.items()}


def assert_clipped(found: list[dict[str, float]]) -> None:
    assert len(found) > 2
    for by_algorithm in found:
        assert by_algorithm["adamw"] == pytest.approx(LARGEST, rel=1e-2) and by_algorithm["muon"] > 2 * LARGEST


def test_hugging_face(tmp_path: Path) -> None:
    model = transformers_runs.new_model()
    groups = optim.configure_param_groups(model, matrices="muon")
    optimizer = optim.Muon(groups, lr=1e-3, adamw={"lr": 1e-3})
    found: list[dict[str, float]] = []

    class Recorder(TrainerCallback):
        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            found.append(norms(kwargs["optimizer"]))

    options = {"optimizers": (optimizer, None), "max_grad_norm": 0.0, "num_train_epochs": 1}
    trainer = transformers_runs.new_trainer(tmp_path, model=model, **options)
    ClipOthers = defined_in(CALLBACK, TrainerCallback=TrainerCallback, torch=torch)["ClipOthers"]
    trainer.add_callback(ClipOthers(trainer, LARGEST))
    trainer.add_callback(Recorder())
    trainer.train()
    assert_clipped(found)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore::FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning")
def test_lightning(tmp_path: Path) -> None:
    found: list[dict[str, float]] = []
    Clipping = defined_in(MODULE, LightningModule=LightningModule, torch=torch)["Model"]

    class Model(Clipping):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.net = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 10))

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return self.net(batch["input_ids"]).square().mean()

        def configure_optimizers(self) -> Any:
            groups = optim.configure_param_groups(self, matrices="muon")
            return optim.Muon(groups, lr=1e-3, adamw={"lr": 1e-3})

        def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            super().configure_gradient_clipping(optimizer, *args, **kwargs)
            found.append(norms(optimizer))

    options = {"max_epochs": 1, "gradient_clip_val": LARGEST}
    lightning_runs.trainer(tmp_path, **options).fit(Model(), lightning_runs.Loader())
    assert_clipped(found)
