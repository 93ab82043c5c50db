"""The table of what schedules are called in transformers: it is that of docs/coming_from/hugging_face.md."""

import re

from tests.docs.tables import DOCS, rows
from timesched.cli.schedules import read_entry
from timesched.reading import PEERS, SCHEDULE

HEADER = ["`transformers.optimization`", "`lr_scheduler_type`", "`timesched`, with `bind`"]
CALL = re.compile(r"`(\w+\(.*?\))`")


def test_names_and_calls_are_those_of_the_page():
    ((*table,),) = rows("coming_from/hugging_face.md", HEADER)
    there = {}  # names by calls; some rows have the same
    for function, kind, cell in table:
        call = CALL.match(cell)
        if call:
            there.setdefault(call[1], []).extend([function.strip("`").partition("(")[0], kind.strip("`")])
    assert list(PEERS) == list(there)
    for call, line in PEERS.items():
        names = line.split()
        assert set(names) - {"noam"} <= set(there[call])
        assert all(is_known(name) for name in there[call] if name not in names)


def is_known(name):
    """Whether the command line finds something by a name without the table."""
    try:
        return SCHEDULE.find(name, "SCHEDULE") is not None
    except ValueError as error:
        return name == "cosine" and "could mean CosineAnnealingScheduler" in str(error)


def test_noam_is_that_of_the_recipes():
    recipe = (DOCS / "recipes.md").read_text(encoding="utf-8").partition("## Noam")[2]
    there = re.search(r"schedule = (\w+\([^)]*\))", recipe)[1].replace("... ", "").replace("4000ba", "10ba")
    (call,) = [call for call, names in PEERS.items() if "noam" in names.split()]
    assert read_entry(call) == read_entry(there)
