"""Figures of results and cards as text, and the registry of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metavrf.runs.directory import SHIPPED
from metavrf.testing.published import PUBLISHED

ROOT = Path(__file__).parent.parent.parent
MODELS = ("omniglot", "photos", "cifar-fs", "mini-imagenet", "sine", "sine-rff")
SHOTS = (3, 5, 10)

Rows = list[list[str]]
Result = Mapping[str, Any]
TABLES: dict[str, Callable[[], Rows]] = {}


def table(name: str) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Make a function that returns the header and lines of a table known by ``name``."""

    def add(make: Callable[[], Rows]) -> Callable[[], Rows]:
        TABLES[name] = make
        return make

    return add


def result(name: str) -> Any:
    """A file of results."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def card(name: str) -> Any:
    """The card of a model in the package."""
    return json.loads((SHIPPED / name / "card.json").read_text())


def number(value: float, digits: int = 3) -> str:
    """A figure to a few digits: 0.0105, 4.56e-7."""
    return tidy(f"{value:.{digits}g}")


def tidy(text: str) -> str:
    """1e-05 as 1e-5."""
    return re.sub(r"e-0+", "e-", text)


def accuracy(test: Result) -> str:
    """Percent with its 95 % interval."""
    return f"{test['mean']:.2f} ± {test['ci95']:.2f}"


def error(test: Result) -> str:
    """Mean squared error with its 95 % interval."""
    return f"{number(test['mean'], 4)} ± {number(test['ci95'], 2)}"


def band(test: Result) -> str:
    """Share of targets in the 90 % band."""
    return f"{100 * test['coverage90']:.1f} %"


def paper(task: str, way: int, shot: int, learner: str = "metavrf bilstm") -> str:
    """What the MetaVRF paper says, or nothing."""
    return str(PUBLISHED.get((task, way, shot), {}).get(learner, ""))


def select(tests: Sequence[Result], **wanted: Any) -> Result:
    """The one test with these labels."""
    (found,) = (test for test in tests if all(test.get(name) == value for name, value in wanted.items()))
    return found


def over_seeds(name: str, shot: int) -> float:
    """Mean squared error of a study at a number of shots, mean over its seeds."""
    means = [row["mean"] for row in result(name)["rows"] if row["shot"] == shot]
    return float(sum(means) / len(means))
