"""What was measured: sections of rows, their quartiles and ratios, and how they compare with what was aimed at."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metavrf.errors import UserError

Quartiles = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    """One variant: a figure a round.

    Attributes:
        name: what it is.
        values: the figures.
        note: what else is to be said of it.
        reference: the row that its ratio is taken to, where that is not the section's.
    """

    name: str
    values: list[float]
    note: str = ""
    reference: str = ""

    @property
    def quartiles(self) -> Quartiles:
        """Lower quartile, median, upper quartile."""
        return quartiles(self.values)

    @property
    def median(self) -> float:
        """The figure that is reported."""
        return self.quartiles[1]


@dataclass(frozen=True)
class Section:
    """Variants of one piece of work, measured by turns.

    Attributes:
        key: its name on the command line.
        title: what was done.
        unit: of the rows' values.
        rows: the variants.
        reference: the row that ratios are taken to, within each round; empty for no ratios.
        speed_up: whether a ratio says how many times as fast as the reference, rather than how much of its time.
        notes: what a reader must know.
    """

    key: str
    title: str
    unit: str
    rows: list[Row]
    reference: str = ""
    speed_up: bool = False
    notes: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def ratio(self, name: str, reference: str = "") -> Quartiles:
        """Quartiles of a row's ratio to another, taken round by round: what hits a whole round cancels out."""
        row = self.row(name)
        other = self.row(reference or row.reference or self.reference)
        pairs = zip(row.values, other.values, strict=True)
        return quartiles([b / a if self.speed_up else a / b for a, b in pairs])

    def table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, columns and lines, for a terminal or Markdown."""
        header = ["", self.unit, "quartiles"]
        if self.reference:
            header.append("times as fast" if self.speed_up else f"of {self.reference}")
        lines = []
        for row in self.rows:
            low, median, high = row.quartiles
            line = [row.name, f"{median:.3g}", f"{low:.3g} to {high:.3g}"]
            if self.reference:
                low, median, high = self.ratio(row.name)
                line.append(f"{median:.2f} ({low:.2f} to {high:.2f})")
            lines.append([*line, row.note])
        noted = any(row.note for row in self.rows)
        return self.title, [*header, ""] if noted else header, lines if noted else [line[:-1] for line in lines]


@dataclass(frozen=True)
class Aim:
    """Something that was to be reached."""

    what: str
    measured: float
    aim: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it was."""
        return self.measured >= self.aim if self.at_least else self.measured <= self.aim


def _row(plain: Mapping[str, Any]) -> Row:
    """As it was saved; older files know no reference of a row's own."""
    return Row(plain["name"], plain["values"], plain["note"], plain.get("reference", ""))


def quartiles(values: Sequence[float]) -> Quartiles:
    """Lower quartile, median, upper quartile; of one value, three times that."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def aims_table(aims: Sequence[Aim]) -> tuple[str, list[str], list[list[str]]]:
    """The aims as a table."""
    lines = [
        [aim.what, f"{aim.measured:.3g}", f"at {'least' if aim.at_least else 'most'} {aim.aim:g}", _verdict(aim)]
        for aim in aims
    ]
    return "Aims", ["", "measured", "aim", ""], lines


def _verdict(aim: Aim) -> str:
    """Met, or by how much it is not."""
    if aim.met:
        return "met"
    if aim.aim == 0:
        return f"missed by {abs(aim.measured):.3g}"
    missed = aim.aim / aim.measured if aim.at_least else aim.measured / aim.aim
    return f"missed by a factor of {missed:.2f}"


@dataclass(frozen=True)
class Results:
    """All that a run of the benchmark found."""

    sections: list[Section]
    aims: list[Aim] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Accuracy against wall time, by learner."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the figures of every round; medians and ratios beside them, for a reader."""
        values = asdict(self)
        for section, plain in zip(self.sections, values["sections"], strict=True):
            for row, entry in zip(section.rows, plain["rows"], strict=True):
                entry["quartiles"] = list(row.quartiles)
                if section.reference:
                    entry["ratio_quartiles"] = list(section.ratio(row.name))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Results:
        """What :meth:`to_dict` gave."""
        sections = [Section(**{**plain, "rows": [_row(row) for row in plain["rows"]]}) for plain in values["sections"]]
        aims = [Aim(**aim) for aim in values["aims"]]
        return cls(sections, aims, values["machine"], values["skipped"], values["curves"])

    @classmethod
    def read(cls, path: Path) -> Results:
        """From a file that was saved."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not what 'benchmarks/bench.py --save' writes") from error

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Every table: the sections', then the aims."""
        tables = [section.table() for section in self.sections]
        if self.curves:
            tables.append(curves_table(self.curves))
        return [*tables, aims_table(self.aims)] if self.aims else tables

    def remarks(self) -> list[str]:
        """What a reader must know beside the tables."""
        notes = [note for section in self.sections for note in section.notes]
        return [*notes, *(f"Not measured: {reason}" for reason in self.skipped)]


def lead_aims(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Aim]:
    """The first learner is to be ahead of each other at every point: its smallest lead."""
    (_, first), *others = curves.items()
    leads = {
        name: min(a["accuracy"] - b["accuracy"] for a, b in zip(first, points, strict=False)) for name, points in others
    }
    return [Aim(f"smallest lead over {name}, points", lead, 0.0, at_least=True) for name, lead in leads.items()]


def curves_table(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> tuple[str, list[str], list[list[str]]]:
    """Accuracy of each learner at each point of time."""
    most = max(curves.values(), key=len)
    lines = [
        [f"{point['seconds']:.0f}", *(f"{c[at]['accuracy']:.2f}" if at < len(c) else "" for c in curves.values())]
        for at, point in enumerate(most)
    ]
    return "Accuracy on validation classes (%) after so many seconds of training", ["seconds", *curves], lines
