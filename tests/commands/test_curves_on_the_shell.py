"""Curves from a file to predictions with a band, as a user types them and in Python."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import metavrf
from metavrf.cli import main
from metavrf.errors import UserError
from metavrf.files import read_tensors
from metavrf.runs.training import Trainer
from shell import PNG, printed_json, refused
from tables import COLUMNS, TINY, concentrations, write_csv

OPTIONS = ["--group", "patient", "--inputs", "time", "dose", "--targets", "concentration"]
SMALL = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "quiet"] + ["--shot=2"]


def trained(out: Path, table: Any = None, **options: Any) -> metavrf.TrainedModel:
    metavrf.train(concentrations() if table is None else table, **COLUMNS | TINY | {"shot": 2, "out": out} | options)
    return metavrf.load(out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with curves.csv, a run on it, and new.csv: one patient with three points and two to predict."""
    folder = tmp_path_factory.mktemp("curves")
    table = write_csv(folder / "curves.csv", concentrations())
    main(["train", str(table), *OPTIONS, *SMALL, "--quiet", "--out", str(folder / "run")])
    write_csv(folder / "new.csv", new_patient())
    return folder


def new_patient(**columns: list[Any]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {
        "patient": ["new"] * 5,
        "time": [1.0, 5.0, 9.0, 12.0, 20.0],
        "dose": [300.0] * 5,
        "concentration": [9.0, 8.0, 5.5, None, None],
    }
    return table | columns


def numbers(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def test_train_evaluate_and_draw(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = place / "fits.png"
    result = printed_json(capsys, "evaluate", place / "run", "--shot", 3, "--plot", picture, "--json")
    assert (result["tasks"], result["shot"], result["metric"]) == (2, 3, "mse")
    assert (result["split"], result["units"]) == ("random, seed 0", "those of concentration")
    assert picture.read_bytes().startswith(PNG)
    spec = json.loads((place / "run" / "data.json").read_text())
    assert {part: len(names) for part, names in spec["classes"].items()} == {"train": 8, "val": 2, "test": 2}
    more = printed_json(capsys, "evaluate", place / "run", "--tasks", 10, "--json")
    assert more["tasks"] == 10
    assert more["shot"] == 2


def test_figures_are_in_the_units_of_the_table(place: Path) -> None:
    model = metavrf.load(place / "run")
    rows = concentrations()
    error = []
    for name in model.spec.classes["test"]:
        own = [i for i, p in enumerate(rows["patient"]) if p == name]
        x = np.array([[rows["time"][i], rows["dose"][i]] for i in own])
        y = np.array([[rows["concentration"][i]] for i in own])
        task = metavrf.Episodes.of_task(x, y, x)
        error.append(float((model.predict(task).mean[0] - torch.from_numpy(y)).square().mean()))
    typical = np.var(rows["concentration"])
    assert max(error) < 2 * typical  # of the support itself, in units; standardised values would be far off
    assert min(error) > 0


def test_other_units_of_the_table_are_other_units_of_the_answers(place: Path, tmp_path: Path) -> None:
    table = concentrations()
    table["time"] = [60 * value for value in table["time"]]
    table["concentration"] = [1000 * value + 50 for value in table["concentration"]]
    plain, other = metavrf.load(place / "run"), trained(tmp_path / "run", table)
    new = new_patient()
    moved = new_patient(
        time=[60 * t for t in new["time"]],
        concentration=[None if c is None else 1000 * c + 50 for c in new["concentration"]],
    )
    found, expected = other.predict_curves(moved).to_pylist(), plain.predict_curves(new).to_pylist()
    for name, shift in (("concentration", 50), ("concentration_low", 50), ("concentration_high", 50)):
        np.testing.assert_allclose(numbers(found, name), 1000 * np.array(numbers(expected, name)) + shift, rtol=2e-3)
    np.testing.assert_allclose(
        numbers(found, "concentration_std"), 1000 * np.array(numbers(expected, "concentration_std")), rtol=2e-3
    )
    ours, theirs = (metavrf.evaluate(model, shot=3) for model in (plain, other))
    assert theirs.mean == pytest.approx(1e6 * ours.mean, rel=0.01)
    assert theirs.nll == pytest.approx(ours.nll + np.log(1000), abs=0.01)
    assert theirs.coverage90 == ours.coverage90


def test_predict_prints_a_table_json_or_csv(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed_json(capsys, "predict", place / "run", place / "new.csv", "--json")["predictions"]
    assert [(row["patient"], row["time"]) for row in rows] == [("new", 12.0), ("new", 20.0)]
    assert all(row["concentration_low"] < row["concentration"] < row["concentration_high"] for row in rows)
    main(["predict", str(place / "run"), str(place / "new.csv"), "--csv"])
    again = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert numbers(again, "concentration") == pytest.approx(numbers(rows, "concentration"))
    main(["predict", str(place / "run"), str(place / "new.csv")])
    assert "concentration_high" in capsys.readouterr().out


def test_a_group_is_answered_the_same_beside_any_other(place: Path) -> None:
    model = metavrf.load(place / "run")
    alone = model.predict_curves(new_patient()).to_pylist()
    wild = new_patient(patient=["other"] * 5, concentration=[900.0, None, -70.0, 3.0, None])
    both = {name: [*wild[name], *new_patient()[name]] for name in wild}
    assert model.predict_curves(both).to_pylist()[2:] == alone
    shuffled = {name: [values[i] for i in (3, 2, 0, 4, 1)] for name, values in new_patient().items()}
    np.testing.assert_allclose(
        numbers(model.predict_curves(shuffled).to_pylist(), "concentration"), numbers(alone, "concentration"), rtol=1e-5
    )


def test_the_regressor_takes_such_a_run_in_units(place: Path) -> None:
    new = new_patient()
    x = np.array([new["time"], new["dose"]]).T
    regressor = metavrf.MetaVRFRegressor.from_pretrained(str(place / "run")).fit(x[:3], new["concentration"][:3])
    mean, std = regressor.predict(x[3:], return_std=True)
    rows = metavrf.load(place / "run").predict_curves(new).to_pylist()
    np.testing.assert_allclose(mean, numbers(rows, "concentration"), rtol=1e-4)
    np.testing.assert_allclose(std, numbers(rows, "concentration_std"), rtol=1e-3)


def test_runs_are_compared_on_the_same_groups(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "rff"
    options: dict[str, Any] = {
        "learner": "rff",
        "iterations": 10,
        "validate_every": 10,
        "validate_tasks": 10,
        "batch": 4,
        "shot": 2,
    }
    metavrf.train(place / "curves.csv", **COLUMNS, **options, bases=32, train_bases=32, quiet=True, out=other)
    rows = metavrf.compare([place / "run", other], shot=3)
    assert [row.evaluation.tasks for row in rows] == [2, 2]
    assert rows[0].evaluation.data_sha256 == rows[1].evaluation.data_sha256
    swapped = metavrf.evaluate(place / "run", shot=3, adaptivity=True)
    assert swapped.adaptivity is not None
    assert swapped.adaptivity["own"]["mse"] == pytest.approx(rows[0].evaluation.mean, rel=1e-4)


def test_a_frame_is_kept_with_the_run(place: Path, tmp_path: Path) -> None:
    model = trained(tmp_path / "run", pa.table(concentrations()))
    assert (tmp_path / "run" / "curves.parquet").is_file()
    assert model.spec == metavrf.load(place / "run").spec
    assert metavrf.evaluate(model, shot=3).mean == pytest.approx(metavrf.evaluate(place / "run", shot=3).mean)


def test_the_file_may_have_moved(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = write_csv(tmp_path / "moved.csv", concentrations())
    there = printed_json(capsys, "evaluate", place / "run", "--data", moved, "--json")
    assert there["data_sha256"] == printed_json(capsys, "evaluate", place / "run", "--json")["data_sha256"]
    fewer = write_csv(tmp_path / "fewer.csv", concentrations(11))
    assert "are not those the run was split by" in refused(capsys, "evaluate", place / "run", "--data", fewer)


def test_a_resumed_run_ends_bit_for_bit_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"categorical": ("dose",), "context": "lstm", "context_inputs": "xy", "moves": True}
    trained(tmp_path / "whole", **options)
    step = Trainer.train_step

    def dying(self: Trainer) -> Any:
        if self.at.step == 13:
            raise RuntimeError("power cut")
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", dying)
    with pytest.raises(RuntimeError, match="power cut"):
        trained(tmp_path / "cut", **options)
    monkeypatch.undo()
    metavrf.train(out=tmp_path / "cut", resume=True, quiet=True)
    whole, cut = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole[1] == cut[1]
    assert all(torch.equal(tensor, cut[0][name]) for name, tensor in whole[0].items())


def test_learning_pays(tmp_path: Path) -> None:
    table = concentrations(40)
    options = {"iterations": 150, "validate_every": 50, "components": 12, "batch": 16, "embedding": "mlp"}
    model = trained(tmp_path / "run", table, **options)
    result = metavrf.evaluate(model, shot=3, tasks=80)
    held = [c for p, c in zip(table["patient"], table["concentration"], strict=True) if p in model.spec.classes["test"]]
    assert result.mean < 0.4 * np.var(held)
    assert result.coverage90 is not None
    assert 0.7 < result.coverage90 <= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--group", "who", "--inputs", "time", "--targets", "concentration"], "there is no column 'who'"),
        (["--group", "patient", "--inputs", "time", "--targets", "sex"], "the column 'sex' must hold numbers"),
        (["--group", "patient", "--inputs", "time"], "curves need --inputs and --targets"),
        ([], "say with --group which column tells them apart"),
        ([*OPTIONS, "--shot", "30"], "shot = 30 leaves no row to predict"),
        ([*OPTIONS, "--stream", "2"], "curves of a file have no streams"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_leaves_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "run"
    assert sentence in refused(capsys, "train", place / "curves.csv", *arguments, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty.csv is no table"),
        ("patient,time,dose,concentration\n", "the table has no rows"),
        ("patient,time,dose,concentration\n" + "p,1,2,3\n" * 4, "the table has 1 group: training needs at least 6"),
    ],
)
def test_empty_and_short_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    (tmp_path / "empty.csv").write_text(text)
    assert sentence in refused(capsys, "train", tmp_path / "empty.csv", *OPTIONS, "--out", tmp_path / "run")
    said = refused(capsys, "train", tmp_path / "no.csv", *OPTIONS, "--out", tmp_path / "run")
    assert f"{tmp_path / 'no.csv'} does not exist" in said and "is no table" not in said
    assert not (tmp_path / "run").exists()


def test_dropped_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = concentrations()
    table["dose"][2] = None
    file = write_csv(tmp_path / "curves.csv", table)
    assert "--missing drop" in refused(capsys, "train", file, *OPTIONS, "--out", tmp_path / "run")
    main(["train", str(file), *OPTIONS, *SMALL, "--missing", "drop", "--out", str(tmp_path / "run")])
    assert "dropped 1 row with missing values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"concentration": [9.0, 8.0, 5.5, 4.0, 2.0]}, "nothing is asked: leave concentration empty"),
        ({"concentration": [None] * 5}, "the group 'new' has no row with concentration"),
        ({"dose": [300.0, None, 300.0, 300.0, 300.0]}, "the column 'dose' has 1 missing value, first in row 2"),
        ({"time": [1.0, 2.0, "x", 4.0, 5.0]}, "the column 'time' must hold numbers, not 'x'"),
    ],
)
def test_new_curves_that_cannot_be_answered_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, list[Any]], sentence: str
) -> None:
    file = write_csv(tmp_path / "new.csv", new_patient(**columns))
    assert sentence in refused(capsys, "predict", place / "run", file)


def test_an_unknown_category_is_named(tmp_path: Path) -> None:
    model = trained(tmp_path / "run", inputs=["time", "sex"])
    new = new_patient(sex=["f"] * 5)
    assert len(model.predict_curves(new)) == 2
    with pytest.raises(UserError, match="the category 'x', which the model was not trained on: it knows f, m"):
        model.predict_curves(new | {"sex": ["f", "f", "x", "f", "f"]})


def test_several_targets_are_answered_together(tmp_path: Path) -> None:
    table = concentrations()
    table["double"] = [2 * value for value in table["concentration"]]
    model = trained(tmp_path / "run", table, targets=["concentration", "double"])
    new = new_patient(double=[18.0, 16.0, 11.0, None, None])
    for row in model.predict_curves(new).to_pylist():
        assert row["double"] == pytest.approx(2 * row["concentration"], rel=0.3)
    with pytest.raises(UserError, match="row 2 has some of its targets only"):
        model.predict_curves(new | {"double": [18.0, None, 11.0, None, None]})


def test_options_that_mean_nothing_for_curves_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--way", 3], ["--on", "sine"], ["--stream", 2]):
        assert "this model is of" in refused(capsys, "evaluate", place / "run", *option)
    assert "give one table of curves" in refused(capsys, "predict", place / "run", "a.csv", "b.csv")
    with pytest.raises(UserError, match="pass its folder on as it is"):
        metavrf.save_pretrained(place / "run", place / "packed")
    assert not (place / "packed").exists()
    with pytest.raises(UserError, match="was not trained on curves"):
        metavrf.load("sine").predict_curves(new_patient())
