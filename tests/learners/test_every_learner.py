"""Every learner from end to end: trained, saved, loaded, resumed, compared, listed; and one of the user's own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from scipy.stats import ttest_rel

import metavrf
from metavrf.cli import main
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.testing.published import PUBLISHED, TRANSDUCTIVE, published
from pictures_on_disk import write_folder
from processes import assert_same_run, broken_and_resumed

OF_CLASSES = [name for name in LEARNERS if "classification" in LEARNERS[name].solves]
each_name = pytest.mark.parametrize("name", OF_CLASSES)
TINY: dict[str, Any] = {
    "embedding": "conv4",
    "image_size": 12,
    "grey": True,
    "channels": 8,
    "way": 3,
    "shot": 1,
    "query": 3,
    "test_query": 3,
    "validate_tasks": 10,
    "augment": "none",
    "quiet": True,
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_CACHE", str(place / "cache"))
        yield write_folder(place / "pictures")


def few_bases(name: str) -> dict[str, Any]:
    return {"bases": 32} if hasattr(LEARNERS[name].Settings, "bases") else {}


def options(name: str) -> dict[str, Any]:
    ways = {"train_way": 5} if LEARNERS[name].any_way else {}
    return TINY | {"learner": name, "batch": 2} | few_bases(name) | ways


@each_name
def test_a_learner_is_trained_saved_resumed_to_the_bit_and_loaded(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(name) | {"iterations": 5, "validate_every": 2}
    metavrf.train(str(folder), out=tmp_path / "whole", **chosen)
    broken = tmp_path / "broken"
    broken_and_resumed(  # a step after a checkpoint
        lambda: metavrf.train(str(folder), out=broken, **chosen), broken, 3, monkeypatch
    )
    assert_same_run(tmp_path / "whole", broken)
    first, again = (metavrf.evaluate(tmp_path / "whole", tasks=8) for _ in range(2))
    assert torch.equal(first.per_task, again.per_task)
    assert first.protocol == "inductive"
    transductive = metavrf.evaluate(tmp_path / "whole", tasks=8, protocol="transductive")
    assert (transductive.protocol, transductive.nll != first.nll) == ("transductive", True)


@each_name
def test_training_teaches_classes_it_is_not_trained_on(name: str, folder: Path, tmp_path: Path) -> None:
    steps, rate = (400, 3e-3) if name in ("snail", "gnn") else (60, 1e-2)  # they must learn to compare at all
    chosen = options(name) | {
        "iterations": steps,
        "validate_every": steps // 2,
        "validate_tasks": 60,
        "lr": rate,
        "batch": 4,
    }
    run = metavrf.train(str(folder), out=tmp_path / "run", **chosen)
    accuracies = [record["val_accuracy"] for record in run.metrics()]
    assert accuracies[-1] > 40  # chance is 33 ± 1.5, and VERSA is slow to leave it


@pytest.mark.parametrize("name", list(LEARNERS))
def test_a_learner_says_what_it_is(name: str) -> None:
    cls = LEARNERS[name]
    assert isinstance(cls.transductive, bool)
    assert cls.citation
    assert set(cls.solves) <= {"regression", "classification"}


@pytest.mark.parametrize("name", [name for name in LEARNERS if "regression" not in LEARNERS[name].solves])
def test_a_learner_of_classes_refuses_functions(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^the learner {name} is for classification, and these tasks are regression$"):
        metavrf.train("sine", learner=name, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [name for name in LEARNERS if "regression" in LEARNERS[name].solves])
def test_a_learner_of_functions_is_compared_on_the_same_curves(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"iterations": 4, "validate_every": 4, "validate_tasks": 10, "quiet": True}
    metavrf.train("sine", learner=name, out=tmp_path / "run", **small | few_bases(name))
    result = metavrf.evaluate(tmp_path / "run", tasks=10)
    assert result.metric == "mse"
    assert result.coverage90 is not None
    assert result.mean > 0


def test_an_unknown_learner_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "sine", "--learner", "svm", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("metavrf: there is no learner 'svm': choose from metavrf, shared, rff, rbf, maml, ")
    assert len(sentence.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_running_statistics_are_refused_where_the_embedding_adapts(folder: Path, tmp_path: Path) -> None:
    metavrf.train(str(folder), out=tmp_path / "run", iterations=1, validate_every=1, **options("maml"))
    with pytest.raises(UserError, match="normalised by the task's own support"):
        metavrf.evaluate(tmp_path / "run", tasks=2, statistics="running")
    assert metavrf.evaluate(tmp_path / "run", tasks=2).statistics == "support"
    with pytest.raises(UserError, match="answers 3 classes"):
        metavrf.evaluate(tmp_path / "run", tasks=2, way=2)


# Presets


@each_name
@pytest.mark.parametrize("task", ["omniglot", "cifar-fs", "mini-imagenet"])
@pytest.mark.parametrize("kind", ["default", "paper"])
def test_every_preset_is_sound(name: str, task: str, kind: str) -> None:
    config = Config.of(task, name, kind).validate()
    assert config.learner == name
    assert config.episode.train_way == 0 or LEARNERS[name].any_way


# What a paper's training is too large for a test by; all else of its preset stays.
SMALL: dict[str, Any] = {"grey": True, "way": 3, "shot": 1, "query": 1, "test_query": 2, "batch": 2}
SMALL |= {"iterations": 1, "validate_every": 1, "validate_tasks": 2}
MOST_CLASSES, MOST_SHOTS = 8, 3


@each_name
@pytest.mark.parametrize("task", ["omniglot", "cifar-fs", "mini-imagenet"])
def test_the_papers_preset_of_pictures_takes_a_training_step(
    name: str, task: str, folder: Path, tmp_path: Path
) -> None:
    paper = Config.of(task, name, "paper")
    shape = paper.episode
    fewer = {"train_way": min(shape.train_way, MOST_CLASSES), "most_shot": min(shape.most_shot, MOST_SHOTS)}
    side = {"image_size": 32 if paper.embedding.embedding == "conv5" else 16}  # which is pooled five or four times
    config = replace(paper.with_options(**SMALL | fewer | side), task=str(folder))
    run = metavrf.train(config, out=tmp_path / "run", quiet=True)
    saved = run.config()
    assert (saved.model, saved.embedding) == (paper.model, paper.embedding)
    assert (saved.training.lr, saved.training.optimizer, saved.training.clip, saved.training.schedule) == (
        paper.training.lr,
        paper.training.optimizer,
        paper.training.clip,
        paper.training.schedule,
    )
    (record,) = run.metrics()
    assert math.isfinite(record["loss"])
    assert (run.result() or {})["steps"] == 1


@pytest.mark.parametrize("name", [name for name in LEARNERS if "regression" in LEARNERS[name].solves])
def test_the_papers_preset_of_functions_takes_a_training_step(name: str, tmp_path: Path) -> None:
    paper = Config.of("sine", name, "paper")
    run = metavrf.train(paper.with_options(iterations=1, batch=2, validate_tasks=2), out=tmp_path / "run", quiet=True)
    assert (run.config().model, run.config().embedding) == (paper.model, paper.embedding)
    (record,) = run.metrics()
    assert math.isfinite(record["loss"])
    assert record["val_mse"] > 0


def test_presets_hold_what_the_papers_say() -> None:
    maml = Config.of("omniglot", "maml", "paper")
    assert (maml.model.inner_lr, maml.model.inner_steps, maml.model.test_inner_steps) == (0.4, 1, 3)
    assert (maml.episode.batch, maml.training.iterations, maml.embedding.channels) == (32, 60_000, 64)
    assert Config.of("mini-imagenet", "maml", "paper").embedding.channels == 32
    assert Config.of("sine", "maml", "paper").model.inner_lr == 0.01
    assert Config.of("omniglot", "prototypical", "paper").episode.train_way == 60
    assert Config.of("omniglot", "r2d2", "paper").model.ridge == 50
    assert Config.of("omniglot", "versa", "paper").model.samples == 10
    assert Config.of("omniglot", "rff", "paper").model.bases == 2048
    gnn = Config.of("omniglot", "gnn", "paper")
    assert (gnn.episode.batch, gnn.training.iterations, gnn.training.weight_decay) == (300, 100_000, 0.0)
    assert Config.of("mini-imagenet", "gnn", "paper").training.weight_decay == 1e-6
    tadam = Config.of("mini-imagenet", "tadam", "paper")
    assert (tadam.episode.batch, tadam.episode.query, tadam.training.clip) == (5, 2, 1.0)
    assert (tadam.training.optimizer, tadam.embedding.embedding, tadam.embedding.dropout) == ("sgd", "resnet12", 0.0)
    leo = Config.of("own.safetensors", "leo", "paper")
    assert (leo.model.kl_weight, leo.model.orthogonal_weight, leo.training.clip) == (0.756, 0.188, 0.1)
    imp = Config.of("mini-imagenet", "imp", "paper").model
    assert (imp.variance, imp.concentration) == (15.0, 1e-5)
    assert Config.of("omniglot", "imp", "paper").training.iterations == 20_000
    r2d2 = Config.of("cifar-fs", "r2d2", "paper")
    assert (r2d2.episode.train_shot, r2d2.episode.most_shot, r2d2.episode.query, r2d2.model.gamma) == (1, 9, 7, 10.0)
    assert Config.of("omniglot", "relation", "paper").training.clip == 0.5
    classifier = Config.of("mini-imagenet", "classifier", "paper").episode
    assert classifier.train_way * (classifier.train_shot + classifier.query) == 16
    assert Config.of("omniglot", "maml", "paper").episode.query == 1
    assert Config.of("sine", "cavia", "paper").episode.query == 10


# Comparison


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    for name in ("prototypical", "maml"):
        metavrf.train(str(folder), out=place / name, iterations=2, validate_every=2, **options(name))
    return [place / "prototypical", place / "maml"]


def test_a_comparison_is_a_paired_t_test_and_says_time_and_size(runs: list[Path]) -> None:
    first, second = metavrf.compare(runs, tasks=30)
    expected = ttest_rel(second.evaluation.per_task.double().numpy(), first.evaluation.per_task.double().numpy())
    assert second.difference.p_value == pytest.approx(float(expected.pvalue))
    low, high = expected.confidence_interval(0.95)
    assert second.difference.mean - second.difference.ci95 == pytest.approx(float(low))
    assert second.difference.mean + second.difference.ci95 == pytest.approx(float(high))
    assert first.difference.p_value is None
    assert first.facts is not None
    assert second.facts is not None
    assert first.facts.adapt_ms > 0
    assert second.facts.parameters == sum(p.numel() for p in metavrf.load(runs[1]).learner.parameters())
    assert second.facts.learner == "maml"
    assert first.facts.train_cpu_seconds is not None


def test_a_comparison_is_printed_as_markdown_drawn_and_saved(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart, saved = tmp_path / "chart.png", tmp_path / "saved.json"
    arguments = ["compare", *map(str, runs), "--episodes", "10", "--markdown"]
    main([*arguments, "--chart", str(chart), "--save", str(saved)])
    lines = capsys.readouterr().out.splitlines()
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert header[:4] == ["", "accuracy (%)", "difference to the first", "p"]
    assert {"nll", "calibration error", "ms per task", "parameters"} <= set(header)
    assert "paper" not in header  # nothing is published on these pictures
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[-1] == "10 test tasks, 3 ways, 1 shots, inductive."
    with Image.open(chart) as picture:
        assert picture.width > 500
    rows = json.loads(saved.read_text())["rows"]
    assert [row["learner"] for row in rows] == ["prototypical", "maml"]
    assert {"p_value", "mean", "ci95"} == rows[1]["difference"].keys()


def test_published_figures_stand_beside_ours_and_say_their_protocol() -> None:
    assert published(Config.of("omniglot", "prototypical"), 5, 1) == "98.5"
    assert published(Config.of("omniglot", "maml"), 5, 1) == "98.7†"
    assert published(Config.of("omniglot").with_options(context="bilstm"), 20, 5) == "99.2†"
    assert published(Config.of("omniglot"), 7, 1) == published(Config.of("sine"), None, 5) == ""
    known = {name.split()[0] for figures in PUBLISHED.values() for name in figures}
    assert known | TRANSDUCTIVE <= set(LEARNERS)


def test_learners_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["learners"])
    text = capsys.readouterr().out
    main(["learners", "--json"])
    listed = json.loads(capsys.readouterr().out)["learners"]
    assert [entry["name"] for entry in listed] == list(LEARNERS)
    for entry in listed:
        assert f"{entry['name']}: {entry['what']}" in text
        assert entry["citation"] in text


def test_the_help_says_what_lists_every_learner(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "'metavrf learners' lists them" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    main(["learners"])
    assert {f"{name}:" for name in LEARNERS} <= set(capsys.readouterr().out.split())


# One's own


def documented() -> str:
    """The example of docs/extending.md."""
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    return next(block.split("```")[0] for block in text.split("```python\n")[1:] if "register_learner" in block)


def test_a_learner_of_ones_own_takes_under_forty_lines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = documented()
    assert len(code.splitlines()) < 40
    plugin = tmp_path / "own.py"
    plugin.write_text(code)
    small = ["--embedding", "conv4", "--image-size", "12", "--channels", "8", "--way", "3", "--query", "3"]
    small += ["--test-query", "3", "--validate-tasks", "10", "--iterations", "3", "--validate-every", "3"]
    out = tmp_path / "run"
    main(["train", str(folder), "--learner", "nearest", "--plugin", str(plugin), *small, "--quiet", "--out", str(out)])
    main(["compare", str(out), "--plugin", str(plugin), "--episodes", "10", "--json"])
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["learner"] == "nearest"
    assert row["mean"] > 40  # chance is 33
    main(["learners", "--plugin", str(plugin)])
    assert "nearest: The class of the nearest support sample." in capsys.readouterr().out


def test_a_name_that_is_taken_is_refused() -> None:
    class Other(metavrf.RFF):
        pass

    with pytest.raises(UserError, match="there is a learner 'rff' already"):
        metavrf.register_learner("rff")(Other)
