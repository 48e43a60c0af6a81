"""Tables on disk: CSV or Parquet in, rows of numbers out, the same way for every file of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metavrf.errors import UserError

COLUMNS_FILE = "columns.json"  # in the folder of a model that was fitted on a table
FORMATS = {".csv", ".parquet"}
MOST_VALUES = 20  # different texts of a column that becomes numbers
Columns = dict[str, NDArray[Any]]


def is_table(path: Path) -> bool:
    """Whether a path is that of a table, by its name."""
    return path.suffix.lower() in FORMATS


def read_columns(path: Path) -> Columns:
    """The columns of a file by name: floats with NaN, or texts with None, where a value is missing."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if not path.is_file():
        raise UserError(f"{path} is not a file: give a table as {' or '.join(sorted(FORMATS))}")
    try:
        if path.suffix.lower() == ".csv":
            table = csv.read_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True))
        else:
            table = parquet.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from error
    if len(set(table.column_names)) < len(table.column_names):
        raise UserError(f"{path} has two columns of one name: rename one of them")
    if table.num_rows == 0:
        raise UserError(f"{path} has no rows")
    return {name: _values(path, name, table.column(name)) for name in table.column_names}


def _values(path: Path, name: str, column: Any) -> NDArray[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        values = np.array([np.nan if value is None else float(value) for value in column.to_pylist()])
        if np.isinf(values).any():
            raise UserError(f"{path} holds infinity in the column {name!r}: remove or replace it")
        return values
    return np.array([None if value is None else str(value) for value in column.to_pylist()], dtype=object)


def missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing."""
    return np.array([value is None for value in values]) if values.dtype == object else np.isnan(values)


def without_missing(columns: Columns, path: Path, drop: bool) -> tuple[Columns, NDArray[np.int64]]:
    """The columns without rows that miss a value, and the numbers of the rows that stay; refused unless ``drop``."""
    gaps = {name: missing(values) for name, values in columns.items()}
    counts = {name: int(gap.sum()) for name, gap in gaps.items() if gap.any()}
    if counts and not drop:
        named = ", ".join(f"{count} in {name!r}" for name, count in counts.items())
        raise UserError(f"{path} misses values: {named}; fill them in, or leave those rows out by --missing drop")
    kept = np.nonzero(~np.any(list(gaps.values()), axis=0))[0]
    if len(kept) == 0:
        raise UserError(f"{path} has no row without a missing value")
    return {name: values[kept] for name, values in columns.items()}, kept


@dataclass(frozen=True)
class Coding:
    """How the columns of a table become numbers.

    Attributes:
        target: the column to predict.
        texts: the values of each input column of text; two become one column of 0 and 1, more become one each.
        inputs: the input columns in order.
    """

    target: str
    inputs: list[str]
    texts: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Columns, target: str, without: Sequence[str], path: Path) -> Coding:
        """For a table, which must have the columns."""
        for name in (target, *without):
            if name not in columns:
                raise UserError(f"{path} has no column {name!r}: it has {', '.join(columns)}")
        inputs = [name for name in columns if name != target and name not in without]
        if not inputs:
            raise UserError(f"{path} has no column besides {target!r} to predict it from")
        texts = {}
        for name in inputs:
            if columns[name].dtype == object:
                texts[name] = sorted({value for value in columns[name] if value is not None})
                if len(texts[name]) > MOST_VALUES:
                    raise UserError(
                        f"the column {name!r} of {path} has {len(texts[name])} different texts, "
                        f"more than {MOST_VALUES}: leave it out by --without {name}"
                    )
        return cls(target, inputs, texts)

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Coding:
        """What :meth:`saved` gave."""
        return cls(**values)

    def saved(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @property
    def names(self) -> list[str]:
        """Of the columns of numbers."""
        return [coded for name in self.inputs for coded, _ in self._coded(name)]

    def chosen(self, columns: Columns, path: Path, also: Sequence[str] = ()) -> Columns:
        """The input columns, and ``also`` others, of a table that must have them."""
        for name in (*self.inputs, *also):
            if name not in columns:
                raise UserError(f"{path} has no column {name!r}, which the model takes: it has {', '.join(columns)}")
        return {name: columns[name] for name in (*self.inputs, *also)}

    def numbers(self, columns: Columns, path: Path) -> NDArray[np.float64]:
        """``[N, d]``, of columns without missing values."""
        parts = []
        for name in self.inputs:
            values = columns[name]
            if (values.dtype == object) != (name in self.texts):
                kinds = ("text", "numbers") if name in self.texts else ("numbers", "text")
                raise UserError(f"the column {name!r} of {path} must be {kinds[0]}, as in the model's, not {kinds[1]}")
            unknown = set(values) - set(self.texts[name]) if name in self.texts else set()
            if unknown:
                raise UserError(
                    f"the column {name!r} of {path} holds {sorted(unknown)[0]!r}, which the model has not seen: "
                    f"it knows {', '.join(self.texts[name])}"
                )
            parts += [values if value is None else values == value for _, value in self._coded(name)]
        return np.stack(parts, 1).astype(np.float64)

    def _coded(self, name: str) -> list[tuple[str, str | None]]:
        """Name and value of each column of numbers that a column becomes."""
        values = self.texts.get(name)
        if values is None:
            return [(name, None)]
        return [(f"{name}={value}", value) for value in (values[1:] if len(values) == 2 else values)]
