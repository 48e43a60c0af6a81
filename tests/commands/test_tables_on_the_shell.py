"""Tables of one's own on the shell: fit, predict, and what is wrong with a table in one sentence."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from metavrf.cli import main
from shell import PNG, printed_json, refused


def write_csv(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def houses(count: int, seed: int = 0) -> dict[str, Any]:
    """The price depends on area and town, not on the door."""
    random = np.random.default_rng(seed)
    area, town = random.uniform(50, 200, count), random.choice(["north", "south", "west"], count)
    price = 3 * area + 150 * (town == "south") + random.normal(0, 5, count)
    return {"area": area.round(3), "town": town, "door": random.uniform(0, 1, count).round(3), "price": price.round(3)}


def predicted(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, str]]:
    main(["predict", *map(str, arguments)])
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_numbers_of_a_table_are_fitted_explained_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, model, picture = write_csv(tmp_path / "houses.csv", houses(60)), tmp_path / "model", tmp_path / "why.png"
    said = printed_json(capsys, "fit", table, "--target", "price", "--out", model, "--plot", picture, "--json")
    assert picture.read_bytes().startswith(PNG)
    assert said["rows"] == 60
    assert said["r2"] > 0.95
    assert 1 < said["noise"] < 30
    assert set(list(said["relevance"])[:2]) == {"area", "town=south"}
    assert set(said["relevance"]) == {"area", "door", "town=north", "town=south", "town=west"}
    new = houses(30, seed=1)
    rows = predicted(capsys, model, write_csv(tmp_path / "new.csv", {k: v for k, v in new.items() if k != "price"}))
    assert list(rows[0]) == ["row", "price", "std", "low90", "high90"]
    assert [int(row["row"]) for row in rows] == list(range(1, 31))
    found = np.array([float(row["price"]) for row in rows])
    assert np.abs(found - new["price"]).mean() < 0.15 * new["price"].std()
    held = [float(r["low90"]) <= y <= float(r["high90"]) for r, y in zip(rows, new["price"], strict=True)]
    assert np.mean(held) > 0.7


def test_what_fit_says_stands_on_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_csv(tmp_path / "houses.csv", houses(30))
    main(["fit", str(table), "--target", "price", "--out", str(tmp_path / "model"), "--without", "door"])
    said = capsys.readouterr().out
    for part in ("30 rows; predicts price", "area", "noise: ", "leave-one-out: R² ", "metavrf predict"):
        assert part in said
    assert "door" not in said


def test_text_to_predict_is_classes_and_parquet_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 2))
    columns = {"a": x[:, 0], "b": x[:, 1], "kind": np.where(x[:, 0] > 0, "yes", "no")}
    parquet.write_table(pa.table(columns), tmp_path / "table.parquet")
    said = printed_json(
        capsys, "fit", tmp_path / "table.parquet", "--target", "kind", "--out", tmp_path / "m", "--json"
    )
    assert said["accuracy"] > 80
    assert sum(said["classes"].values()) == 40
    assert next(iter(said["relevance"])) == "a"
    new = write_csv(tmp_path / "new.csv", {"b": [0.0, 0.0], "a": [2.0, -2.0]})  # in another order
    rows = predicted(capsys, tmp_path / "m", new)
    assert [row["kind"] for row in rows] == ["yes", "no"]
    assert all(float(row["probability"]) > 0.5 for row in rows)
    main(["predict", str(tmp_path / "m"), str(new), "--save", str(tmp_path / "out.csv")])
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.csv").read_text().startswith("row,kind,probability,sure\n1,yes,")


def test_numbers_are_classes_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_csv(tmp_path / "t.csv", {"a": np.arange(12.0), "k": np.arange(12) // 6})
    said = printed_json(capsys, "fit", table, "--target", "k", "--classes", "--out", tmp_path / "m", "--json")
    assert said["classes"] == {"0.0": 6, "1.0": 6}


def test_rows_that_miss_values_are_named_and_refused_or_dropped_with_a_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = houses(20)
    columns["area"] = ["" if row in (3, 5) else value for row, value in enumerate(columns["area"])]
    columns["town"] = ["" if row == 7 else value for row, value in enumerate(columns["town"])]
    table = write_csv(tmp_path / "gaps.csv", columns)
    common = ["fit", table, "--target", "price", "--out", tmp_path / "model"]
    sentence = refused(capsys, *common)
    assert "2 in 'area', 1 in 'town'" in sentence
    assert "--missing drop" in sentence
    assert not (tmp_path / "model").exists()
    said = printed_json(capsys, *common, "--missing", "drop", "--json")
    assert (said["rows"], said["dropped"]) == (17, 3)
    assert "misses values" in refused(capsys, "predict", tmp_path / "model", table)
    rows = predicted(capsys, tmp_path / "model", table, "--missing", "drop")
    assert [int(row["row"]) for row in rows] == [n + 1 for n in range(20) if n not in (3, 5, 7)]


def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, model = write_csv(tmp_path / "houses.csv", houses(20)), tmp_path / "model"
    out = ["--out", model]
    assert "--target" in refused(capsys, "fit", table, *out)
    assert "no column 'cost': it has area, town" in refused(capsys, "fit", table, "--target", "cost", *out)
    assert "is not a file" in refused(capsys, "fit", tmp_path / "no.csv", "--target", "price", *out)
    assert "does not exist" in refused(capsys, "predict", tmp_path / "no", table)
    (tmp_path / "bad.parquet").write_text("no")
    assert "cannot be read" in refused(capsys, "fit", tmp_path / "bad.parquet", "--target", "price", *out)
    names = write_csv(tmp_path / "names.csv", houses(40) | {"name": [f"n{i}" for i in range(40)]})
    assert "--without name" in refused(capsys, "fit", names, "--target", "price", *out)
    assert "one value" in refused(
        capsys, "fit", write_csv(tmp_path / "s.csv", {"a": [1, 2, 3], "k": ["x"] * 3}), "--target", "k", *out
    )
    assert "for pictures" in refused(capsys, "fit", table, "--target", "price", "--model", "omniglot", *out)
    assert "are for tables" in refused(capsys, "fit", tmp_path, "--target", "price", *out)
    assert ".gif" in refused(capsys, "fit", table, "--target", "price", "--plot", "a.gif", *out)
    main(["fit", str(table), "--target", "price", "--out", str(model)])
    capsys.readouterr()
    new = houses(3)
    assert "no column 'door'" in refused(
        capsys, "predict", model, write_csv(tmp_path / "n.csv", {"area": [1], "town": ["west"]})
    )
    assert "'east'" in refused(capsys, "predict", model, write_csv(tmp_path / "e.csv", new | {"town": ["east"] * 3}))
    assert "must be numbers" in refused(
        capsys, "predict", model, write_csv(tmp_path / "t.csv", new | {"area": ["a"] * 3})
    )
    assert "give one table" in refused(capsys, "predict", model, table, table)
    (model / "columns.json").write_text('{"target": "price"}')
    assert "damaged" in refused(capsys, "predict", model, table)
    (model / "columns.json").unlink()
    assert "not fitted on a table" in refused(capsys, "predict", model, table)
