"""Nothing lost or silently wrong in the files we write: sums, kinds, locks, older checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import metavrf
from glyphs import write_glyph_table
from metavrf import MetaVRFClassifier, UserError
from metavrf.errors import Caution
from metavrf.files import (
    beside,
    compared_sum,
    read_summed_json,
    read_tensors,
    sum_file,
    tensors_as_bytes,
    write_summed_json,
    write_tensors,
    write_with_sum,
)
from metavrf.manifest import NAME, Manifest, check, replace_file
from metavrf.runs import training
from metavrf.runs.directory import Run
from metavrf.tasks.images import ParquetSource, Preprocessing, read_bank
from processes import TINY, TINY_OPTIONS, Command, assert_same_run, run, run_ranks, snapshot, wait_for
from shell import refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    metavrf.train("sine", out=path, quiet=True, **TINY_OPTIONS)
    return path


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A run to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def fitted(names: list[str]) -> MetaVRFClassifier:
    x = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
    return MetaVRFClassifier().fit(x, np.repeat(names, 2))


# 1. Sums and kinds


@pytest.mark.parametrize("at", ["support.safetensors", "estimator.json", "manifest.json"])
def test_saving_over_an_older_fit_and_dying_keeps_the_older_names(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(["cat", "dog"]).save(tmp_path / "model")
    replace = Path.replace

    def die(path: Path, target: Path) -> Path:
        if Path(target).name == at:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", die)
        fitted(["oak", "elm"]).save(tmp_path / "model")
    kept = MetaVRFClassifier.load(tmp_path / "model")
    assert kept.predict([[2.0, 2.0]]).item() == "dog"
    fitted(["oak", "elm"]).save(tmp_path / "model")
    assert MetaVRFClassifier.load(tmp_path / "model").predict([[2.0, 2.0]]).item() == "elm"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_files_in_it_is_not_replaced(tmp_path: Path) -> None:
    folder = fitted(["cat", "dog"]).save(tmp_path / "model")
    (folder / "notes.txt").write_text("of the user's")
    with pytest.raises(UserError, match="model is not empty: choose another folder"):
        fitted(["oak", "elm"]).save(folder)
    assert (folder / "notes.txt").read_text() == "of the user's"


def test_files_of_two_fits_do_not_go_together(tmp_path: Path) -> None:
    one, other = fitted(["cat", "dog"]).save(tmp_path / "one"), fitted(["oak", "elm"]).save(tmp_path / "other")
    shutil.copy(other / "estimator.json", one)
    with pytest.raises(UserError, match=r"estimator\.json is damaged or was changed: its SHA-256 sum"):
        metavrf.MetaVRFClassifier.load(one)


@pytest.mark.parametrize(
    "name", ["config.toml", "data.json", "model.safetensors", "metrics.jsonl", "result.json", "manifest.json"]
)
def test_one_changed_byte_of_a_run_is_one_sentence(name: str, copied: Path) -> None:
    whole = (copied / name).read_bytes()
    for place in (9, len(whole) // 2, len(whole) - 9):
        (copied / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError):
            opened = Run.open(copied)
            metavrf.load(copied)
            assert opened.metrics()
            assert opened.result()
        (copied / name).write_bytes(whole)


def test_a_run_without_a_manifest_is_read_unverified_and_has_one_once_it_goes_on(copied: Path) -> None:
    (copied / NAME).unlink()
    text = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(text.replace("iterations = 60", "iterations = 80"))
    metavrf.load(copied)
    metavrf.train(out=copied, resume=True, quiet=True)
    manifest = Manifest.of(copied)
    assert manifest is not None
    assert manifest.kind == "run"
    known = {"config.toml", "data.json", "model.safetensors", "metrics.jsonl", "result.json", "state.safetensors"}
    assert set(manifest.files) == known
    assert all(len(sums) == 1 for sums in manifest.files.values())
    assert Run(copied).step() == 80


def test_a_file_is_announced_before_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    replace_file(file, "old", "run", [])
    assert check(file).read_text() == "old"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("metavrf.manifest.write_atomically", die)
        replace_file(file, "new", "run", [])
    assert check(file).read_text() == "old"  # announced, not written
    replace_file(file, "new", "run", [])
    assert check(file).read_text() == "new"
    file.write_text("other")
    with pytest.raises(UserError, match="SHA-256"):
        check(file)


def test_weights_of_whole_numbers_are_refused(copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel() > 1)
    Run(copied).save_model(tensors | {name: tensors[name].to(torch.int32)}, metadata)
    with pytest.raises(UserError, match=r"is damaged: .* is torch.int32, not torch.float32"):
        metavrf.load(copied)


def test_a_safetensors_file_carries_its_sum(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0), "b": torch.tensor(True)}
    write_tensors(tmp_path / "x.safetensors", tensors, {"names": ["one"]})
    again, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"names": ["one"]}
    assert torch.equal(again["a"], tensors["a"])
    data = tensors_as_bytes(tensors, {"names": ["one"]})
    for place in (-3, data.index(b"names") + 12):
        changed = bytearray(data)
        changed[place] ^= 2
        (tmp_path / "x.safetensors").write_bytes(changed)
        with pytest.raises(UserError):
            read_tensors(tmp_path / "x.safetensors")


def test_a_changed_pixel_of_a_cached_bank_is_made_anew_and_sound_ones_are_summed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ParquetSource([write_glyph_table(tmp_path / "a.parquet", range(3))])
    how, cache = Preprocessing(8, channels=1), tmp_path / "cache"
    fresh = read_bank(source, how, cache)[0].inputs[:].clone()
    (file,) = (cache / "banks").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-40] ^= 255
    file.write_bytes(data)
    assert torch.equal(read_bank(source, how, cache)[0].inputs[:], fresh)
    read_bank(source, how, cache)
    monkeypatch.setattr("metavrf.files._sum", lambda *_: pytest.fail("summed twice"))
    assert torch.equal(read_bank(source, how, cache)[0].inputs[:], fresh)


def test_a_test_on_other_data_of_the_same_classes_says_so() -> None:
    spec = metavrf.TaskSpec((1, 8, 8), None, "given", "a" * 64, classes={"train": ["x"], "val": ["y"], "test": ["z"]})
    other = metavrf.TaskSpec((1, 8, 8), None, "given", "b" * 64, classes=spec.classes)
    with pytest.warns(Caution, match="the data of glyphs is not the data the run was trained on"):
        other.check_same(spec, "glyphs")


def test_a_killed_move_into_an_empty_folder_is_not_taken_for_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    replace = Path.replace

    def die(path: Path, target: Path) -> Path:
        if Path(target) == tmp_path / "model" / "support.safetensors":
            os._exit(9)
        return replace(path, target)

    child = os.fork()
    if child == 0:
        Path.replace = die  # type: ignore[method-assign,assignment]
        fitted(["cat", "dog"]).save(tmp_path / "model")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(UserError):
        MetaVRFClassifier.load(tmp_path / "model")


def test_two_writers_of_one_folder_do_not_share_a_temporary_one(tmp_path: Path) -> None:
    with beside(tmp_path / "a") as one, beside(tmp_path / "a") as other:
        assert one != other
        (one / "x").write_text("1")


# 2. Resuming what is no run


def test_a_packed_model_is_not_resumed(tmp_path: Path) -> None:
    folder = metavrf.save_pretrained("sine", tmp_path / "packed")
    before = snapshot(folder)
    done = run(["train", "--resume", "--out", str(folder), "--quiet"], tmp_path / "log")
    assert (done.code, done.err) == (
        2,
        f"metavrf: {folder} is a packed model without a checkpoint: there is nothing to resume\n",
    )
    (folder / NAME).unlink()  # of an older version
    with pytest.raises(UserError, match="is a run without a checkpoint: there is nothing to resume"):
        metavrf.train(out=folder, resume=True, quiet=True)
    assert snapshot(folder) == {name: data for name, data in before.items() if name != NAME}


def test_a_run_stopped_before_its_first_checkpoint_starts_from_its_beginning(finished: Path, tmp_path: Path) -> None:
    whole = Run(finished)
    Run.create(tmp_path / "run", whole.config(), whole.spec())
    metavrf.train(out=tmp_path / "run", resume=True, quiet=True)
    assert_same_run(finished, tmp_path / "run")


# 3. One process per run


def slowly() -> None:
    """Each step of this process takes longer, so that others meet it at work."""
    step = training.Trainer.train_step

    def slow(trainer: training.Trainer) -> dict[str, torch.Tensor]:
        signal.sigtimedwait([], 0.05)
        return step(trainer)

    training.Trainer.train_step = slow  # type: ignore[method-assign, assignment]


def test_a_live_run_is_neither_resumed_nor_started_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = Command(["train", "sine", "--out", str(out), *TINY, "--quiet"], tmp_path / "log", before=slowly)
    wait_for(Run(out).state_file.exists, "a first checkpoint")
    with pytest.raises(UserError, match="another process is training in"):
        metavrf.train(out=out, resume=True, quiet=True)
    with pytest.raises(UserError, match="holds a run already"):
        metavrf.train("sine", out=out, quiet=True, **TINY_OPTIONS)
    first.kill()
    metavrf.train(out=out, resume=True, quiet=True)  # the lock went with the process
    steps = [record["step"] for record in Run(out).metrics()]
    assert steps == [20, 40, 60]


def test_of_two_starts_at_once_one_wins_whole(tmp_path: Path) -> None:
    out = tmp_path / "run"
    starts = [
        Command(["train", "sine", "--out", str(out), *TINY, "--seed", str(seed), "--quiet"], tmp_path / f"log{seed}")
        for seed in (1, 2)
    ]
    codes = [start.wait().code for start in starts]
    assert sorted(codes) == [0, 2]
    winner = 1 + codes.index(0)
    assert Run(out).config().training.seed == winner
    assert json.loads(Run(out).result_file.read_text())["seed"] == winner
    assert read_tensors(Run(out).model_file)[1]["seed"] == winner


# 4. Checkpoints, signals, processes


def test_the_last_checkpoints_are_kept_and_the_newest_sound_one_is_taken(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = Command(["train", "sine", "--out", str(out), *TINY, "--quiet"], tmp_path / "log", before=slowly)
    wait_for((out / "state-1.safetensors").exists, "a second checkpoint")
    first.kill()
    newest, older = Run(out).checkpoints[:2]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-100] + b"\0" + whole[-99:])
    with pytest.warns(Caution, match=r"state.safetensors is damaged.*goes on from state-1.safetensors, step 20"):
        metavrf.train(out=out, resume=True, quiet=True)
    assert_same_run(finished, out)
    assert not older.exists()


def at_a_terminal() -> None:
    """Slowly, and not under nohup, whatever the tests run under."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    slowly()


def test_a_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = Command(["train", "sine", "--out", str(out), *TINY, "--quiet"], tmp_path / "log", before=at_a_terminal)
    wait_for(Run(out).state_file.exists, "a first checkpoint")
    command.send(signal.SIGHUP)
    done = command.wait()
    assert done.code == 128 + signal.SIGHUP
    assert done.err.startswith("metavrf: stopped at step ")
    assert Run(out).step() >= 20


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_ranks(["train", "sine", "--out", str(out), *TINY, "--quiet", "--iterations", "20"], tmp_path / "log")
    with pytest.raises(UserError, match="was trained by 2 processes, not 1: resume it with as many"):
        metavrf.train(out=out, resume=True, quiet=True)


def test_a_checkpoint_that_is_gone_from_an_ended_run_is_told(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "state.safetensors").unlink()
    assert "state.safetensors is missing" in refused(capsys, "info", copied)
    metavrf.load(copied)  # which does not read it


def test_an_ended_run_that_goes_on_is_named_anew(copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "state.safetensors")
    Run(copied).save_state(tensors, metadata)
    manifest = Manifest.of(copied)
    assert manifest is not None
    assert "state.safetensors" not in manifest.files


def test_a_checkpoint_of_other_settings_is_refused(copied: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    metavrf.train("sine", out=other, quiet=True, **TINY_OPTIONS | {"seed": 7})
    for folder in (copied, other):
        (folder / "result.json").unlink()
        Run(folder).seal()  # as runs that have not ended
    shutil.copy(other / "state.safetensors", copied)
    with pytest.raises(UserError, match=r"was written under other settings than those in config\.toml"):
        metavrf.train(out=copied, resume=True, quiet=True)


def test_an_older_checkpoint_in_place_of_a_missing_one_is_told(copied: Path) -> None:
    (copied / "result.json").unlink()
    (copied / "state.safetensors").rename(copied / "state-1.safetensors")
    Run(copied).seal()
    with pytest.warns(Caution, match=r"state\.safetensors is missing: the run goes on from state-1\.safetensors"):
        assert Run(copied).step() == 60
    with pytest.warns(Caution, match=r"state\.safetensors is missing: the run goes on from state-1\.safetensors"):
        metavrf.train(out=copied, resume=True, quiet=True)


def test_a_file_with_its_sum_beside_it_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "set.parquet"
    write_with_sum(file, b"pictures")
    assert compared_sum(file, "") == hashlib.sha256(b"pictures").digest()
    assert (tmp_path / "set.parquet.sha256").read_text() == f"{hashlib.sha256(b'pictures').hexdigest()}  set.parquet\n"
    file.write_bytes(b"picturez")
    with pytest.raises(UserError, match=r"set\.parquet is damaged or was changed.*fetch it"):
        compared_sum(file, "fetch it")
    sum_file(file).unlink()  # somebody's own file
    assert compared_sum(file, "") == hashlib.sha256(b"picturez").digest()


def test_a_json_file_of_a_study_carries_its_sum(tmp_path: Path) -> None:
    file = tmp_path / "test.json"
    write_summed_json(file, {"mean": 1.5, "tasks": 20})
    assert read_summed_json(file, "remove it") == {"mean": 1.5, "tasks": 20}
    file.write_text(file.read_text().replace("1.5", "1.6"))
    with pytest.raises(UserError, match=r"test\.json is damaged or was changed.*remove it"):
        read_summed_json(file, "remove it")
    write_summed_json(file, {"mean": 1.5, "tasks": 20})
    file.write_text(file.read_text().replace("sha256", "sha956"))  # else it would pass for a file without a sum
    with pytest.raises(UserError, match=r"test\.json carries no SHA-256 sum.*remove it"):
        read_summed_json(file, "remove it")
    assert read_summed_json(tmp_path / "none.json", "remove it") is None
