"""Workflows, issue forms and the checks before a commit: they are YAML, and what they call exists."""

import re

import pytest
import yaml
from support.tiny import REPOSITORY

from fairseq_lrpe.cli import COMMANDS

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))  # not config.yml
TOOLS = {"mypy", "mkdocs", "pytest", "ruff"}


def lines(path):
    """Returns the command lines of a workflow."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_exists(path):
    assert lines(path)
    for line in lines(path):
        program, *words = line.split()
        if program == "python" and words[0] == "-m":
            assert words[1:] == ["venv", ".venv"], line
        elif program in ("bash", "python"):
            assert (REPOSITORY / words[0]).is_file(), line
        elif program == ".venv/bin/python":
            assert words[0] == "-m" and words[1] in TOOLS, line
        elif program == ".venv/bin/lrpe":
            assert words[0] in COMMANDS, line
        else:
            assert program in ("pip", "pre-commit"), line


def test_workflows_run_the_tests_on_every_supported_version():
    jobs = yaml.safe_load((GITHUB / "workflows/tests.yml").read_text())["jobs"]
    versions = jobs["tests"]["strategy"]["matrix"]["python"]
    minors = [int(version.removeprefix("3.")) for version in versions]
    supported = re.search(
        r"\(3, (\d+)\) <= .* < \(3, (\d+)\)", (REPOSITORY / "scripts/setup_env.sh").read_text()
    )
    assert minors == list(range(int(supported[1]), int(supported[2])))


def test_workflows_use_their_version_of_python():
    """scripts/setup_env.sh alone takes the newest one of the machine."""
    for path in WORKFLOWS:
        found = [line.split("  #")[0] for line in lines(path)]
        for number, line in enumerate(found):
            if line == "bash scripts/setup_env.sh":
                assert found[number - 1] == "python -m venv .venv", path


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_the_environment(path):
    fields = {field.get("id"): field for field in yaml.safe_load(path.read_text())["body"]}
    assert "`lrpe env`" in fields["environment"]["attributes"]["description"]


def test_commit_checks_use_the_tested_ruff():
    [pin] = re.findall(r"^ruff==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    repositories = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {entry["repo"].rpartition("/")[2]: entry["rev"] for entry in repositories}
    assert revisions["ruff-pre-commit"] == f"v{pin}"
