"""The pictures of docs/which.md and docs/recipes.md show the schedules that stand beside them."""

import doctest
import re

import pytest

import timesched
from tests.docs.tables import DOCS, extension, rows

thumbnails = extension("thumbnails")
picture_style = extension("picture_style")
BACKGROUNDS = ("#ffffff", "#131416")  # of the site, in light and in dark mode
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


def test_every_picture_is_on_a_page():
    pages = [DOCS.parent / "README.md", *DOCS.glob("**/*.md")]
    shown = set(re.findall(r"_static/(\w+\.svg)\)", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert shown == {path.name for path in (DOCS / "_static").glob("*.svg")} - {"favicon.svg"}


def contrast(colour, background):
    """The contrast ratio of two colours, as WCAG 2.2 defines it: from 1 to 21."""

    def luminance(text):
        values = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(colour), luminance(background)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_lines_and_text_are_seen_in_light_and_in_dark_mode(background):
    """WCAG asks for 3 for lines. The gray of text in files is a compromise; on the site, text has the page's colour."""
    assert min(contrast(colour, background) for colour in picture_style.COLOURS[:4]) > 3
    assert contrast(picture_style.INK, background) > 4


def test_ticks_are_short():
    assert [picture_style.format_count(value) for value in (0, 500, 7.5e3, 5e9)] == ["0", "500", "7.5K", "5B"]
