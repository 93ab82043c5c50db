"""The tables of docs/results.md are those of the results that are kept; a run gives the same result again."""

import importlib
import re

import pytest

from tests.docs.tables import DOCS

BENCHMARKS = DOCS.parent / "benchmarks"
NAMES = sorted(path.stem.removeprefix("results_") for path in BENCHMARKS.glob("results_*.py"))
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
TABLE = re.compile(r"<!-- the table of benchmarks/results_(\w+)\.py -->\n\n(.*?)\n\n<!-- its end -->", re.DOTALL)


@pytest.fixture
def shared(monkeypatch):
    """What the scripts share. They import each other by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_results")


def test_every_script_has_its_table_and_its_results():
    shown = [name for name, _ in TABLE.findall(PAGE)]
    assert sorted(shown) == sorted(path.stem for path in (BENCHMARKS / "results").glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_what_the_results_give(name, shared):
    script, kept = importlib.import_module(f"results_{name}"), shared.Results(name)
    assert kept.found.keys() == set(script.RUNS), "a script would measure; finish it, or delete its file"
    assert script.table(kept.found) == dict(TABLE.findall(PAGE))[name], (
        f"run benchmarks/results_{name}.py --page, and read again what the page says of it"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_the_results_were_measured_on(name, shared):
    on = shared.Results(name).on
    assert on["threads"] == 1
    for key in ("parameters", "learned_bytes", "held_out_bytes"):
        assert f"{on[key]:,}" in PAGE
    assert f"torch {on['torch'].partition('+')[0]}" in PAGE and f"Python {on['python']}" in PAGE


def test_a_script_that_was_stopped_goes_on(tmp_path, monkeypatch, shared):
    """Each run is in the file when it is done, and no run is measured twice."""
    monkeypatch.setattr(shared, "RESULTS", tmp_path / "results")
    runs = [shared.Run("AdamW", 0.01, seed, tokens=8192, averaged=True) for seed in (0, 1)]
    shared.Results("stopped").complete(runs[:1])
    first = shared.Results("stopped").found
    assert list(first) == runs[:1] and first[runs[0]]["bits"] < 6
    shared.Results("stopped").complete(runs)
    assert list(shared.Results("stopped").found) == runs
    assert shared.Results("stopped").found[runs[0]] == first[runs[0]]
    again = shared.measure(runs[0])
    assert {**again, "seconds": 0} == {**first[runs[0]], "seconds": 0}


def test_results_of_two_machines_are_not_mixed(tmp_path, monkeypatch, shared):
    monkeypatch.setattr(shared, "RESULTS", tmp_path)
    run = shared.Run("AdamW", 0.01, 0, tokens=8192)
    results = shared.Results("mixed")
    results.on, results.found = {"torch": "2.0"}, {run: {"bits": 1.0, "curve": [], "seconds": 0.1}}
    results.write()
    with pytest.raises(SystemExit, match="delete it to measure all anew"):
        shared.Results("mixed").complete([run, shared.Run("AdamW", 0.01, 1, tokens=8192)])
