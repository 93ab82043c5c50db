"""The documents name files, sections and make targets that exist."""

import os
import re
from pathlib import Path

import pytest

from tests.docs.tables import DOCS, toctree_entries

ROOT = DOCS.parent
ALONE = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in ALONE), *sorted(ROOT.glob("docs/**/*.md"))]
GROUPS = ("how_to", "trainers", "concepts", "reference/index", "examples", "project/index")
named = pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page):
    """The sections of a page, as GitHub names them in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@named
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(linked), f"{target} has no section {anchor}: {sorted(anchors(linked))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_make_targets_that_are_named_exist(page):
    """Files with a folder; a file alone is in the folder of the page, or in the one that is named with it."""
    text = page.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:timesched|optim|tests|benchmarks|examples|docs)/[\w./]*)", text))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    if page.parent.name == "benchmarks":
        assert [name for name in re.findall(r"`(\w+\.py)", text) if not (page.parent / name).exists()] == []
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("name", GROUPS)
def test_each_page_of_a_group_is_described(name):
    """The index page of a group says which question each page answers; the sidebar has the pages of its toctrees."""
    group = ROOT / f"docs/{name}.md"
    folder, text = group.parent, group.read_text(encoding="utf-8")
    toctrees = "".join(re.findall(r"```{toctree}(.*?)```", text, re.DOTALL))
    entries = re.findall(r"^(?:[^:\n].* <)?(/?[\w/]+)>?$", toctrees, re.MULTILINE)
    pages = {os.path.normpath(f"{ROOT}/docs{entry}" if entry[0] == "/" else folder / entry) for entry in entries}
    linked = {os.path.normpath(folder / target) for target in re.findall(r"\]\(([\w/.]+)\.(?:md|rst)", text)}
    assert pages - linked == set()


def test_the_sidebar_shows_the_pages_to_start_with_without_a_click():
    """The page `get_started` has no toctree of its own: its pages are entries of the front page, next to it."""
    described = re.findall(r"^\* \[.*?\]\((.*?)\.md\)", (DOCS / "get_started.md").read_text("utf-8"), re.MULTILINE)
    assert toctree_entries(DOCS / "get_started.md") == []
    assert toctree_entries(DOCS / "index.md")[: 1 + len(described)] == [
        DOCS / name for name in ["get_started", *described]
    ]


def test_the_sidebar_of_the_site_has_every_page_once():
    """Starting at the front page, each page is in one toctree. (The pages in reference/api are written by Sphinx.)"""
    suffixes = (".md", ".rst")
    found, left = [], [DOCS / "index.md"]
    while left:
        page = left.pop().resolve()
        found.append(page)
        left += [
            file for name in toctree_entries(page) for suffix in suffixes if (file := Path(f"{name}{suffix}")).exists()
        ]
    written = [page for page in DOCS.glob("**/*") if page.suffix in suffixes and "api" not in page.parts]
    assert sorted(page for page in found if "api" not in page.parts) == sorted(page.resolve() for page in written)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_fit_the_site(page):
    """No line of code and no command is longer than 88 columns: the site shows it without a scroll bar.

    The text of a page is 736 px wide in a window of 1280 px. Its code has margins of 14 px and letters of 7.83 px, so
    90 columns fit.
    """
    long = []
    for code in code_blocks(page, "python|yaml"):
        typed = [line for line in code.splitlines() if not code.startswith(">>>") or line[:4] in (">>> ", "... ")]
        long += [line for line in typed if len(line) > 88]
    for session in code_blocks(page, "console"):
        commands = re.findall(r"^\$ (?:.*\\\n)*.*", session, re.MULTILINE)
        long += [line for command in commands for line in command.splitlines() if len(line) > 88]
    assert long == []


def code_blocks(page, languages):
    return re.findall(rf"^```(?:{languages})\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
