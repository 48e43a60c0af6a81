"""Small tables of curves: simulated concentrations of a drug after a dose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

COLUMNS: dict[str, Any] = {"group": "patient", "inputs": ["time", "dose"], "targets": ["concentration"]}
TINY: dict[str, Any] = {
    "iterations": 20,
    "validate_every": 10,
    "validate_tasks": 10,
    "batch": 4,
    "components": 4,
    "guards": 1,
    "rough": 1,
    "threads": 1,
    "quiet": True,
}


def concentrations(patients: int = 12, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of a table: one compartment with absorption, groups of 4 to 9 rows."""
    generator = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in ("patient", "time", "dose", "sex", "concentration")}
    for patient in range(patients):
        absorption, elimination, volume = np.exp(generator.normal([0.3, -2.2, 3.2], [0.4, 0.3, 0.25]))
        dose, sex = float(generator.choice([200, 300, 400])), str(generator.choice(["f", "m"]))
        for time in np.sort(generator.uniform(0.2, 24, generator.integers(4, 10))):
            share = absorption / (absorption - elimination)
            level = dose / volume * share * (np.exp(-elimination * time) - np.exp(-absorption * time))
            values = (f"p{patient}", round(time, 3), dose, sex, round(level * np.exp(generator.normal(0, 0.05)), 4))
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    return rows


def write_csv(path: Path, table: dict[str, list[Any]]) -> Path:
    """Write columns as a CSV file; None is an empty field."""
    lines = [
        ",".join("" if value is None else str(value) for value in row) for row in zip(*table.values(), strict=True)
    ]
    path.write_text("\n".join([",".join(table), *lines]) + "\n")
    return path
