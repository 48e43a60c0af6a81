"""The studies of the package: their settings, and the paper's figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import metavrf
from metavrf.cli import main
from metavrf.config import Config
from metavrf.learners import LEARNERS
from metavrf.learners.prototypical import Prototypical
from metavrf.studies.catalog import DEEP, catalog, chosen
from metavrf.studies.known import FITTED, evaluate_known
from metavrf.studies.study import BUDGETS, Known, Plan
from metavrf.tasks.functions import FAMILIES, family
from metavrf.testing.published import PUBLISHED
from metavrf.testing.settings import EvalSettings

ROOT = Path(__file__).parents[2]
STUDIES = catalog()
TINY_KERNELS: dict[str, Any] = {"components": 4, "guards": 1, "validate_tasks": 10, "validate_every": 2}


def everything(plan: Plan) -> Plan:
    """As if all data were there."""
    plan.is_there = lambda task: True  # type: ignore[method-assign]
    plan.__post_init__()
    return plan


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_settings_that_can_be(name: str, budget: str, tmp_path: Path) -> None:
    plan = everything(Plan({name: STUDIES[name]}, tmp_path, budget))
    assert plan.jobs
    for job in plan.jobs.values():
        functions = isinstance(job.source, Known) or job.source.validate().kind == "functions"
        for test in job.tests.values():
            EvalSettings(**plan.options(job, test)).check(regression=functions)
    drawn = [cell.column for cell in STUDIES[name].cells] if STUDIES[name].picture == "lines" else []
    assert all(float(column) for column in drawn)


@pytest.mark.parametrize("name", STUDIES)
def test_the_papers_figures_stand_in_columns_that_there_are(name: str) -> None:
    columns = {cell.column for cell in STUDIES[name].cells}
    assert {column for line in STUDIES[name].paper.values() for column in line} <= columns
    assert set(STUDIES[name].quick) <= {cell.row for cell in STUDIES[name].cells}


def test_tables_hold_the_papers_figures() -> None:
    omniglot, photos, deep = (STUDIES[name].paper for name in ("omniglot-table", "photo-table", "deep-table"))
    assert omniglot["metavrf bilstm"]["Omniglot 20-way 1-shot"] == "97.8†"
    assert omniglot["prototypical"]["Omniglot 5-way 5-shot"] == "99.5"
    assert photos["rff"]["CIFAR-FS 5-way 1-shot"] == "61.1†"
    assert set(photos) == set(PUBLISHED["cifar-fs", 5, 1]) | set(PUBLISHED["mini-imagenet", 5, 1])
    assert deep["metavrf bilstm"] == {"miniImageNet 5-way 1-shot": "63.80†", "miniImageNet 5-way 5-shot": "77.97†"}
    assert set(deep) == set(DEEP)


def test_a_budget_says_how_many_steps_seeds_and_tasks(tmp_path: Path) -> None:
    def plan(budget: str, **options: Any) -> tuple[set[int], int, set[int | None]]:
        found = Plan({"maml": STUDIES["maml"]}, tmp_path, budget, **options)
        steps = {job.source.training.iterations for job in found.jobs.values() if isinstance(job.source, Config)}
        tasks = {found.options(job, test).get("tasks") for job in found.jobs.values() for test in job.tests.values()}
        return steps, len(found.jobs), tasks

    assert plan("minutes") == ({1000}, 9, {500})
    assert plan("hour") == ({4000}, 9, {1000})
    assert plan("day") == ({20_000}, 27, {None})
    assert plan("paper") == ({70_000}, 27, {None})
    assert plan("paper", seeds=(7,), iterations=3) == ({3}, 9, {None})


def test_learners_that_are_added_appear_in_the_table_of_learners(tmp_path: Path) -> None:
    assert {cell.row for cell in STUDIES["learners-table"].cells} == set(LEARNERS)

    @metavrf.register_learner("guess")
    class Guess(Prototypical):
        """Nothing new."""

    assert "guess" in {cell.row for cell in chosen(["learners-table"])["learners-table"].cells}


def test_the_table_of_oracles_has_every_family_that_has_one() -> None:
    known = {name for name in FAMILIES if "Bayes-optimal" in family(name).oracles()}
    assert {cell.row for cell in STUDIES["oracle-table"].cells} == known > {"sine", "gp-rbf"}


def test_photographs_start_from_a_classifier_but_not_where_kernels_are_compared(tmp_path: Path) -> None:
    photos = everything(Plan({"photo-table": STUDIES["photo-table"]}, tmp_path, "minutes"))
    begun = {job.source.learner: job.start for job in photos.jobs.values() if isinstance(job.source, Config)}
    assert begun.pop("classifier") is None
    assert all(start is not None and start.name in photos.jobs for start in begun.values())
    mixed = everything(Plan({"mixture-table": STUDIES["mixture-table"]}, tmp_path))
    assert all(job.start is None for job in mixed.jobs.values())


def test_reproduce_quick_names_studies_that_there_are() -> None:
    text = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"metavrf reproduce (.*)", text)
    assert list(chosen(command.split(" --")[0].split())) == ["sine-figure", "omniglot-table"]


def test_the_oracle_of_a_mixture_on_one_of_its_kinds_knows_less_than_that_kinds_own() -> None:
    mixed, own = (
        evaluate_known(Known(task, "Bayes-optimal"), {"on": "gp-rbf", "tasks": 2}) for task in ("gp-mixed", "gp-rbf")
    )
    assert mixed.tasks == own.tasks == 2
    assert mixed.data_sha256 == own.data_sha256
    assert mixed.nll > own.nll - 0.5


def test_a_process_fitted_to_each_task_follows_a_smooth_curve() -> None:
    found = evaluate_known(Known("sine", FITTED), {"shot": 10, "tasks": 3})
    assert found.tasks == 3
    assert found.mean < 1.0  # predicting zero everywhere has an error of about 4


def test_kernels_are_drawn_of_runs_on_functions_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metavrf.train("sine", out=tmp_path / "run", quiet=True, iterations=2, **TINY_KERNELS)
    picture = tmp_path / "kernels.png"
    main(["kernels", str(tmp_path / "run"), "--out", str(picture), "--tasks", "2"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    metavrf.train("sine", learner="rff", out=tmp_path / "rff", quiet=True, iterations=2, bases=32, validate_tasks=10)
    for run, sentence in (("rff", "no kernels over frequency"), ("omniglot", "no kernels over frequency")):
        with pytest.raises(SystemExit) as stop:
            main(["kernels", str(tmp_path / run) if run == "rff" else run, "--out", str(picture)])
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_another_family_can_be_tested_on(tmp_path: Path) -> None:
    metavrf.train("gp-rbf", out=tmp_path / "run", quiet=True, iterations=2, **TINY_KERNELS, rough=1)
    found = metavrf.evaluate(tmp_path / "run", on="gp-matern", tasks=60)
    assert (found.on, found.shot, found.tasks) == ("gp-matern", None, 60)
    with pytest.raises(metavrf.UserError, match="no family of functions 'omniglot': choose from sine"):
        metavrf.evaluate(tmp_path / "run", on="omniglot")
