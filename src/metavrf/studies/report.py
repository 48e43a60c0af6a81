"""The report of a plan: our figures beside the paper's, as Markdown, one HTML page, pictures and JSON."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from metavrf.config import Config
from metavrf.files import write_atomically, write_json
from metavrf.learners.base import Learner
from metavrf.model import load
from metavrf.plots import plot_dots, plot_fit_grid, plot_lines
from metavrf.randomness import stream
from metavrf.reports import number
from metavrf.runs.directory import Run
from metavrf.runs.provenance import hardware, provenance
from metavrf.studies.study import BUDGETS, Cell, Known, Plan, Study, Training
from metavrf.tasks.functions import family
from metavrf.testing.evaluation import difference, interval95

Block = tuple[str, Any]
"""A part of the report: its kind (h1, h2, p, table, picture) and what is in it."""
READING = (
    "Inductive, where there is no †: a prediction sees the support alone. † marks what is transductive, and figures of "
    "the paper known to be: a prediction sees the other queries too. ± is half of the 95 % interval: of one run "
    "over its test tasks, of several over the runs. An empty cell was not run."
)
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:3rem;border-top:1px solid #ddd;padding-top:1rem}img{max-width:100%}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
th{vertical-align:bottom}th:first-child,td:first-child{text-align:left}td.paper,th.paper{color:#777}"""


@dataclass(frozen=True)
class Figure:
    """A cell as it is shown: the mean over runs."""

    cell: Cell
    values: Sequence[float]
    ci95: float | None
    paper: str
    transductive: bool = False

    @property
    def mean(self) -> float | None:
        """The mean over runs; None where there is none."""
        return fmean(self.values) if self.values else None

    def text(self) -> str:
        """The mean, its interval, and of how many runs it is."""
        if self.mean is None:
            return ""
        interval = "" if self.ci95 is None else f" ± {self.ci95:.2g}"
        runs = len(self.values)
        count = "" if isinstance(self.cell.source, Known) else f" ({runs} run{'s' * (runs > 1)})"
        return f"{number(self.mean)}{'†' * self.transductive}{interval}{count}"


def figure_of(plan: Plan, study: Study, cell: Cell) -> Figure:
    """What was measured for a cell, and what the paper says."""
    tests = list(plan.found(cell).values())
    if cell.minus is not None:
        best = next(iter(plan.found(cell, cell.minus).values()), {"data_sha256": None})
        paired = [test for test in tests if test["data_sha256"] == best["data_sha256"]]
        gaps = [difference(_per_task(test) - _per_task(best)) for test in paired]
        values, interval = [gap.mean for gap in gaps], gaps[0].ci95 if gaps else None
    else:
        values = [value for test in tests if (value := _shown(test, cell.show)) is not None]
        interval = tests[0]["ci95"] if values and cell.show == "mean" else None
    if len(values) > 1:
        interval = interval95(torch.tensor(values))
    paper = study.paper.get(cell.row, {}).get(cell.column, "")
    peeks = any(test["protocol"].startswith("transductive") for test in tests)
    return Figure(cell, values, interval, paper, peeks)


def _per_task(test: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(test["nll_per_task"], dtype=torch.double)


def _shown(test: dict[str, Any], path: str) -> float | None:
    """A figure of a test by its name; None where the test has none."""
    at: Any = test
    for name in path.format(metric=test["metric"]).split("."):
        at = at[int(name)] if isinstance(at, list) else at.get(name) if isinstance(at, dict) else None
    return None if at is None else float(at)


def write_report(plan: Plan, seconds: float) -> Path:
    """Write everything into the folder of the plan; returns the HTML page."""
    machine, about = hardware(), provenance(plan.seeds[0])
    budget = BUDGETS[plan.budget]
    steps = f"{plan.iterations:,} steps in place of the budget's" if plan.iterations else budget.says
    if plan.minutes:
        steps += f"; {plan.minutes:g} CPU minutes of training for each run that no other starts from, by measured steps"
    versions = ", ".join(f"{name} {about[name]}" for name in ("metavrf", "torch", "python"))
    blocks: list[Block] = [
        ("h1", "Reproduction"),
        ("p", READING),
        ("p", f"Budget “{plan.budget}”: {steps}. Seeds: {', '.join(map(str, plan.seeds))}."),
        ("p", f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB of memory."),
        ("p", f"Versions: {versions}, commit {about['commit'] or 'unknown'}. This call took {_time(seconds)}."),
        ("p", f"Command: {about['command']}"),
    ]
    for name, study in plan.studies.items():
        blocks += _write_study(plan, name, study, {"hardware": machine, "provenance": about})
    write_atomically(plan.out / "report.md", "\n\n".join(_markdown(blocks)) + "\n")
    page = plan.out / "report.html"
    write_atomically(page, _page(blocks, plan.out))
    return page


def _write_study(plan: Plan, name: str, study: Study, about: dict[str, Any]) -> list[Block]:
    """Write one study's picture and JSON; returns its part of the report."""
    figures = [figure_of(plan, study, cell) for cell in study.cells]
    tests = [(cell, seed, test) for cell in study.cells for seed, test in plan.found(cell).items()]
    unique = {plan.file(plan.job(cell.source, seed), cell.test): (cell, seed, test) for cell, seed, test in tests}
    rows = [_row(plan, cell, seed, test) for cell, seed, test in unique.values()]
    tasks = {cell.source.task for cell in study.cells}
    problems = [plan.missing[task] for task in sorted(tasks) if plan.missing.get(task)]
    problems += [
        f"Left out: {plan.jobs[job].label}: {why}" for job, why in plan.failed.items() if name in plan.jobs[job].studies
    ]
    trained = {row["run"]: row.get("train_seconds") or 0.0 for row in rows if "run" in row}
    time = f"{len(trained)} runs, {_time(sum(trained.values()))} of training and " if trained else ""
    time += f"{_time(sum(row['seconds'] for row in rows))} of tests in all" if rows else "Nothing was run"
    protocols = ", ".join(dict.fromkeys(row["protocol"] for row in rows))
    tasks_of = sorted({row["tasks"] for row in rows})
    tested = f" Test tasks: {', '.join(f'{n:,}' for n in tasks_of)}; protocol: {protocols}." if rows else ""
    picture = plan.out / f"{name}.png"
    drawn = _draw(plan, study, figures, picture)
    write_json(
        plan.out / f"{name}.json",
        {
            "study": name,
            "title": study.title,
            "budget": plan.budget,
            "iterations": plan.iterations,
            "minutes_each": plan.minutes,
            "seeds": list(plan.seeds),
            "cells": [_plain(figure) for figure in figures],
            "paper": study.paper,
            "problems": problems,
            "rows": [row for row in rows if "run" in row],
            "limits": [row for row in rows if "run" not in row],
            **about,
        },
    )
    return [
        ("h2", f"{name}: {study.title}"),
        *([("p", study.note)] if study.note else []),
        *(("p", problem) for problem in problems),
        ("table", _table(study, figures)),
        *([("picture", (picture.name, study.title))] if drawn else []),
        ("p", f"{time}.{tested}"),
    ]


def _row(plan: Plan, cell: Cell, seed: int, test: dict[str, Any]) -> dict[str, Any]:
    """A test as it stands in the JSON file."""
    lists = ("per_task", "nll_per_task")
    values = {name: value for name, value in test.items() if name not in lists}
    if isinstance(cell.source, Known):
        return {"limit": cell.source.name, "task": cell.source.task, "test": cell.test, **values}
    job = plan.job(cell.source, seed)
    assert isinstance(job.source, Config)
    result = Run(plan.path(job)).result() or {}
    kept = ("train_seconds", "train_cpu_seconds", "validation", "parameters", "started_from")
    return {
        "training": cell.row,
        "run": job.name,
        "train_seed": seed,
        "test": cell.test,
        **values,
        "learner": job.source.learner,
        "task": job.source.task,
        "iterations": job.source.training.iterations,
        **{name: result[name] for name in kept if name in result},
    }


def _plain(figure: Figure) -> dict[str, Any]:
    cell = figure.cell
    ours = {"row": cell.row, "column": cell.column, "runs": len(figure.values), "mean": figure.mean}
    return ours | {"ci95": figure.ci95, "values": list(figure.values), "paper": figure.paper or None}


def _table(study: Study, figures: Sequence[Figure]) -> list[list[str]]:
    """Header and lines; beside each column that the paper has figures for, its figures."""
    columns = list(dict.fromkeys(figure.cell.column for figure in figures))
    rows = list(dict.fromkeys([*study.paper, *(figure.cell.row for figure in figures)]))
    ours = {(figure.cell.row, figure.cell.column): figure.text() for figure in figures}
    papers = {column for line in study.paper.values() for column in line}
    header, lines = [""], [[row] for row in rows]
    for column in columns:
        header += [column] + ["paper"] * (column in papers)
        for line in lines:
            line.append(ours.get((line[0], column), ""))
            line.extend([study.paper.get(line[0], {}).get(column, "")] * (column in papers))
    return [header, *lines]


def _draw(plan: Plan, study: Study, figures: Sequence[Figure], path: Path) -> bool:
    """Draw the study's picture, if there is anything to draw."""
    there = [figure for figure in figures if figure.mean is not None]
    if not there or not study.picture:
        return False
    if study.picture == "fits":
        plot_fit_grid(_fits(plan, study), path, study.title)
    elif study.picture == "dots":
        panels: dict[str, dict[str, tuple[float | None, float, float | None]]] = {}
        for figure in figures:
            if figure.mean is not None or figure.paper:
                paper = float(figure.paper.rstrip("†")) if figure.paper else None
                panels.setdefault(figure.cell.column, {})[figure.cell.row] = (figure.mean, figure.ci95 or 0.0, paper)
        small = [f.cell.column for f in there if min(f.values) < 1 and f.cell.show == "mean"]
        plot_dots(panels, path, study.title, logarithmic=small)
    else:
        lines = _lines(plan, study, [figure for figure in there if not study.drawn or figure.cell.row in study.drawn])
        marks = {row: [(float(x), float(y.rstrip("†"))) for x, y in line.items()] for row, line in study.paper.items()}
        error = study.picture == "positions"
        value = "mean squared error" if error else "accuracy" + " (%)" * (study.picture == "lines")
        if study.picture == "time":
            value = "accuracy on validation classes (%)"
        confidence = study.picture == "reliability"
        plot_lines(lines, path, study.title, study.axis, value=value, marks=marks, log=error, diagonal=confidence)
    return True


def _lines(plan: Plan, study: Study, figures: Sequence[Figure]) -> dict[str, list[tuple[float, float, float]]]:
    """The points of each row's line: its columns; or, mean over runs, what is in a list of its first column's test, or
    the validations of the runs that are tested there.
    """
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for figure in figures:
        cell = figure.cell
        if study.picture == "lines":
            lines.setdefault(cell.row, []).append((float(cell.column), figure.mean or 0.0, figure.ci95 or 0.0))
        elif cell.row not in lines:
            tests = list(plan.found(cell).values())
            if study.picture == "positions":
                means = [fmean(place) for place in zip(*(test["by_position"] for test in tests), strict=True)]
                lines[cell.row] = [(place, mean, 0.0) for place, mean in enumerate(means, 1)]
            elif study.picture == "time":
                lines[cell.row] = _validations(plan, cell)
            else:  # of the first run: bins of several would not be the same
                lines[cell.row] = [(confidence, accuracy, 0.0) for confidence, accuracy, _ in tests[0]["reliability"]]
    return lines


def _validations(plan: Plan, cell: Cell) -> list[tuple[float, float, float]]:
    """Accuracy on validation classes by CPU minutes of training, mean over runs; validating takes no time here."""
    assert isinstance(cell.source, Training)
    runs = [Run(plan.path(plan.job(cell.source, seed))) for seed in plan.found(cell)]
    places = []
    for records in zip(*(run.metrics() for run in runs), strict=True):
        share = records[0]["step"] / runs[0].config().training.iterations
        spent = [record.get("cpu_seconds", record["seconds"]) / 60 for record in records]
        minutes = plan.minutes * share if plan.minutes else fmean(spent)
        places.append((minutes, fmean(record["val_accuracy"] for record in records), 0.0))
    return places


def _fits(plan: Plan, study: Study) -> dict[str, Any]:
    """By column, the learners of the first seed that are there, and the tasks to draw: no table is made of them."""
    learners: dict[str, dict[str, Learner]] = {}
    tasks: dict[str, Any] = {}
    for cell in study.cells:
        if not isinstance(cell.source, Known):
            run = Run(plan.path(plan.job(cell.source, plan.seeds[0])))
            if run.result_file.exists():
                learners.setdefault(cell.column, {})[cell.row] = load(run.path).learner
                functions, draw = family(cell.source.task), stream(0, "figure")
                tasks[cell.column] = functions.sample_grid(study.examples, cell.test["shot"], draw)
    return {column: (found, tasks[column]) for column, found in learners.items()}


def _time(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _markdown(blocks: Sequence[Block]) -> Iterator[str]:
    marks = {"h1": "# ", "h2": "## ", "p": ""}
    for kind, content in blocks:
        if kind == "table":
            header, *lines = content
            rule = ["---", *["---:"] * (len(header) - 1)]
            yield "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
        elif kind == "picture":
            yield f"![{content[1]}]({content[0]})"
        else:
            yield marks[kind] + content


def _page(blocks: Sequence[Block], folder: Path) -> str:
    """One page that needs nothing but itself: pictures are in it."""
    body = []
    for kind, content in blocks:
        if kind == "table":
            papers = [name == "paper" for name in content[0]]
            lines = [
                "".join(
                    f"<{tag}{' class=paper' * paper}>{html.escape(text)}</{tag}>"
                    for text, paper in zip(line, papers, strict=True)
                )
                for tag, line in zip(["th", *["td"] * len(content)], content, strict=False)
            ]
            body.append(f"<div class=wide><table><tr>{'</tr><tr>'.join(lines)}</tr></table></div>")
        elif kind == "picture":
            data = base64.b64encode((folder / content[0]).read_bytes()).decode()
            body.append(f'<img alt="{html.escape(content[1])}" src="data:image/png;base64,{data}">')
        else:
            body.append(f"<{kind}>{html.escape(content)}</{kind}>")
    head = f'<meta charset="utf-8"><title>Reproduction</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>\n"
