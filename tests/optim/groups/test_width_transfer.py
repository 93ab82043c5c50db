"""The coordinate check of examples/width_transfer.py, as a user runs it."""

from tests.torchrun import ROOT, python_output


def read_changes(shown: str) -> dict[str, dict[str, list[float]]]:
    """For each title, the changes of each output at the three widths."""
    tables: dict[str, dict[str, list[float]]] = {}
    title = ""
    for line in shown.splitlines():
        *words, narrow, middle, wide = line.split()
        if line.startswith(" "):
            tables[title][words[0]] = [float(narrow), float(middle), float(wide)]
        else:
            title = " ".join(words)
            tables[title] = {}
            assert (narrow, middle, wide) == ("64", "256", "1024")
    return tables


def test_the_changes_do_not_depend_on_the_width():
    """With the factors and the changes in the model; with neither, they grow."""
    tables = read_changes(python_output(ROOT / "examples" / "width_transfer.py"))
    assert list(tables) == ["factors and changes", "factors", "changes", "neither"]
    for table in tables.values():
        assert list(table) == ["embedding", "block1", "block2", "norm", "head"]
    for narrow, _, wide in tables["factors and changes"].values():
        assert narrow / 1.3 <= wide <= 1.3 * narrow
    assert max(wide / narrow for narrow, _, wide in tables["neither"].values()) > 5
