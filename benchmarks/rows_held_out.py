"""Small real tables to judge the network of rows on, from the data that statsmodels brings with it.

    python benchmarks/rows_held_out.py statsmodels/datasets --out FOLDER

None of them is in benchmarks/rows.py. Rows with missing values are left out, and of large tables 400 rows are taken.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

MOST = 400


class Source(NamedTuple):
    """A file, its target and the columns to leave out; ``above`` makes two classes of a number."""

    file: str
    target: str
    without: tuple[str, ...] = ()
    separator: str = ","
    above: float | None = None


SOURCES = {
    "heart": Source("heart/heart.csv", "survival"),
    "ccard": Source("ccard/ccard.csv", "AVGEXP"),
    "copper": Source("copper/copper.csv", "WORLDCONSUMPTION", ("YEAR",)),
    "engel": Source("engel/engel.csv", "foodexp"),
    "statecrime": Source("statecrime/statecrime.csv", "murder", ("state",)),
    "star98": Source("star98/star98.csv", "PR50M"),
    "scotvote": Source("scotland/scotvote.csv", "YES", ("COUNCILDIST",)),
    "grunfeld": Source("grunfeld/grunfeld.csv", "invest", ("firm",)),
    "macro-inflation": Source("macrodata/macrodata.csv", "infl", ("realint",)),
    "stackloss": Source("stackloss/stackloss.csv", "STACKLOSS"),
    "fair": Source("fair/fair.csv", "rate_marriage"),
    "anes96-age": Source("anes96/anes96.csv", "age", separator="\t"),
    "committee": Source("committee/committee.csv", "BILLS104", ("COMMITTEE",)),
    "classes-anes96": Source("anes96/anes96.csv", "vote", separator="\t"),
    "classes-spector": Source("spector/spector.csv", "GRADE", ("OBS",), " "),
    "classes-fair": Source("fair/fair.csv", "affairs", above=0),
    "classes-modechoice": Source("modechoice/modechoice.csv", "choice", ("individual",), ";"),
    "classes-ownrent": Source("ccard/ccard.csv", "OWNRENT"),
    "classes-heart": Source("heart/heart.csv", "censors"),
}


def write(name: str, source: Source, folder: Path, out: Path) -> None:
    """One table, its target last."""
    with (folder / source.file).open() as file:
        spaced = source.separator == " "
        lines = [line.split() for line in file] if spaced else list(csv.reader(file, delimiter=source.separator))
    head, *rows = [[cell.strip().strip("\"'") for cell in line] for line in lines]
    columns = [c for c in head if c != source.target and c not in source.without] + [source.target]
    table = []
    for row in rows:
        try:
            table.append([float(row[head.index(column)]) for column in columns])
        except (ValueError, IndexError):
            continue
    values = np.array(table)
    if source.above is not None:
        values[:, -1] = values[:, -1] > source.above
    if len(values) > MOST:
        values = values[np.random.default_rng(0).permutation(len(values))[:MOST]]
    np.savetxt(out / f"{name}.csv", values, delimiter=",", header=",".join(columns), comments="")


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        write(name, source, asked.folder, asked.out)


if __name__ == "__main__":
    main()
