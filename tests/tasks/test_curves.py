from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.randomness import stream
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.curves import CurveTasks, open_curves
from tables import COLUMNS, concentrations, write_csv

SETTINGS = DataSettings(**COLUMNS)
SHAPE = EpisodeSettings(shot=2, train_shot=2, most_shot=5, batch=6)


def opened(table: dict[str, list[Any]] | None = None, **options: Any) -> CurveTasks:
    return open_curves(concentrations() if table is None else table, replace(SETTINGS, **options))


def in_units(tasks: CurveTasks, table: dict[str, list[Any]]) -> CurveTasks:
    return open_curves(table, SETTINGS, tasks.spec)


def points(episodes: Episodes) -> set[tuple[float, ...]]:
    """All points of tasks, each as (time, dose, concentration)."""
    assert episodes.query_y is not None
    x = torch.cat([episodes.support_x, episodes.query_x], 1).flatten(0, 1)
    y = torch.cat([episodes.support_y, episodes.query_y], 1).flatten(0, 1)
    return {tuple(row) for row in torch.cat([x, y], 1).double().tolist()}


def rows_of(table: dict[str, list[Any]], names: list[str]) -> set[tuple[float, ...]]:
    columns = (table["patient"], table["time"], table["dose"], table["concentration"])
    return {(t, d, c) for p, t, d, c in zip(*columns, strict=True) if p in names}


def test_groups_are_split_and_no_point_of_one_part_is_in_another() -> None:
    table = concentrations()
    tasks = opened(table)
    split = tasks.spec.classes
    assert sorted(name for names in split.values() for name in names) == sorted(set(table["patient"]))
    assert [len(split[part]) for part in ("train", "val", "test")] == [8, 2, 2]
    units = in_units(tasks, table)
    for part in ("val", "test"):
        seen = set().union(*(points(e) for e in units.groups(part, 20, SHAPE, stream(0, "test"), fixed_shot=True)))
        assert seen == rows_of(table, split[part])
    columns = tasks.spec.columns
    assert columns is not None
    train = np.array(sorted(rows_of(table, split["train"])))
    for step in range(20):
        batch = tasks.training(SHAPE, stream(0, "train", step))
        x, y = np.array(columns.input_std), np.array(columns.target_std)
        for *inputs, target in points(batch):
            row = [*(np.array(inputs) * x + columns.input_mean), *(np.array([target]) * y + columns.target_mean)]
            assert np.abs(train - row).sum(1).min() < 1e-3


def test_another_seed_splits_the_groups_otherwise() -> None:
    assert opened(split_seed=1).spec.classes != opened().spec.classes
    assert opened(split_seed=1).spec == opened(split_seed=1).spec


def test_scales_are_those_of_the_training_groups_alone() -> None:
    table = concentrations()
    tasks = opened(table)
    assert tasks.spec.columns is not None
    train = np.array(sorted(rows_of(table, tasks.spec.classes["train"])))
    np.testing.assert_allclose(tasks.spec.columns.input_mean, train[:, :2].mean(0))
    np.testing.assert_allclose(tasks.spec.columns.input_std, train[:, :2].std(0))
    np.testing.assert_allclose(tasks.spec.columns.target_mean, train[:, 2:].mean(0))
    held = [name for part in ("val", "test") for name in tasks.spec.classes[part]]
    for row, name in enumerate(table["patient"]):
        if name in held:
            table["concentration"][row] *= 1000
    assert opened(table).spec.columns == tasks.spec.columns


def test_training_tasks_have_points_of_one_group_all_different() -> None:
    table = concentrations()
    tasks = opened(table)
    assert tasks.spec.columns is not None
    dose_of = {}
    for step in range(30):
        batch = tasks.training(SHAPE, stream(0, "train", step))
        assert batch.tasks == 6
        assert 2 <= batch.support_x.shape[1] <= 5
        x = torch.cat([batch.support_x, batch.query_x], 1)
        dose_of[step] = x[..., 1]
        assert (x[..., 1] == x[:, :1, 1]).all()  # the dose is the same in a group
        assert all(len(times.unique()) == len(times) for times in x[..., 0])
    assert len({batch.shape[1] for batch in dose_of.values()}) > 2  # steps have sizes of their own


def test_a_stream_draws_the_same_tasks_again() -> None:
    first, again = (opened().training(SHAPE, stream(3, "train", 7)) for _ in range(2))
    assert torch.equal(first.support_x, again.support_x)
    assert first.query_y is not None and again.query_y is not None
    assert torch.equal(first.query_y, again.query_y)


def test_groups_of_unequal_size_come_whole_in_records_of_one_size() -> None:
    table = concentrations(30)
    units = in_units(opened(table), table)
    records = units.groups("test", 1, SHAPE, stream(0, "test"), fixed_shot=True)
    assert len(records) > 1
    assert {record.support_x.shape[1] for record in records} == {2}
    assert sum(record.tasks for record in records) == 4  # 15 % of 30
    sizes = sorted(2 + record.query_x.shape[1] for record in records for _ in range(record.tasks))
    counts = [table["patient"].count(name) for name in units.spec.classes["test"]]
    assert sizes == sorted(counts)


def test_support_sets_grow_as_far_as_groups_allow() -> None:
    tasks = opened()
    largest = min(int(tasks.banks[part].counts.max()) for part in ("train", "val"))
    assert tasks.fitted(replace(SHAPE, most_shot=50)).most_shot == largest - 1
    assert tasks.fitted(SHAPE).most_shot == min(5, largest - 1)
    with pytest.raises(UserError, match="shot = 40 leaves no row to predict"):
        tasks.fitted(replace(SHAPE, shot=40))


def test_text_is_one_hot_and_its_categories_are_kept() -> None:
    tasks = opened(inputs=("time", "sex"))
    columns = tasks.spec.columns
    assert columns is not None
    assert columns.categories == {"sex": ["f", "m"]}
    assert tasks.spec.inputs == (3,)
    batch = tasks.training(SHAPE, stream(0, "train"))
    assert set(batch.support_x[..., 1:].flatten().tolist()) <= {0.0, 1.0}
    assert (batch.support_x[..., 1:].sum(-1) == 1).all()


def test_numbers_may_be_categories() -> None:
    columns = opened(categorical=("dose",)).spec.columns
    assert columns is not None
    assert columns.categories == {"dose": ["200.0", "300.0", "400.0"]}


def test_several_targets_have_scales_of_their_own() -> None:
    table = concentrations()
    table["half"] = [value / 2 + 7 for value in table["concentration"]]
    columns = opened(table, targets=("concentration", "half")).spec.columns
    assert columns is not None
    assert columns.target_std[1] == pytest.approx(columns.target_std[0] / 2)
    assert columns.target_mean[1] == pytest.approx(columns.target_mean[0] / 2 + 7)


def test_missing_values_are_named_and_refused_or_dropped_with_a_count() -> None:
    table = concentrations()
    table["dose"][3] = None
    table["concentration"][5] = float("nan")
    with pytest.raises(UserError, match=r"the column 'dose' has 1 missing value, first in row 4: .* --missing drop"):
        opened(table)
    dropped = opened(table, missing="drop")
    assert dropped.spec.columns is not None
    assert dropped.spec.columns.dropped == 2
    total = sum(int(bank.counts.sum()) for bank in dropped.banks.values())
    assert total == len(table["patient"]) - 2


def test_frames_csv_and_parquet_are_the_same_tasks(tmp_path: Path) -> None:
    table = concentrations()
    parquet.write_table(pa.table(table), tmp_path / "curves.parquet")
    specs = [
        open_curves(source, SETTINGS).spec
        for source in (table, pa.table(table), write_csv(tmp_path / "c.csv", table), tmp_path / "curves.parquet")
    ]
    assert all(spec == specs[0] for spec in specs)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames_are_the_same_tasks(package: str) -> None:
    frames = pytest.importorskip(package)
    settings = replace(SETTINGS, inputs=("time", "dose", "sex"))
    assert open_curves(frames.DataFrame(concentrations()), settings).spec == opened(inputs=settings.inputs).spec


def test_what_is_kept_of_the_columns_survives_the_file() -> None:
    spec = opened(inputs=("time", "sex")).spec
    assert TaskSpec.from_dict(spec.to_dict()) == spec


def changed(**columns: Any) -> dict[str, list[Any]]:
    table = concentrations()
    return table | {name: change(table[name]) for name, change in columns.items()}


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        (concentrations(), {"group": "who"}, "there is no column 'who': choose from patient, time"),
        (concentrations(), {"inputs": ()}, "curves need --inputs and --targets"),
        (concentrations(), {"inputs": ("time", "concentration")}, "the column 'concentration' is given twice"),
        (concentrations(), {"categorical": ("sex",)}, "the categorical column 'sex' is not among --inputs"),
        (concentrations(), {"targets": ("sex",)}, "the column 'sex' must hold numbers, not '[fm]'"),
        (concentrations(5), {}, "the table has 5 groups: training needs at least 6"),
        ({name: [] for name in concentrations()}, {}, "the table has no rows"),
        (changed(patient=lambda p: ["alone", *p[1:]]), {}, "the group 'alone' has one row"),
        (
            changed(dose=lambda d: ["high", *map(str, d[1:])]),
            {},
            r"the column 'dose' mixes numbers and text \('high'\)",
        ),
        (changed(time=lambda t: [float("inf"), *t[1:]]), {}, "the column 'time' holds infinity, first in row 1"),
    ],
)
def test_tables_that_cannot_work_are_refused_in_one_sentence(
    table: dict[str, list[Any]], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        open_curves(pa.table(table), replace(SETTINGS, **options))


def test_a_test_needs_groups_that_are_large_enough() -> None:
    with pytest.raises(UserError, match="shot=20 leaves no row to predict: the test groups have at most"):
        opened().groups("test", 1, replace(SHAPE, shot=20), stream(0, "test"), fixed_shot=True)
