"""The files that a code host reads: workflows, which only call the Makefile, templates, and the citation."""

import re
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
    assert set(commands(ROOT / ".github" / "workflows" / "ci.yml")) == set(
        re.findall(r"^make [a-z-]+$", script, re.MULTILINE)
    )


def test_each_python_that_the_package_names_is_tested() -> None:
    job = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert job["strategy"]["matrix"]["python"] == re.findall(r"Python :: (3\.\d+)", project)


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
