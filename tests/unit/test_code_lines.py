"""tools/code_lines.py: which lines are code, of which files."""

import subprocess

from tools import code_lines

PROGRAM = '''"""A docstring
of two lines."""

# a comment
def f(x):  # code with a comment
    """A docstring."""

    return """a string
of two lines"""
'''


def test_lines_without_docstrings_comments_and_blanks():
    assert code_lines.code_lines(PROGRAM) == 3
    assert code_lines.code_lines('x = {}\n\n"a string that is no docstring"\n') == 2


def test_tracked_files_here_and_in_a_commit(tmp_path, monkeypatch, capsys):
    def counted(*arguments):
        monkeypatch.setattr("sys.argv", ["code_lines.py", *arguments])
        code_lines.main()
        return capsys.readouterr().out

    def git(*arguments):
        of_a_person = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *of_a_person, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.chdir(tmp_path)
    for name in ("a/one.py", "a/b/two.py", "a/c.txt", "three.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM, encoding="utf-8")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    (tmp_path / "a/one.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "a/new.py").write_text("x = 1\n", encoding="utf-8")  # not tracked
    assert counted("a") == "4 lines of code, 10 lines in 2 files: a\n"
    assert counted("a", "three.py") == "7 lines of code, 19 lines in 3 files: a three.py\n"
    two, one = "     3      9 a/b/two.py\n", "     1      1 a/one.py\n"
    assert counted("--files", "a") == two + one + "4 lines of code, 10 lines in 2 files: a\n"
    assert counted("--at", "HEAD", "a") == "6 lines of code, 18 lines in 2 files: a\n"
    assert counted("--files", "--at", "HEAD", "a").splitlines()[:2] == ["     3      9 a/one.py", two.rstrip()]
    monkeypatch.chdir(tmp_path / "a")  # paths are those of the folder where one is
    assert counted("--at", "HEAD", "b") == "3 lines of code, 9 lines in 1 files: b\n"
