"""Arguments that our pages name of other people's classes exist in the versions that are installed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
from typing import Any

import pytest
import transformers

from tests.docs.tables import DOCS

# Where the names on a page come from; ours are among them, as several have the same names.
OURS = ["timesched", "optim", "optim.lr_scheduler"]
TORCH = ["torch.optim", "torch.optim.lr_scheduler", "torch.optim.swa_utils", "torch.utils.data"]
HUGGING_FACE = ["transformers", "transformers.optimization", "timesched.integrations.transformers"]
LIGHTNING = ["lightning.pytorch", "lightning.pytorch.callbacks", "timesched.integrations.lightning"]
ACCELERATE = ["accelerate", "timesched.integrations.accelerate"]
TORCHTITAN = ["torchtitan.components.optimizer", "torchtitan.config", "timesched.integrations.torchtitan"]
PAGES = {
    "coming_from/torch.md": TORCH,
    "coming_from/hugging_face.md": [*TORCH, *HUGGING_FACE],
    "comparison.md# Averages of weights": [*TORCH, *LIGHTNING],
    "averages.md": [*TORCH, *HUGGING_FACE, *LIGHTNING],
    "trainers/hugging_face.md": [*HUGGING_FACE, "trl"],
    "trainers/lightning.md": LIGHTNING,
    "trainers/accelerate.md": ACCELERATE,
    "trainers/torchtitan.md": TORCHTITAN,
    "tutorials/hugging_face.md": HUGGING_FACE,
    "tutorials/lightning.md": LIGHTNING,
}


# What takes arguments that a page names without a call, as in `max_steps=100`.
ALONE = [
    *("transformers.TrainingArguments", "trl.SFTConfig", "lightning.pytorch.Trainer", "accelerate.Accelerator"),
    *("torchtitan.components.optimizer.ParamGroupConfig", "torchtitan.config.TrainingConfig"),
    *("torchtitan.components.checkpointer.CheckpointManager.Config", "hydra.utils.instantiate"),
    *("timesched.integrations.torchtitan.Schedules.Config", "timesched.integrations.transformers.schedule"),
    *("timesched.integrations.lightning.schedule", "optim.WeightAverage", "optim.AdamW", "timesched.Clock"),
    *("transformers.Trainer", "torch.optim.lr_scheduler.OneCycleLR", "timesched.bind"),
    *(
        "transformers.optimization.get_polynomial_decay_schedule_with_warmup",
        "transformers.optimization.get_wsd_schedule",
    ),
    *("timesched.PolynomialWithWarmupScheduler", "timesched.WarmupStableDecayScheduler"),
    *("optim.Muon", "optim.lr_scheduler.MultiStepLR", "torch.optim.lr_scheduler.LinearLR"),
    *("torch.optim.lr_scheduler.CyclicLR",),
]


def arguments(thing: Any) -> set[str]:
    """The names of the arguments that a class or function takes."""
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):  # a name that is no callable of Python
        return set()


def find(modules: list[str], name: str) -> list[Any]:
    """What has a name, in whichever of the modules."""
    things = []
    for module in [*OURS, *modules]:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            things.append(getattr(importlib.import_module(module), name, None))
    roots = {module.partition(".")[0] for module in [*OURS, *modules]}
    return [thing for thing in things if str(getattr(thing, "__module__", "")).partition(".")[0] in roots]


def alone() -> set[str]:
    """The names of arguments that may stand without a call."""
    known = {"_convert_"}  # which Hydra reads of its keywords
    for name in ALONE:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            known |= arguments(pkgutil.resolve_name(name))
    return known


def code(text: str) -> list[str]:
    """The code of a page: its blocks, and what stands between backticks."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.MULTILINE) for block in blocks]
    return [*lines, *re.findall("`([^`]+)`", prose)]


def unknown(text: str, modules: list[str]) -> list[str]:
    """The arguments of calls, and those that stand alone as in `max_steps=100`, that nothing on the page takes."""
    wrong: list[str] = []
    known = alone()
    for piece in code(text):
        try:
            tree = ast.parse(piece)
        except SyntaxError:  # output, or no Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                takes = [arguments(thing) for thing in find(modules, name)]
                for keyword in node.keywords:
                    if takes and keyword.arg is not None and not any(keyword.arg in names for names in takes):
                        wrong.append(f"{name}({keyword.arg}=...)")
        first = re.match(r"(?:\w+\.)*(\w+)=[^=]", piece)
        if first is not None and first[1] not in known:
            wrong.append(f"{first[1]}=...")
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_arguments_on_our_pages_exist(page):
    """On a whole page, or in the section that is named after "#"."""
    name, _, section = page.partition("#")
    text = (DOCS / name).read_text(encoding="utf-8")
    assert not section or f"##{section}\n" in text
    text = text.partition(f"##{section}\n")[2].partition("\n## ")[0] if section else text
    assert unknown(text, PAGES[page]) == []


def test_what_does_not_exist_is_found():
    gone = ["In `TrainingArguments(warmup_ratio=0.03)`", "there `warmup_ratio=0.03` is"]
    assert unknown(gone[0], HUGGING_FACE) == ["TrainingArguments(warmup_ratio=...)"]
    assert unknown(gone[1], HUGGING_FACE) == ["warmup_ratio=..."]
    assert unknown("`warmup_steps=0.03` and `Trainer(args=a)`", HUGGING_FACE) == []
    arguments = transformers.TrainingArguments("there", warmup_steps=0.03, use_cpu=True)
    assert [arguments.get_warmup_steps(steps) for steps in (100, 101)] == [3, 4]
