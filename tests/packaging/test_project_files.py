"""The files that a code host reads: workflows, which only call the Makefile, templates, and the citation."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import timesched

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))


def read_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    """What the jobs of a workflow run."""
    steps = [step for job in read_yaml(path)["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_only_call_targets_of_the_makefile(path: Path) -> None:
    assert commands(path)
    for command in commands(path):
        program, target = command.split()
        assert program == "make"
        assert target in TARGETS


def test_the_workflow_runs_what_ci_runs() -> None:
    """`.ci/run` has a line for each command; the workflow has a job for each, or a step."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    in_script = set(re.findall(r"^make [a-z-]+$", script, re.MULTILINE))
    in_workflow = set(commands(ROOT / ".github" / "workflows" / "ci.yml"))
    assert in_script - in_workflow == {"make test-python"}  # the workflow runs all tests on each Python
    assert in_workflow <= in_script


def test_each_python_that_the_package_names_is_tested() -> None:
    job = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert job["strategy"]["matrix"]["python"] == re.findall(r"Python :: (3\.\d+)", project)


def call_make(*arguments: str, path: str = "") -> str:
    """The output of make, as called in a shell: without the arguments of a make that runs these tests."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    environment["PATH"] = path + os.environ["PATH"]
    return subprocess.check_output(["make", *arguments], cwd=ROOT, env=environment, text=True)


def pythons_in_a_week(tmp_path: Path) -> list[str]:
    """The Python of `make test-python` on each day of a week: the command that make prints without running it."""
    pythons = []
    for day in range(1, 8):
        date = tmp_path / "date"
        date.write_text(f"#!/bin/sh\necho {day}\n")
        date.chmod(0o755)
        output = call_make("--dry-run", "test-python", path=f"{tmp_path}{os.pathsep}")
        pythons += re.findall(r"(python3\.\d+) tools/env\.py newest", output)
    return pythons


def test_each_python_but_that_of_ci_has_a_day(tmp_path: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pythons = [f"python{version}" for version in re.findall(r"Python :: (3\.\d+)", project) if version != "3.11"]
    in_a_week = pythons_in_a_week(tmp_path)
    assert len(in_a_week) == 7
    assert set(in_a_week) == set(pythons)


def test_a_python_that_is_not_installed_is_left_out() -> None:
    output = call_make("test-python", "PYTHON=python3.0")
    assert output == "python3.0, the other Python of today, is not installed. Its tests are left out.\n"


@pytest.mark.parametrize("name", ["wrong_schedule.md", "unhelpful_error.md"])
def test_templates_of_issues_have_a_name_and_a_purpose(name: str) -> None:
    _, front, body = (ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8").split("---\n", 2)
    about = YAML(typ="safe", pure=True).load(front)
    assert set(about) == {"name", "about", "labels"}
    assert body.strip()


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert (citation["title"], citation["version"], citation["license"]) == ("timesched", timesched.__version__, "MIT")


def test_pre_commit_runs_the_ruff_of_make_lint() -> None:
    (repository,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    pins = (ROOT / "requirements" / "newest.txt").read_text(encoding="utf-8")
    assert f"ruff=={repository['rev'].removeprefix('v')}\n" in pins
