"""What stands beside the package: its metadata, how to cite it, the container of its page."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from metavrf.cli import parse
from metavrf.serve.command import Serve

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@pytest.fixture(scope="module")
def citation() -> str:
    return (ROOT / "CITATION.cff").read_text()


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and arguments."""
    text = re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def of_kind(steps: list[tuple[str, str]], name: str) -> list[str]:
    return [arguments for step, arguments in steps if step == name]


# Metadata


def test_the_citation_has_the_version_and_licence_of_the_package(project: dict[str, Any], citation: str) -> None:
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [project["version"]]
    assert re.findall(r"^license: (.+)$", citation, flags=re.MULTILINE) == [project["license"]]
    assert re.findall(r"^repository-code: (.+)$", citation, flags=re.MULTILINE) == [project["urls"]["Source"]]


def test_the_citation_is_yaml_that_names_the_paper(citation: str) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = yaml.safe_load(citation)
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version"} <= found.keys()
    paper = found["preferred-citation"]
    names = ["Zhen", "Sun", "Du", "Xu", "Yin", "Shao", "Snoek"]
    assert [author["family-names"] for author in paper["authors"]] == names
    assert (paper["title"], paper["year"]) == ("Learning to Learn Kernels with Variational Random Features", 2020)


def test_the_oldest_python_named_is_the_oldest_that_is_allowed(project: dict[str, Any]) -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}"
    assert not [name for name in project["classifiers"] if name.startswith("License")]  # 'license' says it, by PEP 639


def test_what_a_source_distribution_takes_along_is_there() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert [name for name in build["targets"]["sdist"]["include"] if not (ROOT / name).exists()] == []


# The container


def test_the_dockerfile_copies_files_that_are_there_and_not_ignored(steps: list[tuple[str, str]]) -> None:
    sources = [source for arguments in of_kind(steps, "COPY") for source in shlex.split(arguments)[:-1]]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert sorted(kept) == sorted(sources)


def test_the_dockerfile_copies_what_the_build_reads(project: dict[str, Any], steps: list[tuple[str, str]]) -> None:
    copied = " ".join(of_kind(steps, "COPY")).split()
    assert {project["readme"], *project["license-files"]} <= set(copied)


def test_the_container_installs_tested_versions_of_what_the_page_needs(
    project: dict[str, Any], steps: list[tuple[str, str]]
) -> None:
    (install,) = (shlex.split(step) for step in of_kind(steps, "RUN") if step.startswith("pip install"))
    assert install[install.index("--constraint") + 1] == "constraints.txt"
    assert install[-1] == ".[serve]"
    assert "serve" in project["optional-dependencies"]


def test_the_container_runs_as_a_plain_user_a_command_that_the_parser_takes(steps: list[tuple[str, str]]) -> None:
    names = [name for name, _ in steps]
    assert names[0] == "FROM"
    assert names.index("USER") < names.index("CMD")
    assert of_kind(steps, "USER") == ["metavrf"]
    assert "useradd --create-home metavrf" in of_kind(steps, "RUN")
    program, *arguments = json.loads(of_kind(steps, "CMD")[0])
    assert program == "metavrf"
    command = parse(arguments)
    assert isinstance(command, Serve)
    assert (command.host, command.open) == ("0.0.0.0", False)
    assert of_kind(steps, "EXPOSE") == [str(command.port)]
