"""What files of results call a model."""

from __future__ import annotations

import json
from pathlib import Path

from metavrf.cli import main


def test_figures_of_a_model_of_the_package_name_it_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    main(["evaluate", "sine", "--tasks", "3", "--save", str(saved)])
    assert list(json.loads(saved.read_text())["trainings"]) == ["sine"]
