from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import main
from glyphs import write_glyph_table
from metavrf.config import Config
from shell import PNG
from speed import accuracy
from speed.charts import plot_curves
from speed.measure import SECTIONS
from speed.results import Results
from speed.work import CONTEXTS, GRADIENTS, Work

DOCS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sections at tiny sizes, in one round."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_DATA", str(folder))
        patch.setenv("METAVRF_CACHE", str(folder))
        patch.chdir(folder)  # workers start anywhere
        options = ["--rounds", "1", "--threads", "1", "--chart", str(folder / "bench.png")]
        main(["--quick", *options, "--save", str(folder / "bench.json")])
    return folder / "bench.json"


def test_one_run_measures_everything_and_says_where_it_comes_from(saved: Path) -> None:
    values = json.loads(saved.read_text())
    found = {section["key"] for section in values["sections"]}
    assert found == {*SECTIONS, "embedding", "levers"}
    assert {"command", "commit", "seed", "torch", "finished"} <= values["provenance"].keys()
    assert values["machine"]["threads"] == 1
    assert values["skipped"] == ["a bank from the cache, for Omniglot is not at hand"]
    assert all(row["quartiles"][1] > 0 for section in values["sections"] for row in section["rows"])
    assert len(values["aims"]) >= 10
    assert saved.with_suffix(".png").read_bytes().startswith(PNG)


def test_every_gradient_written_by_hand_is_set_beside_the_one_derived_in_the_same_run(saved: Path) -> None:
    (section,) = (section for section in Results.read(saved).sections if section.key == "gradients")
    assert [row.name for row in section.rows] == [
        f"{name}, {how}" for name in GRADIENTS for how in ("derived", "by hand")
    ]
    for name in GRADIENTS:
        derived, by_hand = (section.row(f"{name}, {how}") for how in ("derived", "by hand"))
        assert section.ratio(derived.name) == (1.0, 1.0, 1.0)
        assert section.ratio(by_hand.name)[1] == pytest.approx(derived.values[0] / by_hand.values[0])
        assert section.ratio(by_hand.name)[1] > 0


def test_steps_on_sine_with_one_kernel_and_many_are_measured_side_by_side(saved: Path) -> None:
    (section,) = (section for section in Results.read(saved).sections if section.key == "sine")
    names = [row.name for row in section.rows if row.name.startswith("whole step")]
    many = f"whole step, {Work.quick().kernels} kernels, exact"
    contexts = [f"whole step, context {context}" for context in CONTEXTS]
    exact = "whole step, one kernel, exact"
    assert names == [*contexts, exact, f"{exact}, no KL", many]
    assert section.ratio(many, "whole step, one kernel, exact")[1] > 0


def test_what_the_gradient_of_pooling_saves_is_a_row_of_the_memory(saved: Path) -> None:
    (section,) = (section for section in Results.read(saved).sections if section.key == "memory")
    names = [row.name for row in section.rows]
    assert names[0] == "our allocator settings"
    assert names[-1] == "our allocator settings, with the gradient of pooling derived"


def test_what_was_saved_is_shown_again_without_measuring(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--show", str(saved), "--markdown", "--chart", str(tmp_path / "again.png")])
    printed = capsys.readouterr()
    assert printed.err == ""
    for section in Results.read(saved).sections:
        assert section.title in printed.out
    assert "| all but bases never formed |" in printed.out
    assert (tmp_path / "again.png").read_bytes().startswith(PNG)
    main(["--show", str(saved), "--json"])
    assert json.loads(capsys.readouterr().out)["sections"][0]["key"] == "step"


@pytest.mark.parametrize(
    "options", [["--rounds", "0"], ["--accuracy", "-1"], ["--only", "--chart", "bench.png"], ["--chart", "bench.txt"]]
)
def test_what_cannot_be_measured_is_refused_at_once(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_learners_train_for_the_same_time_and_are_validated_as_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path))
    monkeypatch.setattr(accuracy, "VALIDATION_TASKS", 4)
    table = write_glyph_table(tmp_path / "glyphs.parquet", range(30), drawers=20, side=16)

    tiny: dict[str, Any] = {"image_size": 16, "grey": True, "channels": 4, "embedding": "conv4", "clip": 1.0}
    tiny |= {"batch": 1, "train_way": 5, "query": 2}
    configs = [Config.of(str(table), learner, **tiny) for learner in ("metavrf", "prototypical", "maml")]
    configs[0] = configs[0].with_options(bases=16)
    heard: list[str] = []
    curves = accuracy.accuracy_curves(configs, 0.6, 0.2, lambda name, *_: heard.append(name))
    assert list(curves) == ["metavrf", "prototypical", "maml"]
    for name, points in curves.items():
        seconds, steps = ([point[key] for point in points] for key in ("seconds", "step"))
        assert seconds == sorted(seconds)
        assert steps == sorted(set(steps))
        assert seconds[0] >= 0.2 or len(points) == 1  # one, where all steps that fit were done before that
        assert all(0 <= point["accuracy"] <= 100 for point in points)
        assert heard.count(f"accuracy of {name}") == len(points)
    picture = plot_curves(curves, tmp_path / "curves.png", quoted={"quoted": (0.6, 52.0)})
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["bench.json", "peers.json", "accuracy.json"])
def test_the_page_shows_the_tables_of_the_kept_results_verbatim(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept = DOCS / "results" / name
    if not kept.exists():
        pytest.skip(f"results/{name} is not kept yet")
    main(["--show", str(kept), "--markdown"])
    shown, page = capsys.readouterr().out, (DOCS / "docs" / "performance.md").read_text()
    assert " ".join(shown.split()) in " ".join(page.split())  # but for where lines of text end
