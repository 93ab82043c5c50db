"""What newcomers want to do: each answer is at most two clicks from the front page.

Who moves or shortens a page keeps these answers. A task that gets a better answer elsewhere gets its new place here.
"""

import pytest

from tests.docs.tables import DOCS, linked_pages

CLICKS = 2
TASKS = {  # the task: the page with the answer, and a heading or words there
    "install the package": ("quickstart", "## 1. Install"),
    "use a schedule in my loop": ("quickstart", "## 2. Change your loop"),
    "choose a schedule for fine-tuning": ("which", "| **fine-tuning** |"),
    "convert warmup_steps=2000 to tokens": ("steps_to_tokens", "`warmup_steps=2000`"),
    "replace torch's LambdaLR": ("coming_from/torch", "### `LambdaLR`"),
    "replace get_cosine_schedule_with_warmup": ("coming_from/hugging_face", "`get_cosine_schedule_with_warmup("),
    "use a schedule in the Hugging Face Trainer": ("trainers/hugging_face", "schedule(trainer"),
    "schedule the weight decay": ("loop", "## What `bind` can schedule"),
    "see the curve of a schedule": ("command_line", "## `plot`: a picture"),
    "find out why the learning rate stays 0": ("troubleshooting", "## The learning rate stays 0"),
    "resume a run": ("checkpoints", "## Save and load a scheduler"),
    "train longer than planned": ("checkpoints", "## Another schedule, or a longer run"),
    "exclude biases from weight decay": (
        "groups",
        "## Make groups from names, without weight decay for norms and biases",
    ),
    "freeze layers": ("learning_rates", "## Freeze layers, and unfreeze them"),
    "train with FSDP": ("distributed", "## 2. Shard the model, then make optimizer and schedule"),
    "increase the batch size during the run": ("batch_size_schedules", "## Load batches that grow"),
    "keep an average of the weights": ("averages", "## Choose a kind of average"),
    "log the learning rate to Weights & Biases": ("logging", "Weights & Biases"),
    "train with Muon": ("muon", "## Train a model with one optimizer"),
    "look up which versions of torch work": ("compatibility", "## Versions"),
}


def pages_within(clicks):
    """The pages that a reader of the front page reaches. It shows README.md."""
    reached = {DOCS / "index.md", DOCS.parent / "README.md"}
    for _ in range(clicks):
        reached = reached.union(*map(linked_pages, reached))
    return reached


@pytest.mark.parametrize("task", TASKS)
def test_two_clicks_lead_to_the_answer(task):
    name, answer = TASKS[task]
    page = DOCS / f"{name}.md"
    assert answer in page.read_text(encoding="utf-8")
    assert page in pages_within(CLICKS)
