from __future__ import annotations

import json
from pathlib import Path

import pytest

from glyphs import refused
from metavrf.memory import allocator_variables
from speed.measure import DEFAULT, EMBEDDING, OURS, STEP, aims, variables
from speed.results import Aim, Results, Row, Section, lead_aims, quartiles
from speed.work import Work

SLOW = [2.0, 4.0, 20.0]  # the machine was busy in the last round
FAST = [1.0, 2.0, 10.0]


def section(**options: object) -> Section:
    rows = [Row("slow", SLOW), Row("fast", FAST, "a note")]
    return Section("times", "Times", "ms", rows, "slow", **options)  # type: ignore[arg-type]


def test_ratios_are_taken_within_rounds_so_that_noise_cancels() -> None:
    assert section().ratio("fast") == (0.5, 0.5, 0.5)
    assert section(speed_up=True).ratio("fast") == (2.0, 2.0, 2.0)
    assert section().ratio("slow", "fast") == (2.0, 2.0, 2.0)


def test_a_row_may_be_set_beside_another_than_the_section_says() -> None:
    rows = [Row("slow", SLOW), Row("fast", FAST), Row("twice", [4.0, 8.0, 40.0], reference="fast")]
    times = Section("times", "Times", "ms", rows, "slow")
    assert times.ratio("twice") == (4.0, 4.0, 4.0)
    assert times.ratio("twice", "slow") == (2.0, 2.0, 2.0)
    assert [line[-1] for line in times.table()[2]] == [
        f"{ratio} ({ratio} to {ratio})" for ratio in ("1.00", "0.50", "4.00")
    ]
    assert Results.from_dict(Results([times]).to_dict()) == Results([times])


def test_quartiles_of_one_round_are_that_round() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_a_table_shows_median_spread_and_ratio() -> None:
    title, header, lines = section(speed_up=True).table()
    assert title == "Times"
    assert header == ["", "ms", "quartiles", "times as fast", ""]
    assert lines[1] == ["fast", "2", "1.5 to 6", "2.00 (2.00 to 2.00)", "a note"]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = Results(
        [section()],
        [Aim("speed", 3.0, 2.0)],
        {"threads": 2},
        ["that, for a reason"],
        {"maml": [{"seconds": 1.0, "step": 3, "accuracy": 20.0}]},
    )
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(results.to_dict()))
    assert Results.read(path) == results
    saved = json.loads(path.read_text())["sections"][0]["rows"][1]
    assert saved["quartiles"] == [1.5, 2.0, 6.0]
    assert saved["ratio_quartiles"] == [0.5, 0.5, 0.5]
    assert "Not measured: that, for a reason" in results.remarks()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sections": [{}], "aims": []}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with refused("other.json", "is not what 'benchmarks/bench.py --save' writes"):
        Results.read(tmp_path / "other.json")
    with refused("missing.json", "No such file"):
        Results.read(tmp_path / "missing.json")


def test_an_aim_says_by_how_much_it_was_missed() -> None:
    results = Results([], [Aim("time", 3.0, 2.0), Aim("speed", 3.0, 6.0, at_least=True), Aim("other", 1.0, 1.0)])
    (table,) = results.tables()
    assert [line[-1] for line in table[2]] == ["missed by a factor of 1.50", "missed by a factor of 2.00", "met"]


def test_the_aims_are_those_of_what_was_measured() -> None:
    step = Section("step", "", "ms", [Row(STEP, [3.0, 6.0]), Row(EMBEDDING, [2.0, 4.0])], STEP)
    rows = [Row(EMBEDDING, [2.0, 4.0]), Row("other", [4.0, 8.0]), Row("best", [1.0, 2.0])]
    found = aims([step, Section("embedding", "", "ms", rows, EMBEDDING)], Work())
    assert [(aim.measured, aim.aim, aim.met) for aim in found] == [(1.5, 1.1, False), (2.0, 1.1, False)]
    assert "best" in found[1].what
    evaluation = Section("evaluation", "", "s", [Row("ours", [10.0])])
    assert [aim.met for aim in aims([evaluation], Work())] == [True, True]  # 300 a second against 17


def test_the_first_learner_is_to_lead_at_every_point() -> None:
    def curve(*values: float) -> list[dict[str, float]]:
        return [{"seconds": 30.0 * at, "step": at, "accuracy": value} for at, value in enumerate(values)]

    found = lead_aims({"metavrf": curve(50, 60, 90), "maml": curve(20, 62, 70), "prototypical": curve(40, 60)})
    assert [(aim.measured, aim.met) for aim in found] == [(-2, False), (0, True)]
    (table,) = Results([], found).tables()
    assert table[2][0][-1] == "missed by 2"


def test_workers_differ_in_the_allocator_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    monkeypatch.setenv("METAVRF_ALLOCATOR", "default")
    ours, default = variables(OURS), variables(DEFAULT, threads=1)
    assert "METAVRF_ALLOCATOR" not in ours
    assert set(default.items()) - set(ours.items()) >= {("METAVRF_ALLOCATOR", "default")}
    assert not any(name.startswith("MALLOC_") for name in (ours | default))
    assert default["OMP_NUM_THREADS"] == "1"


def test_the_allocator_settings_have_the_names_glibc_reads() -> None:
    assert allocator_variables() == {
        "MALLOC_MMAP_THRESHOLD_": str(112 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
        "MALLOC_TOP_PAD_": str(2**28),
    }
