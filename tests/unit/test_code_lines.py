"""tools/code_lines.py: which lines are code."""

from tools import code_lines

PROGRAM = '''"""A docstring
of two lines."""

# a comment
def f(x):  # code with a comment
    """A docstring."""

    return """a string
of two lines"""
'''


def test_lines_without_docstrings_comments_and_blanks(tmp_path):
    assert code_lines.code_lines(PROGRAM) == 3
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text(PROGRAM, encoding="utf-8")
    assert [code_lines.count(path) for path in (tmp_path, tmp_path / "a.py")] == [6, 3]
