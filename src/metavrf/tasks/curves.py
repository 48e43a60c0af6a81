"""Curves from a file: many small related data sets, one per group of rows, as regression tasks.

A table (CSV, Parquet or a data frame) has a column that names the group, columns of inputs and columns of targets.
Groups are split into training, validation and test groups. A task is one group: some of its rows are the support, the
others the queries. Inputs and targets are standardised by the training groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.prediction import Prediction
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.spec import Columns, TaskSpec
from metavrf.tasks.source import Tasks
from metavrf.tasks.splits import divide

LEAST_GROUPS = 6  # two each to train, validate and test on
FRAME_FILE = "curves.parquet"  # where a run keeps the data frame that it was trained on
Floats = NDArray[np.float64]


def as_table(source: Any, name: str = "the table") -> Any:
    """A pyarrow table of a CSV or Parquet file, of a pandas or polars frame, or of a mapping of columns."""
    import pyarrow

    try:
        if isinstance(source, str | Path):
            return _read(Path(source))
        if isinstance(source, pyarrow.Table | Mapping) or hasattr(source, "__arrow_c_stream__"):
            return pyarrow.table(source)
        return pyarrow.Table.from_pandas(source, preserve_index=False)
    except UserError:  # says it already, and is a ValueError
        raise
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from error
    except (pyarrow.ArrowException, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source if isinstance(source, str | Path) else name} is no table ({reason})") from error


def _read(path: Path) -> Any:
    from pyarrow import csv, parquet

    if not path.is_file():
        raise UserError(f"{path} does not exist: give a CSV or Parquet file with one row per point")
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    return csv.read_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True))


@dataclass(frozen=True)
class Rows:
    """The rows of a table as numbers: ``x [N, d]`` with categories one-hot, ``y [N, p]`` with NaN where it is empty."""

    groups: NDArray[Any]
    x: Floats
    y: Floats

    def of(self, chosen: NDArray[Any]) -> Rows:
        """Some of the rows."""
        return Rows(self.groups[chosen], self.x[chosen], self.y[chosen])

    def each(self) -> Iterator[tuple[str, Rows]]:
        """The groups in order of appearance, and their rows."""
        names, first = np.unique(self.groups, return_index=True)
        for name in names[first.argsort()]:
            yield str(name), self.of(self.groups == name)


def columns_of(table: Any, settings: DataSettings) -> Columns:
    """The columns that the settings name; the categories of those inputs that are no numbers."""
    wanted = (settings.group, *settings.inputs, *settings.targets)
    if not settings.inputs or not settings.targets:
        raise UserError("curves need --inputs and --targets: the columns to predict from, and those to predict")
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise UserError(f"the column {twice[0]!r} is given twice: group, inputs and targets are different columns")
    if strange := set(settings.categorical) - set(settings.inputs):
        raise UserError(f"the categorical column {sorted(strange)[0]!r} is not among --inputs")
    _check_columns(table, wanted)
    text = [name for name in settings.inputs if name in settings.categorical or _is_text(table[name].type)]
    categories = {name: sorted({str(v) for v in table[name].to_pylist() if v is not None}) for name in text}
    for name in set(text) - set(settings.categorical):
        _refuse_mixed(name, categories[name])
    return Columns(settings.group, list(settings.inputs), list(settings.targets), categories)


def _check_columns(table: Any, wanted: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in table.column_names]:
        raise UserError(f"there is no column {missing[0]!r}: choose from {', '.join(table.column_names)}")
    if table.num_rows == 0:
        raise UserError("the table has no rows")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_boolean(kind) or types.is_dictionary(kind) or "string" in str(kind))  # frames have several


def _refuse_mixed(name: str, values: Sequence[str]) -> None:
    """Refuse numbers beside text: most likely one of them is mistyped."""
    numbers = [value for value in values if _is_number(value)]
    if numbers and len(numbers) < len(values):
        other = next(value for value in values if value not in numbers)
        raise UserError(f"the column {name!r} mixes numbers and text ({other!r}): mend it, or name it in --categorical")


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def encoded(table: Any, columns: Columns, *, missing: str = "refuse", asking: bool = False) -> tuple[Rows, int]:
    """The rows of a table as numbers, and how many were dropped for missing values.

    ``asking`` lets targets be empty: such rows are to be predicted.
    """
    _check_columns(table, (columns.group, *columns.inputs, *columns.targets))
    inputs = [_encoded_input(table[name], name, columns.categories.get(name)) for name in columns.inputs]
    x = np.concatenate(inputs, axis=1)
    y = np.stack([_numbers(table[name], name) for name in columns.targets], axis=1)
    groups = np.array([None if v is None else str(v) for v in table[columns.group].to_pylist()], dtype=object)
    holes = {columns.group: np.array([name is None for name in groups])}
    holes |= {name: np.isnan(part[:, 0]) for name, part in zip(columns.inputs, inputs, strict=True)}
    if not asking:
        holes |= {name: np.isnan(y[:, index]) for index, name in enumerate(columns.targets)}
    elif (partly := np.isnan(y).sum(1) % y.shape[1] > 0).any():
        raise UserError(f"row {_row(partly)} has some of its targets only: give all of them, or none to ask for them")
    gone = np.logical_or.reduce(list(holes.values()))
    if gone.any() and missing == "refuse":
        name = next(name for name, empty in holes.items() if empty.any())
        count = int(holes[name].sum())
        raise UserError(
            f"the column {name!r} has {count} missing value{'s' * (count > 1)}, first in row {_row(holes[name])}: "
            + ("fill them in" if asking else "fill them in, or drop such rows with --missing drop")
        )
    return Rows(groups, x, y).of(~gone), int(gone.sum())


def _row(where: NDArray[Any]) -> int:
    """The first row, counted from 1 as a reader of the table would, without its header."""
    return int(where.argmax()) + 1


def _encoded_input(column: Any, name: str, categories: Sequence[str] | None) -> Floats:
    """``[N, 1]`` numbers, or one-hot ``[N, C]``; NaN where a value is missing."""
    if categories is None:
        return _numbers(column, name)[:, None]
    values = [None if value is None else str(value) for value in column.to_pylist()]
    if strange := sorted(set(values) - {*categories, None}, key=str):
        raise UserError(
            f"the column {name!r} has the category {strange[0]!r}, which the model was not trained on: it knows "
            + ", ".join(categories)
        )
    one_hot = np.array([[float(value == category) for category in categories] for value in values])
    one_hot = one_hot.reshape(len(values), len(categories))
    one_hot[[value is None for value in values]] = np.nan
    return one_hot


def _numbers(column: Any, name: str) -> Floats:
    """``[N]``; NaN where a value is missing."""
    import pyarrow

    try:
        values = np.asarray(column.cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
    except pyarrow.ArrowException as error:
        given = next((v for v in column.to_pylist() if v is not None and not _is_number(str(v))), column.type)
        raise UserError(f"the column {name!r} must hold numbers, not {str(given)!r}") from error
    if np.isinf(values).any():
        raise UserError(f"the column {name!r} holds infinity, first in row {_row(np.isinf(values))}: remove it")
    return values


class CurveTasks(Tasks):
    """Regression tasks on the groups of a table; what was learned of the columns is in ``spec.columns``.

    ``training`` and ``validation`` tasks are standardised; ``in_units`` says that held-out ones are not, to test a
    model that takes and gives numbers in their own units.
    """

    def __init__(self, parts: Mapping[str, Rows], spec: TaskSpec, *, in_units: bool = False) -> None:
        self.spec, self.in_units = spec, in_units
        self.banks = {part: _Bank(rows) for part, rows in parts.items()}

    def fitted(self, shape: EpisodeSettings) -> EpisodeSettings:
        """Support sets as large as training and validation groups allow, with a query left."""
        most = min(int(self.banks[part].counts.max()) for part in ("train", "val")) - 1
        for name in ("shot", "train_shot"):
            if getattr(shape, name) > most:
                raise UserError(
                    f"{name} = {getattr(shape, name)} leaves no row to predict: give at most {most}, as the groups to "
                    f"train and validate on have no more than {most + 1} rows"
                )
        return replace(shape, most_shot=min(shape.most_shot, most))

    def training(self, shape: EpisodeSettings, generator: torch.Generator) -> Episodes:
        """Tasks of one size, that of a group drawn at random: random rows of groups that have as many."""
        if shape.stream > 1:
            raise UserError("curves of a file have no streams: set stream to 1")
        bank, least = self.banks["train"], shape.train_shot or shape.shot
        sizes = bank.counts[bank.counts > least]
        if not len(sizes):
            raise UserError(f"no training group has more than {least} rows: lower --train-shot")
        size = int(sizes[torch.randint(len(sizes), (), generator=generator)])
        most = min(max(shape.most_shot, least), size - 1)
        shot = int(torch.randint(least, most + 1, (), generator=generator))
        fitting = (bank.counts >= size).nonzero()[:, 0]
        drawn = fitting[torch.randint(len(fitting), (shape.batch,), generator=generator)]
        return self._standardised(bank.tasks(drawn, shot, min(size - shot, shape.query), generator))

    def held_out(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        within_group: bool = False,
    ) -> Episodes:
        """Tasks of one size: groups of more than ``shot`` rows in turn, as many queries as all of them have."""
        if within_group:
            raise UserError("--within-alphabet is for omniglot")
        bank = self.banks[part]
        fitting = bank.more_than(shape.shot, part)
        query = int(bank.counts[fitting].min()) - shape.shot
        drawn = fitting[torch.arange(max(tasks, 1)) % len(fitting)]
        return self._seen(bank.tasks(drawn, shape.shot, query, generator))

    def groups(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        fixed_shot: bool = False,
    ) -> list[Episodes]:
        """Each group in rounds, until there are as many tasks as asked for; all rows beside the support are asked.

        With ``fixed_shot`` the groups of more than ``shot`` rows, else a number of shots is drawn for each round.
        """
        bank = self.banks[part]
        least = shape.shot if fixed_shot else shape.train_shot or shape.shot
        most = least if fixed_shot else max(shape.most_shot, least)
        fitting = bank.more_than(least, part)
        found = []
        for _ in range(max(1, tasks // len(fitting))):
            shot = int(torch.randint(least, most + 1, (), generator=generator))
            for size in bank.counts[fitting].unique().tolist():
                alike = fitting[bank.counts[fitting] == size]
                own = min(shot, size - 1)
                found.append(bank.tasks(alike, own, size - own, generator))
        return [self._seen(episodes) for episodes in _joined(found)]

    def named(self, part: str, most: int, shot: int, generator: torch.Generator) -> list[tuple[str, Episodes]]:
        """The largest groups of a part, each a task with its name."""
        bank = self.banks[part]
        largest = bank.counts.argsort(descending=True, stable=True)[:most]
        largest = largest[bank.counts[largest] > shot]
        sizes = bank.counts[largest].tolist()
        drawn = zip(largest.split(1), sizes, strict=True)
        tasks = [self._seen(bank.tasks(number, shot, size - shot, generator)) for number, size in drawn]
        return [(bank.names[number], task) for number, task in zip(largest.tolist(), tasks, strict=True)]

    def _seen(self, episodes: Episodes) -> Episodes:
        return episodes if self.in_units else self._standardised(episodes)

    def _standardised(self, episodes: Episodes) -> Episodes:
        assert self.spec.columns is not None
        return self.spec.columns.standardised(episodes)


class _Bank:
    """The rows of a part, those of a group together; ``starts`` and ``counts`` say where."""

    def __init__(self, rows: Rows) -> None:
        each = list(rows.each())
        self.names = [name for name, _ in each]
        self.counts = torch.tensor([len(group.x) for _, group in each])
        self.starts = self.counts.cumsum(0) - self.counts
        self.x = torch.from_numpy(np.concatenate([group.x for _, group in each]))
        self.y = torch.from_numpy(np.concatenate([group.y for _, group in each]))

    def more_than(self, shot: int, part: str) -> Tensor:
        """The numbers of the groups that have a row to ask for beside ``shot`` to learn from."""
        fitting = (self.counts > shot).nonzero()[:, 0]
        if not len(fitting):
            raise UserError(
                f"{shot=} leaves no row to predict: the {part} groups have at most {int(self.counts.max())} rows; give "
                "a smaller --shot"
            )
        return fitting

    def tasks(self, drawn: Tensor, shot: int, query: int, generator: torch.Generator) -> Episodes:
        """A task of each of the groups ``drawn [T]``: random rows, all different."""
        counts = self.counts[drawn].unsqueeze(1)
        order = torch.rand(len(drawn), int(counts.max()), generator=generator)
        order = order.masked_fill(torch.arange(order.shape[1]) >= counts, torch.inf).argsort(1)[:, : shot + query]
        rows = self.starts[drawn].unsqueeze(1) + order  # [T, S + Q]
        x, y = self.x[rows], self.y[rows]
        return Episodes(x[:, :shot], y[:, :shot], x[:, shot:], y[:, shot:])


def _joined(episodes: Sequence[Episodes]) -> list[Episodes]:
    """Episodes of the same size as one."""
    alike: dict[tuple[int, int], list[Episodes]] = {}
    for part in episodes:
        alike.setdefault((part.support_x.shape[1], part.query_x.shape[1]), []).append(part)

    def together(parts: Sequence[Episodes], name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    return [
        Episodes(
            together(parts, "support_x"),
            together(parts, "support_y"),
            together(parts, "query_x"),
            together(parts, "query_y"),
        )
        for parts in alike.values()
    ]


def open_curves(source: Any, settings: DataSettings, trained_on: TaskSpec | None = None) -> CurveTasks:
    """The tasks of a table: a path, or a table that was read already.

    ``trained_on`` is what a run says of its tasks: its columns, their scales and its split are kept, and held-out tasks
    come in the units of the table.
    """
    table = as_table(source)
    columns = columns_of(table, settings) if trained_on is None or not trained_on.columns else trained_on.columns
    rows, dropped = encoded(table, columns, missing=settings.missing)
    each = dict(rows.each())
    if short := [name for name, group in each.items() if len(group.x) < 2]:
        raise UserError(f"the group {short[0]!r} has one row: a curve needs two, one to predict from the other")
    if len(each) < LEAST_GROUPS:
        raise UserError(
            f"the table has {len(each)} group{'s' * (len(each) > 1)}: training needs at least {LEAST_GROUPS}, two each "
            "to train, validate and test on"
        )
    held = max(2, round(0.15 * len(each)))
    split = divide(list(each), (len(each) - 2 * held, held, held), settings.split_seed)
    parts = {part: rows.of(np.isin(rows.groups, names)) for part, names in split.items()}
    if trained_on is None:
        columns = columns.scaled_by(parts["train"].x, parts["train"].y, dropped)
    digest = hashlib.sha256(rows.x.tobytes() + rows.y.tobytes() + "\0".join(rows.groups).encode()).hexdigest()
    sizes = (rows.x.shape[1],), rows.y.shape[1]
    spec = TaskSpec(*sizes, f"random, seed {settings.split_seed}", digest, classes=split, columns=columns)
    return CurveTasks(parts, spec, in_units=trained_on is not None)


def answered(table: Any, columns: Columns, predict: Callable[[Episodes], Prediction]) -> Any:
    """The rows of a table whose targets are empty, with what ``predict`` says of them by the others of their group."""
    import pyarrow

    rows, _ = encoded(table, columns, asking=True)
    asked = np.isnan(rows.y).all(1)
    if not asked.any():
        raise UserError(f"nothing is asked: leave {' and '.join(columns.targets)} empty in the rows to predict")
    values = {name: np.full(rows.y.shape, np.nan) for name in ("", "_std", "_low", "_high")}
    for name, where in ((name, rows.groups == name) for name in dict.fromkeys(rows.groups[asked])):
        support, query = where & ~asked, where & asked
        if not support.any():
            raise UserError(f"the group {name!r} has no row with {columns.targets[0]}: give at least one to learn from")
        x, y, z = (torch.from_numpy(v).unsqueeze(0) for v in (rows.x[support], rows.y[support], rows.x[query]))
        found = predict(Episodes(x, y, z))
        assert found.std is not None
        for key, answer in zip(values, (found.mean, found.std, *found.band()), strict=True):
            values[key][query] = answer[0].double().numpy()
    answers = table.select([columns.group, *columns.inputs]).filter(pyarrow.array(asked))
    for index, target in enumerate(columns.targets):
        for key, value in values.items():
            answers = answers.append_column(target + key, pyarrow.array(value[asked, index]))
    return answers
