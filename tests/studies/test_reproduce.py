"""metavrf reproduce: tiny studies from end to end, stopped and taken up again, and what the report says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import metavrf
from glyphs import write_glyph_folder
from metavrf.cli import main
from metavrf.config import Config
from metavrf.files import write_summed_json
from metavrf.runs.directory import Run
from metavrf.studies import catalog, timing
from metavrf.studies.report import figure_of
from metavrf.studies.study import Cell, Plan, Study, Training
from metavrf.studies.timing import Cost
from metavrf.testing.evaluation import interval95
from pictures_on_disk import write_folder
from shell import refused
from tiny_studies import CURVES, curves, drawings

MINUTES = ["--budget", "minutes"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny study of curves in the place of all others."""
    monkeypatch.setattr(catalog, "catalog", lambda: {"curves": curves()})


def results(out: Path, name: str = "curves") -> dict[str, Any]:
    """A study's JSON, without what differs from call to call."""
    values = json.loads((out / f"{name}.json").read_text())
    for row in values["rows"] + values["limits"]:
        for key in ("seconds", "train_seconds", "train_cpu_seconds", "started_from"):
            row.pop(key, None)
    return {name: values[name] for name in ("cells", "rows", "limits", "problems")}


@pytest.mark.usefixtures("tiny")
def test_a_study_is_trained_tested_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "curves", "--budget", "day", "--seeds", "0", "4", "--jobs", "2", "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert printed.out == f"report: {tmp_path / 'report.html'}\n"
    assert len(re.findall(r"^\[\d/5\] curves: .*: \d+ s$", printed.err, re.M)) == 5  # two runs, two seeds, one limit
    table = json.loads((tmp_path / "curves.json").read_text())
    assert [(row["training"], row["train_seed"], row["iterations"]) for row in table["rows"]] == [
        (name, seed, 40) for name in ("RFF", "RBF") for seed in (0, 4)
    ]
    for row in table["rows"]:
        assert row["mean"] == pytest.approx(metavrf.evaluate(tmp_path / "runs" / row["run"], shot=3, tasks=20).mean)
    first, second, gap, best = table["cells"]
    assert (first["runs"], first["paper"], best["runs"]) == (2, "0.5", 1)
    means = [row["mean"] for row in table["rows"] if row["training"] == "RFF"]
    assert first["values"] == means
    assert first["mean"] == pytest.approx(sum(means) / 2)
    assert first["ci95"] == pytest.approx(interval95(torch.tensor(means)))
    above = [row["nll"] - table["limits"][0]["nll"] for row in table["rows"] if row["training"] == "RFF"]
    assert gap["values"] == pytest.approx(above, abs=1e-4)
    assert table["hardware"]["cores"] == os.cpu_count()
    assert table["provenance"]["torch"] == (Run(tmp_path / "runs" / table["rows"][0]["run"]).result() or {})["torch"]
    assert second["mean"] > 0


@pytest.mark.usefixtures("tiny")
def test_the_report_has_every_picture_in_it_and_says_what_its_figures_are(tmp_path: Path) -> None:
    main(["reproduce", "curves", *MINUTES, "--iterations", "4", "--out", str(tmp_path)])
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    sources = re.findall(r'(?:src|href)=["\']?([^"\'> ]{0,30})', page)
    assert [source[:22] for source in sources] == ["data:image/png;base64,"]
    assert "http" not in page
    assert "![Curves](curves.png)" in text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["", "3 points", "paper", "above the best (nats)"]
    by_row = {line[0]: line[1:] for line in lines[2:]}
    assert re.fullmatch(r"[\d.]+ ± [\d.]+ \(1 run\)", by_row["RFF"][0])
    assert by_row["RFF"][1] == "0.5"
    assert by_row["RBF"] == ["", "", ""]  # not for this budget
    assert by_row["SNAIL"] == ["", "0.7†", ""]  # the paper's alone
    assert re.fullmatch(r"[\d.]+ ± [\d.]+", by_row["Bayes-optimal"][0])
    for part in (
        "A note.",
        "Seeds: 0.",
        "protocol: inductive",
        "of training and",
        "cores",
        "torch 2",
        "Test tasks: 20",
    ):
        assert part in text
        assert part in page


def test_drawings_start_from_one_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    study = drawings(write_folder(tmp_path / "drawings"))
    monkeypatch.setattr(catalog, "catalog", lambda: {"drawings": study})
    main(["reproduce", "drawings", "--budget", "day", "--seeds", "1", "--jobs", "2", "--out", str(tmp_path / "out")])
    runs = {Run(path).config().learner: Run(path) for path in (tmp_path / "out" / "runs").iterdir()}
    assert set(runs) == {"classifier", "prototypical", "matching"}
    for learner in ("prototypical", "matching"):
        begun = runs[learner].start()
        assert begun is not None
        assert begun["run"] == str(runs["classifier"].path)
    table = results(tmp_path / "out", "drawings")
    assert [(cell["row"], cell["column"], cell["runs"]) for cell in table["cells"]] == [
        (row, shot, 1) for row in ("classifier", "prototypical", "matching") for shot in ("1", "3")
    ]
    assert all(row["protocol"] == "inductive" and row["way"] == 3 for row in table["rows"])
    assert (tmp_path / "out" / "drawings.png").stat().st_size > 10_000


@pytest.mark.usefixtures("tiny")
def test_nothing_is_done_twice_and_studies_share_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "curves", *MINUTES, "--iterations", "2", "--out", str(tmp_path)]
    main(command)
    before = results(tmp_path)
    written = {
        file: file.stat().st_mtime_ns for folder in ("runs", "tests") for file in (tmp_path / folder).rglob("*.*")
    }
    monkeypatch.setattr(catalog, "catalog", lambda: {"more": curves("More curves")})
    capsys.readouterr()
    main(["reproduce", "more", *command[2:]])
    assert capsys.readouterr().err == ""
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert results(tmp_path, "more") == before


def started(out: Path, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    code = (
        "import sys, tiny_studies; tiny_studies.install(sys.argv[1]); from metavrf.cli import main; main(sys.argv[2:])"
    )
    command = ["reproduce", "curves", "drawings", "--budget", "day", "--seeds", "0", "--jobs", "2", "--out", str(out)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with log.open("a") as said:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(folder), *command],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=said,
            stderr=said,
        )


def wait_until(there: Any, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert process.poll() is None, "the command ended too soon"
        assert time.monotonic() < end
        time.sleep(0.01)


def test_stopped_or_killed_it_goes_on_with_identical_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    folder, out, log = write_folder(tmp_path / "drawings"), tmp_path / "stopped", tmp_path / "log"
    runs = out / "runs"
    killed = started(out, folder, log)
    wait_until(lambda: any(runs.glob("*/metrics.jsonl")), killed)  # in the middle of a training
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    tests = len(list(out.glob("tests/*.json")))
    stopped = started(out, folder, log)
    wait_until(lambda: len(list(out.glob("tests/*.json"))) > tests, stopped)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait() == 128 + signal.SIGTERM
    assert "stopped; all is kept, and the same command goes on" in log.read_text()
    assert not (out / "report.html").exists()
    last = started(out, folder, log)
    assert last.wait() == 0, log.read_text()
    assert log.read_text().endswith(f"report: {out / 'report.html'}\n")

    monkeypatch.setattr(catalog, "catalog", lambda: {"curves": curves(), "drawings": drawings(folder)})
    whole = tmp_path / "whole"
    main(["reproduce", "curves", "drawings", "--budget", "day", "--seeds", "0", "--jobs", "2", "--out", str(whole)])
    capsys.readouterr()
    for name in ("curves", "drawings"):
        assert results(out, name) == results(whole, name)
        assert (out / f"{name}.png").read_bytes() == (whole / f"{name}.png").read_bytes()
    for run in (whole / "runs").iterdir():
        assert (run / "model.safetensors").read_bytes() == (runs / run.name / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("tiny")
def test_a_dry_run_measures_steps_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves columns out
    command = ["reproduce", "curves", "--budget", "day", "--seeds", "0", "--out", str(tmp_path / "out")]
    main([*command, "--dry-run", "--jobs", "2"])
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.startswith("curves: ")]
    assert [line[1] for line in lines] == ["RFF,", "RBF,"]
    for line in lines:
        steps, step, training, _ = line[-4:]
        assert steps == "40"
        assert 0.1 < float(step) < 1000
        assert float(training) >= 0
    assert re.search(r"^2 runs, about \d+ minutes of one thread, \d+ with --jobs 2$", printed, re.M)
    assert not (tmp_path / "out").exists()
    main(command)
    capsys.readouterr()
    main([*command, "--dry-run"])
    assert "0 runs, about 0 minutes" in capsys.readouterr().out


def test_equal_time_gives_each_run_as_many_steps_as_fit_and_measures_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = drawings(write_folder(tmp_path / "drawings"))
    study = replace(study, picture="time", axis="minutes", drawn=("prototypical",))
    monkeypatch.setattr(catalog, "catalog", lambda: {"drawings": study})
    seconds = {"classifier": 0.5, "prototypical": 0.2, "matching": 0.3}
    measured = []

    def measure(config: Config[Any], clock: object, *, validation: bool) -> Cost:
        measured.append(config.learner)
        assert clock is time.process_time and not validation
        return Cost(seconds[config.learner], 0.0)

    monkeypatch.setattr(timing, "measure", measure)
    out = tmp_path / "out"
    command = ["reproduce", "drawings", *MINUTES, "--minutes-each", "0.02", "--seeds", "0", "1", "--out", str(out)]
    main(command)
    table = json.loads((out / "drawings.json").read_text())
    steps = {(row["learner"], row["train_seed"]): row["iterations"] for row in table["rows"]}
    assert steps == {(name, seed): round(1.2 / seconds[name]) for name in seconds for seed in (0, 1)}
    assert table["minutes_each"] == 0.02
    assert "0.02 CPU minutes of training for each run" in (out / "report.md").read_text()
    assert (out / "drawings.png").stat().st_size > 10_000
    pretrained = [run for run in (out / "runs").iterdir() if Run(run).config().training.iterations == 1]
    assert [Run(run).config().learner for run in pretrained] == ["classifier"] * 2  # as the budget says
    assert sorted(measured) == sorted(seconds)
    main(command)
    assert sorted(measured) == sorted(seconds)
    (out / "steps.json").write_text("{}")
    with pytest.raises(SystemExit):
        main(command)


@pytest.mark.usefixtures("tiny")
def test_only_the_rows_that_are_named_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "curves", *MINUTES, "--rows", "RBF", "--iterations", "2", "--out", str(tmp_path)])
    table = json.loads((tmp_path / "curves.json").read_text())
    assert {row["training"] for row in table["rows"]} == {"RBF"}
    assert {cell["row"] for cell in table["cells"] if cell["runs"]} == {"RBF"}
    capsys.readouterr()
    message = refused(capsys, "reproduce", "curves", "--rows", "MLP", "--out", tmp_path)
    assert message.startswith("there is no row 'MLP'")
    assert "RFF" in message


def test_a_run_that_others_start_from_can_have_a_seed_of_its_own(tmp_path: Path) -> None:
    start = Training("sine", seed=7)
    study = Study("Curves", [Cell("RFF", "3 points", Training("sine", {"learner": "rff"}, start), {"shot": 3})])
    jobs = Plan({"curves": study}, tmp_path, seeds=(0, 1)).jobs.values()
    assert sorted(job.source.training.seed for job in jobs if isinstance(job.source, Config)) == [0, 1, 7]


def test_a_run_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = Training("sine", {**CURVES, "lr": 1e9, "warmup": 0})
    cells = [
        Cell("wild", "3 points", wild, {"shot": 3, "tasks": 4}),
        Cell("after it", "3 points", Training("sine", CURVES, start_from=wild), {"shot": 3, "tasks": 4}),
        Cell("calm", "3 points", Training("sine", CURVES), {"shot": 3, "tasks": 4}),
    ]
    monkeypatch.setattr(catalog, "catalog", lambda: {"two": Study("Two", cells)})
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "two", "--budget", "day", "--seeds", "0", "--out", str(tmp_path)])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "metavrf: 2 of 3 runs failed, the first of them two: wild, 3 points, seed 0: training failed"
    )
    assert [cell["runs"] for cell in results(tmp_path, "two")["cells"]] == [0, 0, 1]
    text = (tmp_path / "report.md").read_text()
    assert "Left out: two: wild, 3 points, seed 0: training failed at step" in text
    assert "Left out: two: after it, 3 points, seed 0: the run it starts from failed" in text


def test_data_that_is_not_there_is_left_out_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("METAVRF_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "omniglot-table", "deep-table", *MINUTES, "--out", "out"])
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0] == (
        "omniglot is left out: omniglot-background.parquet and omniglot-evaluation.parquet are not there; "
        "'metavrf data --fetch omniglot' fetches it, --data names the folder where it is"
    )
    assert "mini-imagenet-lite0.safetensors is left out: the feature file" in said[1]
    text = (tmp_path / "out" / "report.md").read_text()
    assert said[0] in text
    assert "| siamese |" in text or "| matching |  | 98.1 |" in text
    assert "Nothing was run." in text
    assert json.loads((tmp_path / "out" / "omniglot-table.json").read_text())["problems"] == [said[0]]


def test_a_picture_folder_in_the_place_of_a_data_set_is_refused_by_its_name(tmp_path: Path) -> None:
    plan = Plan({"drawings": drawings(tmp_path / "nowhere")}, tmp_path)
    assert plan.jobs == {}
    (said,) = plan.missing.values()
    assert said.startswith(f"{tmp_path}/nowhere is left out: {tmp_path}/nowhere does not exist")
    write_glyph_folder(tmp_path / "nowhere", range(9))
    assert len(Plan({"drawings": drawings(tmp_path / "nowhere")}, tmp_path).jobs) == 3


def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, "reproduce", "sine-figur", "--out", tmp_path)
    assert said.startswith(
        "there is no study 'sine-figur' (did you mean sine-figure?): choose from sine-figure, sine-more"
    )
    assert refused(capsys, "reproduce").startswith("name a study")
    assert refused(capsys, "reproduce", "maml", "--jobs", "0") == "--jobs and --iterations must be at least 1"
    assert list(tmp_path.iterdir()) == []


def test_study_is_another_name_of_it_and_former_names_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    main(["study", "--list"])
    listed = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(catalog.catalog())
    assert set(catalog.MOVED.values()) <= set(listed)
    assert not set(catalog.MOVED) & set(listed)
    assert list(catalog.chosen(["mixed", "streams", "omniglot"])) == ["mixture-table", "stream-figure"]


def test_a_mean_over_runs_leaves_out_runs_that_are_not_there(tmp_path: Path) -> None:
    study = curves()
    plan = Plan({"curves": study}, tmp_path, "day", seeds=(0, 1, 2))
    cell = study.cells[0]
    for seed, mean in ((0, 1.0), (2, 2.0)):
        file = plan.file(plan.job(cell.source, seed), cell.test)
        file.parent.mkdir(exist_ok=True)
        write_summed_json(file, {"metric": "mse", "mean": mean, "ci95": 0.1, "protocol": "inductive"})
    figure = figure_of(plan, study, cell)
    assert list(figure.values) == [1.0, 2.0]
    assert replace(figure, transductive=True).text() == "1.5† ± 6.4 (2 runs)"
    assert figure.text() == "1.5 ± 6.4 (2 runs)"  # Student's t of one degree of freedom: 12.7 × 0.707 / √2
    assert figure_of(plan, study, study.cells[1]).text() == ""
