from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import metavrf
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import load_weights, read_tensors, write_atomically, write_tensors
from metavrf.runs.directory import Run
from metavrf.runs.training import train
from metavrf.spec import TaskSpec
from processes import DOCUMENTED, TIMES, TINY, TINY_OPTIONS, DiskOf, run, snapshot, without

SOURCES = Path(metavrf.__file__).parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    metavrf.train("sine", out=path, quiet=True, **TINY_OPTIONS | {"context": "lstm"})
    return path


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A run to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def tasks(count: int = 6) -> Episodes:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 25, 1, generator=generator) * 10 - 5
    return Episodes(x[:, :5], x[:, :5].sin(), x[:, 5:], x[:, 5:].sin())


def refused(action: Callable[[], object], path: Path) -> str:
    """The one sentence of a failure that leaves every file as it was."""
    before = snapshot(path)
    with pytest.raises(UserError) as failure:
        action()
    assert snapshot(path) == before
    sentence = str(failure.value)
    assert "\n" not in sentence
    return sentence


# Writing


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "a long first version")
    write_atomically(tmp_path / "file", b"new")
    assert snapshot(tmp_path) == {"file": b"new"}


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; what was there before is unharmed"):
        write_atomically(tmp_path / "file", "new")
    assert snapshot(tmp_path) == {"file": b"old"}


def test_a_full_disk_at_the_first_checkpoint_is_one_sentence_and_leaves_no_half_file(tmp_path: Path) -> None:
    done = run(
        ["train", "sine", "--out", str(tmp_path / "run"), *TINY, "--quiet"], tmp_path / "log", before=DiskOf(50_000)
    )
    assert done.code == 2
    assert done.err.startswith(f"metavrf: cannot write {tmp_path}/run/model.safetensors: File too large")
    assert done.err.count("\n") == 1
    assert snapshot(tmp_path / "run") == {}  # so that a second try can start anew


def test_a_full_disk_while_resuming_leaves_the_old_model_and_checkpoint(tmp_path: Path) -> None:
    out, longer = tmp_path / "run", ["--iterations", "200"]
    metavrf.train("sine", out=out, quiet=True, **TINY_OPTIONS)
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("iterations = 60", f"iterations = {longer[1]}"))
    (out / "manifest.json").unlink()  # which says that it was changed by hand
    before = snapshot(out)
    done = run(["train", "--resume", "--out", str(out), "--quiet"], tmp_path / "log", before=DiskOf(50_000))
    assert done.code == 2
    assert "unharmed" in done.err
    after = snapshot(out)
    for name in ("config.toml", "model.safetensors", "state.safetensors", "result.json"):
        assert after[name] == before[name]
    assert after.keys() == before.keys()
    assert run(["train", "--resume", "--out", str(out), "--quiet"], tmp_path / "log").code == 0
    assert Run(out).metrics()[-1]["step"] == 200


@pytest.mark.parametrize("place", ["file/sub", "/proc/metavrf-test"])
def test_a_place_that_cannot_be_written_is_one_sentence(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    sentence = refused(lambda: metavrf.train("sine", out=tmp_path / place, quiet=True), tmp_path)
    assert sentence.startswith(f"cannot make the run directory {tmp_path / place}: ")
    assert sentence.endswith("choose another --out")


def test_a_directory_that_holds_a_run_is_refused(copied: Path) -> None:
    sentence = refused(lambda: metavrf.train("sine", out=copied, quiet=True), copied)
    assert sentence == f"{copied} holds a run already: continue it with --resume, or choose another --out"


def test_a_new_run_does_not_start_from_a_checkpoint_left_by_another(copied: Path, tmp_path: Path) -> None:
    (copied / "config.toml").unlink()
    options = TINY_OPTIONS | {"context": "lstm", "seed": 5}
    other = metavrf.train("sine", out=tmp_path / "other", quiet=True, **options)
    try:
        metavrf.train("sine", out=copied, quiet=True, **options)
    except UserError:
        return  # refusing is as good
    assert [without(r, *TIMES) for r in Run(copied).metrics()] == [without(r, *TIMES) for r in other.metrics()]


# What a run directory holds


def test_a_run_holds_the_documented_files_and_no_other(finished: Path) -> None:
    assert set(snapshot(finished)) == DOCUMENTED


def test_no_file_of_a_run_is_a_pickle_or_an_archive_of_one(finished: Path) -> None:
    for name, data in snapshot(finished).items():
        assert not data.startswith((b"\x80", b"PK")), name
    for name in ("model.safetensors", "state.safetensors"):
        tensors, metadata = read_tensors(finished / name)
        assert metadata["seed"] == 0
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
        assert len(tensors) > 10


def test_the_sources_never_unpickle() -> None:
    forbidden = re.compile(r"torch\.load\b|torch\.save\b|pickle|joblib|\bdill\b|\bshelve\b|\bmarshal\b|allow_pickle")
    texts = {file: file.read_text() for file in SOURCES.rglob("*.py")}
    assert len(texts) > 20
    allowed = {
        "Nothing here is a pickle.",
        "weights_only=True",
        "no pickle is loaded",
        "submitit keeps what it submits",
    }
    found = [
        (file.name, line)
        for file, text in texts.items()
        for line in text.splitlines()
        if forbidden.search(line) and not any(phrase in line for phrase in allowed)
    ]
    assert found == []


def test_the_settings_are_read_back_as_they_were_written(finished: Path) -> None:
    expected = Config.of("sine").with_options(**TINY_OPTIONS | {"context": "lstm"})
    assert Run.open(finished).config() == expected


def test_metrics_leave_out_a_last_line_cut_off_by_a_crash(copied: Path) -> None:
    run = Run(copied)
    run.metrics_file.write_text(run.metrics_file.read_text()[:-30])  # as versions that appended to it left it
    run.seal()
    assert [record["step"] for record in run.metrics()] == [20, 40]


def test_rewinding_drops_records_after_a_step(copied: Path) -> None:
    Run(copied).rewind_metrics(40)
    assert [record["step"] for record in Run(copied).metrics()] == [20, 40]


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00\n", b"5\n", b'{"loss": 1}\n'])
def test_a_damaged_metrics_file_does_not_stop_a_resumed_run(garbage: bytes, copied: Path) -> None:
    Run(copied).metrics_file.write_bytes(garbage)
    try:
        metavrf.train("sine", out=copied, resume=True, quiet=True)
    except UserError as error:
        assert "metrics.jsonl" in str(error)
    else:
        assert json.loads(Run(copied).result_file.read_text())["steps"] == 60


# Loading


def test_a_reloaded_model_predicts_the_same_to_the_bit(tmp_path: Path) -> None:
    config = Config.of("sine", components=1, guards=0, train_kernel="features", context="bilstm", bases=32)
    learner, episodes = config.build(), tasks()
    learner.train()
    learner.remember(learner(episodes, torch.Generator().manual_seed(1)))  # moves the context state
    run = Run.create(tmp_path / "run", config, TaskSpec())
    run.save_model(learner.state_dict(), {})
    reloaded = metavrf.load(run.path)
    assert not reloaded.learner.training
    before, after = learner.predict(episodes), reloaded.predict(episodes)
    assert torch.equal(before.mean, after.mean)
    assert before.std is not None
    assert after.std is not None
    assert torch.equal(before.std, after.std)


def test_two_loads_of_a_trained_run_predict_the_same_to_the_bit(finished: Path) -> None:
    assert torch.equal(metavrf.load(finished).predict(tasks()).mean, metavrf.load(finished).predict(tasks()).mean)


def test_the_context_state_is_saved_and_matters(finished: Path, copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "model.safetensors")
    assert tensors["context.hidden"].abs().max() > 0
    assert tensors["context.cell"].abs().max() > 0
    tensors["context.hidden"], tensors["context.cell"] = (torch.zeros(1, 1, 40) for _ in range(2))
    Run(copied).save_model(tensors, metadata)
    kept, forgotten = metavrf.load(finished).predict(tasks()).mean, metavrf.load(copied).predict(tasks()).mean
    assert (kept - forgotten).abs().max() > 1e-4


def test_the_last_checkpoint_holds_weights_optimiser_and_context_state(finished: Path) -> None:
    tensors, metadata = read_tensors(finished / "state.safetensors")
    assert metadata["step"] == 60
    parameters = len(list(Run(finished).config().build().parameters()))
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        assert sum(name.startswith("optimizer.") and name.endswith(f".{moment}") for name in tensors) == parameters
    assert tensors["optimizer.0.step"].item() == 60
    assert "learner.context.hidden" in tensors


# Damage


def test_a_missing_run_is_one_sentence(tmp_path: Path) -> None:
    sentence = refused(lambda: metavrf.load(tmp_path / "none"), tmp_path)
    assert sentence == f"{tmp_path}/none is not a run: it has no config.toml; give the --out of a 'metavrf train'"


def test_a_run_without_a_model_is_one_sentence(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    sentence = refused(lambda: metavrf.evaluate(copied), copied)
    assert sentence == f"{copied}/model.safetensors is missing, but manifest.json names it: take it from a copy"
    Run(copied).seal()
    sentence = refused(lambda: metavrf.evaluate(copied), copied)
    assert sentence == f"{copied} has no trained model yet: let its training reach a first validation"


@pytest.mark.parametrize("size", [0, 5, 200, 20_000, -1])
def test_a_truncated_model_is_one_sentence(size: int, copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "its SHA-256 sum is not the one in manifest.json" in refused(lambda: metavrf.load(copied), copied)
    Run(copied).seal()
    sentence = refused(lambda: metavrf.load(copied), copied)
    assert sentence.startswith(f"{file} is damaged or not a safetensors file")


@pytest.mark.parametrize("garbage", [b"\x00" * 100, b"\xff" * 1000, b"PK\x03\x04 an archive", b"{}"])
def test_a_model_of_garbage_is_one_sentence(garbage: bytes, copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(garbage)
    Run(copied).seal()
    sentence = refused(lambda: metavrf.load(copied), copied)
    assert sentence.startswith(f"{file} is damaged or not a safetensors file")


def test_a_model_that_is_a_directory_is_one_sentence(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors").mkdir()
    assert "model.safetensors" in refused(lambda: metavrf.load(copied), copied)


def test_a_model_with_other_names_is_one_sentence(copied: Path) -> None:
    save_file({"layer.weight": torch.zeros(3)}, copied / "model.safetensors")
    Run(copied).seal()
    sentence = refused(lambda: metavrf.load(copied), copied)
    assert "model.safetensors was not written by metavrf" in sentence


def test_a_model_with_other_shapes_is_one_sentence_that_names_both(copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "model.safetensors")
    Run(copied).save_model(tensors | {"log_length": torch.zeros(2)}, metadata)
    sentence = refused(lambda: metavrf.load(copied), copied)
    assert sentence.endswith("does not belong to this configuration: 'log_length' is (2,), not ()")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_with_nan_or_infinity_is_one_sentence(value: float, copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "model.safetensors")
    tensors["head.beta"] = torch.tensor(value)
    Run(copied).save_model(tensors, metadata)
    sentence = refused(lambda: metavrf.load(copied), copied)
    assert sentence == f"{copied}/model.safetensors is damaged: 'head.beta' holds NaN or infinity"


def test_weights_that_do_not_fit_leave_the_learner_as_it_was() -> None:
    learner = Config.of("sine").build()
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    with pytest.raises(UserError, match="'log_length' is"):
        load_weights(
            learner, {name: tensor + 1 for name, tensor in before.items()} | {"log_length": torch.ones(4)}, "x"
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('task = "sine"', 'task = "sine'),
        ('task = "sine"', 'task = "sine"\ncolour = "red"'),
        ("shot = 5", "shot = 5\nshoot = 5"),
        ("shot = 5", 'shot = "5"'),
        ("shot = 5", "shot = 5.5"),
        ("shot = 5", "shot = true"),
        ("shot = 5", "shot = 0"),
        ("clip = 1.0", "clip = nan"),
        ('context = "lstm"', 'context = "gru"'),
        ("orthogonal = false", 'orthogonal = "no"'),
        ("tensorboard = false", "tensorboard = 1"),
        ('task = "sine"', "task = 5"),
        ('task = "sine"', 'task = ["sine"]'),
        ('task = "sine"', ""),
        ("seed = 0", "seed = -1"),
        ("[episode]", "[episodes]"),
    ],
)
def test_a_damaged_configuration_is_one_sentence(old: str, new: str, copied: Path) -> None:
    file = copied / "config.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert str(file) in refused(lambda: metavrf.load(copied), copied)
    Run(copied).seal()
    assert str(file) in refused(lambda: metavrf.load(copied), copied)
    assert str(file) in refused(lambda: metavrf.train(out=copied, resume=True, quiet=True), copied)


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00", b"[tool.other]\nname = 1\n"])
def test_a_foreign_configuration_is_one_sentence(garbage: bytes, copied: Path) -> None:
    (copied / "config.toml").write_bytes(garbage)
    assert str(copied / "config.toml") in refused(lambda: metavrf.load(copied), copied)


def resume(path: Path) -> object:
    return train(out=path, resume=True, quiet=True)


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 64, b"no checkpoint"])
def test_a_damaged_checkpoint_is_one_sentence(garbage: bytes, copied: Path) -> None:
    (copied / "state.safetensors").write_bytes(garbage)
    sentence = refused(lambda: resume(copied), copied)
    assert sentence.startswith(f"{copied}/state.safetensors is damaged or not a safetensors file")


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer.0.exp_avg": torch.zeros(7)},
        {"optimizer.0.exp_avg": None},
        {"optimizer.first.exp_avg": torch.zeros(1)},
        {"optimizer.999.exp_avg": torch.zeros(1)},
        {"optimizer.0.exp_avg": torch.full((40, 1), float("nan"))},
        {"rank0.context.hidden": torch.zeros(3)},
        {"learner.log_length": torch.zeros(7)},
        {"learner.log_length": None},
    ],
    ids=lambda change: "-".join(f"{name}={None if v is None else tuple(v.shape)}" for name, v in change.items()),
)
def test_a_checkpoint_of_another_making_is_one_sentence(change: dict[str, torch.Tensor | None], copied: Path) -> None:
    file = copied / "config.toml"
    file.write_text(file.read_text().replace("iterations = 60", "iterations = 80"))
    Run(copied).seal()
    tensors, metadata = read_tensors(copied / "state.safetensors")
    changed = {name: value for name, value in (tensors | change).items() if value is not None}
    write_tensors(copied / "state.safetensors", changed, metadata)
    assert f"{copied}/state.safetensors" in refused(lambda: resume(copied), copied)


@pytest.mark.parametrize("missing", ["step", "best", "best_step", "seconds", "cpu_seconds"])
def test_a_checkpoint_without_its_metadata_is_one_sentence(missing: str, copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "state.safetensors")
    write_tensors(copied / "state.safetensors", tensors, without(metadata, missing))
    sentence = refused(lambda: resume(copied), copied)
    assert sentence == f"{copied}/state.safetensors is not a checkpoint of this version of metavrf ('{missing}')"


def test_a_checkpoint_without_optimiser_state_is_refused(copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "state.safetensors")
    write_tensors(
        copied / "state.safetensors", {n: t for n, t in tensors.items() if not n.startswith("optimizer.")}, metadata
    )
    assert "state.safetensors" in refused(lambda: resume(copied), copied)
