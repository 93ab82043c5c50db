"""The pictures of docs/which.md and docs/recipes.md show the schedules that stand beside them."""

import doctest
import re

import pytest

import timesched
from tests.docs.tables import DOCS, extension, rows

thumbnails = extension("thumbnails")
PICTURE = re.compile(r"!\[[^\]]*\]\(_static/curves/(\w+)\.svg\)")
WHICH = rows("which.md", ["you train", "", "line to paste", "recipe, source"])[0]
RECIPES = (DOCS / "recipes.md").read_text(encoding="utf-8").split("\n## ")[1:]


def drawn(name):
    """The schedule in a picture."""
    return eval(thumbnails.CURVES[name][0], dict(vars(timesched)))


@pytest.mark.parametrize("name", thumbnails.CURVES)
def test_a_file_is_the_picture_of_its_call(name):
    path = thumbnails.FOLDER / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == thumbnails.thumbnail(*thumbnails.CURVES[name]), (
        "draw the pictures anew, with docs/_ext/thumbnails.py"
    )


def test_no_picture_is_left_over():
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("which.md", "recipes.md"))
    files = {path.stem for path in thumbnails.FOLDER.glob("*.svg")}
    assert files == set(thumbnails.CURVES) == set(PICTURE.findall(pages))


@pytest.mark.parametrize("row", WHICH, ids=lambda row: row[0].strip("*"))
def test_a_line_to_paste_is_the_schedule_in_its_picture(row):
    """The line of a cooldown branches from a run of a constant rate, of which the picture shows the whole."""
    line, name = row[2].strip("`"), PICTURE.search(row[1])[1]
    known = dict(vars(timesched))
    if name == "cooldown":
        clock = timesched.Clock("10Btok", samples_per_batch=1000, tokens_per_sample=1000)
        for _ in range(8000):
            clock.tick()
        known |= {"schedule": timesched.ConstantScheduler(), "clock": clock}
        branch, run = eval(line, known), clock.horizon
        times = ("8Btok", "8.5Btok", "9Btok", "10Btok")
        assert [branch.at(each, run) for each in times] == [drawn(name).at(each, run) for each in times]
    else:
        assert eval(line, known) == drawn(name)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda text: text.partition("\n")[0])
def test_the_picture_of_a_recipe_is_of_its_schedule(recipe):
    (name,) = PICTURE.findall(recipe)
    examples = doctest.DocTestParser().get_examples(recipe.partition("```python\n")[2].partition("```")[0])
    known = {"at": lambda *rest: None}
    exec("import torch, optim\nfrom timesched import *", known)
    for example in examples:
        if not example.source.startswith("for "):
            exec(example.source, known)
    assert drawn(name) in [each for each in known.values() if isinstance(each, timesched.Schedule)]
