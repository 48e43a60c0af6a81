"""The commands on pictures, as a user types them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import metavrf
from glyphs import write_glyph_folder, write_glyph_table
from metavrf.cli import main
from metavrf.files import read_tensors
from metavrf.runs.directory import Run
from shell import PNG, printed_json
from shell import refused as refused_command

OPTIONS = shlex.split(
    "--way 3 --shot 1 --query 3 --test-query 3 --batch 2 --train-way 4 --image-size 16 --grey --channels 8 --bases 32 "
    "--embedding conv4 --context none --iterations 12 --validate-every 6 --validate-tasks 20 --threads 1 --quiet"
)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of glyphs, and a cache for this module."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_CACHE", str(place / "cache"))
        write_glyph_folder(place / "pictures", range(16), drawers=8)
        yield place


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    main(["train", str(place / "pictures"), *OPTIONS, "--out", str(place / "run")])
    return place / "run"


def test_evaluate_prints_the_promised_fields(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = printed_json(capsys, "evaluate", run, "--episodes", 30, "--way", 2, "--shot", 2, "--query", 4, "--json")
    assert value["metric"] == "accuracy"
    assert 0 <= value["mean"] <= 100
    assert [value[name] for name in ("tasks", "way", "shot", "query")] == [30, 2, 2, 4]
    assert {"ci95", "nll", "ece", "split", "protocol", "seed", "data_sha256", "seconds"} <= value.keys()
    assert "coverage90" not in value


def test_both_protocols_stand_side_by_side(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = printed_json(capsys, "evaluate", run, "--episodes", 10, "--protocol", "both", "--json")
    assert [value[name]["protocol"] for name in ("inductive", "transductive")] == ["inductive", "transductive"]
    assert value["inductive"]["data_sha256"] == value["transductive"]["data_sha256"]
    main(["evaluate", str(run), "--episodes", "10", "--protocol", "both"])
    printed = capsys.readouterr().out
    assert f"{value['inductive']['mean']:.4g}" in printed
    assert f"{value['transductive']['mean']:.4g}" in printed


def test_pictures_can_be_seen_from_several_views_and_the_result_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, seen = (
        printed_json(capsys, "evaluate", run, "--episodes", 10, *more, "--json") for more in ((), ("--views", "shift"))
    )
    assert "views" not in plain
    assert (seen["views"], seen["protocol"]) == ("shift", "inductive")
    assert seen["nll"] != plain["nll"]
    assert seen["data_sha256"] == plain["data_sha256"]


def test_validation_classes_can_be_tested_on_and_the_result_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test, validation = (
        printed_json(capsys, "evaluate", run, "--episodes", 10, "--part", part, "--json") for part in ("test", "val")
    )
    assert "part" not in test
    assert validation["part"] == "val"
    assert validation["data_sha256"] != test["data_sha256"]


def test_compare_pairs_runs_and_protocols(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed_json(capsys, "compare", run, run, "--episodes", 10, "--protocol", "both", "--json")["rows"]
    assert [row["protocol"] for row in rows] == ["inductive", "inductive", "transductive", "transductive"]
    assert rows[1]["difference"] == {"mean": 0.0, "ci95": 0.0, "p_value": None}
    assert rows[2]["difference"]["mean"] == pytest.approx(rows[2]["mean"] - rows[0]["mean"])
    main(["compare", str(run), str(run), "--episodes", "10"])
    assert "accuracy (%)" in capsys.readouterr().out


def test_saved_figures_say_how_the_run_was_trained(run: Path, tmp_path: Path) -> None:
    main(["evaluate", str(run), "--episodes", "5", "--save", str(tmp_path / "figures.json")])
    saved = json.loads((tmp_path / "figures.json").read_text())
    assert saved["trainings"][str(run)] == Run.open(run).result()
    assert saved["provenance"]["seed"] == saved["seed"] == 2020


def test_a_task_is_drawn(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--episodes", "5", "--plot", str(tmp_path / "task.png")])
    assert (tmp_path / "task.png").read_bytes().startswith(PNG)
    assert [file.name for file in tmp_path.iterdir()] == ["task.png"]


def test_a_table_is_embedded_by_a_run_trained_on_and_not_drawn(
    run: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, features = (
        write_glyph_table(tmp_path / "table.parquet", range(20, 36), drawers=8),
        tmp_path / "f.safetensors",
    )
    main(["embed", str(table), "--by", str(run), "--image-size", "16", "--grey", "--out", str(features)])
    assert "128 samples, 8 features" in capsys.readouterr().out
    options = [o for o in OPTIONS if o not in ("--grey", "--embedding", "conv4")]
    main(["train", str(features), *options, "--train-way", "3", "--out", str(tmp_path / "run")])
    value = printed_json(capsys, "evaluate", tmp_path / "run", "--way", 2, "--episodes", 10, "--json")
    assert value["metric"] == "accuracy"
    sentence = refused_command(
        capsys, "evaluate", tmp_path / "run", "--way", 2, "--episodes", 5, "--plot", tmp_path / "x.png"
    )
    assert "only tasks of pictures can be drawn" in sentence


def test_data_lists_every_set_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("METAVRF_DATA", raising=False)
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path))
    sets = printed_json(capsys, "data", "--json")["sets"]
    assert [entry["name"] for entry in sets] == ["omniglot", "cifar-fs", "fc100", "mini-imagenet", "mixed-images"]
    assert not any(entry["complete"] for entry in sets)
    main(["data"])
    printed = capsys.readouterr().out
    assert printed.count("missing") == sum(len(entry["files"]) for entry in sets)
    assert all(entry["licence"] in printed and entry["citation"] in printed for entry in sets)
    assert "no data set 'imagenet'" in refused_command(capsys, "data", "--fetch", "imagenet")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--way", "40"], "way=40 exceeds the 3 classes"),
        (["--shot", "7"], "need 10 samples per class"),
        (["--embedding", "conv5", "--image-size", "16"], "too small for 5 blocks"),
        (["--context", "bayes"], "it needs --components of 2 or more"),
        (["--dropout", "1"], "must be less than 1"),
    ],
)
def test_impossible_trainings_are_one_sentence_and_leave_nothing(
    options: list[str], message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert message in refused_command(capsys, "train", place / "pictures", *OPTIONS, *options, "--out", out)
    assert not out.exists()


# Packing


@pytest.fixture(scope="module")
def packed(run: Path, place: Path) -> Path:
    options = shlex.split("--ways 2 3 --shots 1 --transductive-ways 3 --episodes 20 --transductive-episodes 10")
    options += shlex.split("--views one flip")
    main(["pack", str(run), "--out", str(place / "packed"), *options])
    return place / "packed"


def test_a_packed_model_is_half_the_size_and_answers_alike(run: Path, packed: Path) -> None:
    tensors, _ = read_tensors(packed / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float16}
    assert (packed / "model.safetensors").stat().st_size < (run / "model.safetensors").stat().st_size
    assert not (packed / "state.safetensors").exists()
    whole, half = (metavrf.evaluate(path, tasks=50) for path in (run, packed))
    assert half.mean == pytest.approx(whole.mean, abs=1)
    assert half.nll == pytest.approx(whole.nll, abs=0.01)


def test_a_model_is_calibrated_anew_where_asked_for_and_gets_a_new_card(packed: Path, tmp_path: Path) -> None:
    options = shlex.split("--ways 3 --shots 1 --transductive-ways --episodes 20 --calibrate")
    again = tmp_path / "calibrated"
    main(["pack", str(packed), "--out", str(again), *options])
    before, after = (metavrf.load(path).learner for path in (packed, again))
    torch.testing.assert_close(after.temperature, before.temperature, rtol=0.05, atol=0)  # weights are rounded
    assert len(json.loads((again / "card.json").read_text())["tests"]) == 1


def test_functions_are_not_calibrated_by_shots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused_command(capsys, "pack", "sine", "--out", tmp_path / "packed", "--calibrate")
    assert "calibrate is for models of classes" in sentence
    assert not (tmp_path / "packed").exists()


def test_a_card_says_what_evaluate_says(packed: Path) -> None:
    card = json.loads((packed / "card.json").read_text())
    assert [(test["way"], test["protocol"]) for test in card["tests"]] == [
        (2, "inductive"),
        (3, "inductive"),
        (2, "inductive"),
        (3, "inductive"),
        (3, "transductive"),
    ]
    assert [test.get("views") for test in card["tests"]] == [None, None, "flip", "flip", None]
    text = (packed / "README.md").read_text()
    for test in card["tests"]:
        again = metavrf.evaluate(
            packed,
            tasks=test["tasks"],
            way=test["way"],
            shot=test["shot"],
            protocol=test["protocol"],
            views=test.get("views", "one"),
        )
        assert again.mean == pytest.approx(test["mean"])
        assert f"{again.mean:.2f} ± {again.ci95:.2f}" in text
    assert "inductive, views flip" in text
    assert "metavrf train" in text or "pytest" in text  # the command that made it


def test_unfinished_runs_are_not_packed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.toml", "data.json", "model.safetensors"):
        (unfinished / name).write_bytes((run / name).read_bytes())
    sentence = refused_command(capsys, "pack", unfinished, "--out", tmp_path / "packed")
    assert "not a finished run" in sentence
    assert not (tmp_path / "packed").exists()


def test_a_shipped_model_is_known_by_its_name_unless_a_run_has_it(
    packed: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metavrf.runs.directory.SHIPPED", place)
    monkeypatch.chdir(tmp_path)
    assert Run.open("packed").path == packed
    assert torch.equal(metavrf.load("packed").learner.temperature, metavrf.load(packed).learner.temperature)
    Run.create("packed", Run.open("packed").config(), Run.open("packed").spec())
    assert Run.open("packed").path == Path("packed")
