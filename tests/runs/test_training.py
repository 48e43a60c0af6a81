from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import metavrf
from metavrf.config import TrainingSettings
from metavrf.errors import UserError
from metavrf.files import read_tensors
from metavrf.runs import training
from metavrf.runs.directory import Run
from metavrf.runs.optimizing import learning_rate
from metavrf.runs.training import make_fabric
from processes import (
    DOCUMENTED,
    TIMEOUT,
    TINY,
    TINY_OPTIONS,
    Command,
    DieInWrite,
    assert_same_run,
    gradient_gap,
    largest_gap,
    real_command,
    run,
    run_ranks,
    run_real,
    snapshot,
    validations,
    wait_for,
)

CONTEXTS = ("none", "lstm", "bilstm")


def train_command(out: Path, *options: str) -> list[str]:
    return ["train", "sine", "--out", str(out), *TINY, *options]


def resume_command(out: Path, *options: str) -> list[str]:
    return ["train", "--resume", "--out", str(out), *options]


def succeed(arguments: list[str], log: Path) -> None:
    done = run(arguments, log)
    assert (done.code, done.err) == (0, "")


# Resuming


@pytest.mark.parametrize("draw", ["resampled", "fixed"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_run_killed_twice_and_resumed_equals_one_never_interrupted(context: str, draw: str, tmp_path: Path) -> None:
    options = ("--context", context, "--draw", draw, "--most-shot", "7", "--quiet")  # shots drawn at each step too
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    succeed(train_command(whole, *options), tmp_path / "log")

    first = Command(train_command(broken, *options), tmp_path / "log1")
    wait_for(Run(broken).state_file.exists, "a first checkpoint")
    first.kill()
    second = Command(resume_command(broken, "--quiet"), tmp_path / "log2")
    wait_for(lambda: validations(broken) >= 2, "a second validation")
    second.kill()
    succeed(resume_command(broken, "--quiet"), tmp_path / "log3")

    assert_same_run(whole, broken)


def test_kills_at_any_moment_change_nothing(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    succeed(train_command(whole, "--context", "lstm", "--quiet"), tmp_path / "log")
    moments = random.Random(0)
    command = Command(train_command(broken, "--context", "lstm", "--quiet"), tmp_path / "log0")
    wait_for(Run(broken).config_file.exists, "the run's settings")
    for attempt in range(6):
        time.sleep(moments.uniform(0.0, 0.5))
        command.kill()
        command = Command(resume_command(broken, "--quiet"), tmp_path / f"log{attempt + 1}")
    assert command.wait().code == 0
    assert_same_run(whole, broken)


@pytest.mark.parametrize(
    ("count", "where"),
    [(3, "half"), (4, "half"), (6, "half"), (3, "after rename"), (4, "before rename"), (4, "after rename")],
)
def test_a_kill_in_the_middle_of_writing_a_checkpoint_harms_nothing(count: int, where: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    succeed(train_command(whole, "--context", "lstm", "--quiet"), tmp_path / "log")
    done = run(
        train_command(broken, "--context", "lstm", "--quiet"), tmp_path / "log1", before=DieInWrite(count, where)
    )
    assert done.code == -signal.SIGKILL
    if Run(broken).model_file.exists():
        assert metavrf.evaluate(broken, tasks=2).mean > 0
    succeed(resume_command(broken, "--quiet"), tmp_path / "log2")
    assert_same_run(whole, broken)


def test_a_resumed_run_clears_what_a_kill_left_half_written(tmp_path: Path) -> None:
    assert run(train_command(tmp_path / "run"), tmp_path / "log", before=DieInWrite(4)).code == -signal.SIGKILL
    assert run(resume_command(tmp_path / "run"), tmp_path / "log").code == 0
    assert set(snapshot(tmp_path / "run")) == DOCUMENTED


def test_a_kill_before_the_settings_are_written_leaves_the_directory_free(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(train_command(out, "--quiet"), tmp_path / "log", before=DieInWrite(1)).code == -signal.SIGKILL
    done = run(resume_command(out), tmp_path / "log")
    assert done.code == 2
    assert "is not a run" in done.err
    succeed(train_command(out, "--quiet"), tmp_path / "log")


def test_resuming_a_finished_run_changes_no_figure(tmp_path: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    for out in (whole, again):
        metavrf.train("sine", out=out, quiet=True, **TINY_OPTIONS)
    metavrf.train("sine", out=again, resume=True, quiet=True)
    assert_same_run(whole, again)


def test_resuming_a_run_that_stopped_early_leaves_it_stopped(tmp_path: Path) -> None:
    options = TINY_OPTIONS | {"iterations": 400, "patience": 2, "lr": 0.2, "warmup": 0}
    metavrf.train("sine", out=tmp_path, quiet=True, **options)
    before = json.loads((tmp_path / "result.json").read_text())
    assert before["stopped_early"]
    metavrf.train("sine", out=tmp_path, resume=True, quiet=True)
    after = json.loads((tmp_path / "result.json").read_text())
    assert (after["steps"], after["stopped_early"]) == (before["steps"], True)


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_saves_the_run_and_says_how_to_go_on(number: int, code: int, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = ("--context", "lstm", "--quiet", "--iterations", "150")
    succeed(train_command(whole, *options), tmp_path / "log")
    command = Command(train_command(broken, *options), tmp_path / "log")
    wait_for(lambda: validations(broken) >= 2, "a second validation")
    command.send(number)
    done = command.wait()
    assert done.code == code
    step = int(read_tensors(Run(broken).state_file)[1]["step"])
    assert 40 <= step < 150
    assert done.err == f"metavrf: stopped at step {step}; continue with: metavrf train --resume --out {broken}\n"
    succeed(resume_command(broken, "--quiet"), tmp_path / "log")
    assert_same_run(whole, broken)


# Several processes


def test_two_processes_stopped_by_ctrl_c_save_every_state_and_go_on_to_the_same_end(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = ("--context", "lstm", "--devices", "2", "--iterations", "150")
    ranks = run_ranks(train_command(whole, *options), tmp_path / "log")
    assert [done.code for done in ranks] == [0, 0]
    with subprocess.Popen(
        real_command(*train_command(broken, *options)),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        wait_for(lambda: validations(broken) >= 1, "a first validation")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "Traceback" not in err
    tensors, metadata = read_tensors(Run(broken).state_file)
    assert int(metadata["step"]) < 150
    assert not torch.equal(tensors["rank0.context.hidden"], tensors["rank1.context.hidden"])
    assert [done.code for done in run_ranks(resume_command(broken), tmp_path / "log")] == [0, 0]
    assert_same_run(whole, broken)
    assert err.count("--resume") == 1  # one sentence, not one a process


@pytest.mark.parametrize("batch", ["4", "5"])
def test_two_processes_take_the_gradient_step_of_one(batch: str, tmp_path: Path) -> None:
    options = ("--context", "none", "--batch", batch, "--iterations", "1")
    one, two = tmp_path / "one", tmp_path / "two"
    succeed(train_command(one, *options, "--quiet"), tmp_path / "log")
    assert [done.code for done in run_ranks(train_command(two, *options), tmp_path / "log")] == [0, 0]
    assert gradient_gap(Run(one).state_file, Run(two).state_file) < 1e-6


def test_torchrun_takes_the_same_gradient_step(tmp_path: Path) -> None:
    options = ("--context", "none", "--batch", "5", "--iterations", "1", "--quiet")
    elastic, one = tmp_path / "elastic", tmp_path / "one"
    launched = run_real(
        "--nproc-per-node", "2", "-m", "metavrf", *train_command(elastic, *options), module="torch.distributed.run"
    )
    assert launched.returncode == 0, launched.stderr
    succeed(train_command(one, *options), tmp_path / "log")
    assert gradient_gap(Run(one).state_file, Run(elastic).state_file) < 1e-6


def test_several_processes_print_nothing_more_than_one(tmp_path: Path) -> None:
    ranks = run_ranks(train_command(tmp_path / "run", "--context", "lstm", "--quiet"), tmp_path / "log")
    # without a network there is no name of the machine, which PyTorch says on lines of its own
    printed = [[line for line in done.err.splitlines() if "[c10d] The hostname" not in line] for done in ranks]
    assert [(done.code, done.out) for done in ranks] == [(0, ""), (0, "")]
    assert printed == [[], []]


def test_each_process_keeps_its_own_context_state(tmp_path: Path) -> None:
    run_ranks(train_command(tmp_path / "run", "--context", "lstm", "--iterations", "5"), tmp_path / "log")
    tensors, _ = read_tensors(Run(tmp_path / "run").state_file)
    for name in ("context.hidden", "context.cell"):
        assert torch.equal(tensors[f"rank0.{name}"], tensors[f"learner.{name}"])
        assert not torch.equal(tensors[f"rank0.{name}"], tensors[f"rank1.{name}"])


def test_two_processes_have_the_patience_of_one(tmp_path: Path) -> None:
    options = ("--context", "none", "--patience", "2", "--validate-every", "5")
    succeed(train_command(tmp_path / "one", *options, "--quiet"), tmp_path / "log")
    run_ranks(train_command(tmp_path / "two", *options), tmp_path / "log")
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert (two["steps"], two["best_step"]) == (one["steps"], one["best_step"])


def hurry() -> None:
    training.CHECKPOINT_SECONDS = 0.05  # type: ignore[assignment]


def test_two_processes_agree_on_when_to_save(tmp_path: Path) -> None:
    options = ("--context", "lstm", "--validate-every", "1000", "--iterations", "200")
    ranks = run_ranks(train_command(tmp_path / "run", *options), tmp_path / "log", before=hurry, timeout=30)
    assert [done.code for done in ranks] == [0, 0]


def test_diverging_in_several_processes_is_one_sentence(tmp_path: Path) -> None:
    ranks = run_ranks(train_command(tmp_path / "run", "--lr", "1e12", "--batch", "2"), tmp_path / "log", timeout=30)
    assert ranks[0].code == 2
    assert not any("Traceback" in done.err for done in ranks)
    assert "".join(done.err for done in ranks).count("lower --lr") == 1


def break_every_second_task() -> None:
    @metavrf.register_family("broken")
    class Broken(metavrf.FunctionFamily):
        parameters = {"height": (1.0, 2.0)}

        def evaluate(self, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
            y = parameters["height"] * x
            y[1::2] = math.nan
            return y


def test_a_failure_in_one_process_ends_the_others_without_a_traceback(tmp_path: Path) -> None:
    arguments = ["train", "broken", "--out", str(tmp_path / "run"), *TINY]
    ranks = run_ranks(arguments, tmp_path / "log", before=break_every_second_task, timeout=30)
    assert [done.code for done in ranks] == [2, 2]
    assert not any("Traceback" in done.err for done in ranks)


# What a run is


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    for name in ("one", "other"):
        metavrf.train("sine", out=tmp_path / name, quiet=True, seed=3, **TINY_OPTIONS)
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    names = [f"run{index}" for index in range(4)]
    for name in names:
        metavrf.train("sine", out=tmp_path / name, quiet=True, **TINY_OPTIONS | {"iterations": 1})
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in names}) == 1


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (0, 1):
        metavrf.train("sine", out=tmp_path / str(seed), quiet=True, seed=seed, **TINY_OPTIONS | {"iterations": 1})
    assert largest_gap(tmp_path / "0/model.safetensors", tmp_path / "1/model.safetensors") > 0.01


def test_patience_stops_early_and_the_result_says_so(tmp_path: Path) -> None:
    options = TINY_OPTIONS | {"iterations": 400, "patience": 2, "lr": 0.2, "warmup": 0}
    run = metavrf.train("sine", out=tmp_path, quiet=True, **options)
    result = json.loads(run.result_file.read_text())
    assert result["stopped_early"]
    assert result["steps"] == result["best_step"] + 2 * 20
    assert result["steps"] == run.metrics()[-1]["step"] < 400


def test_the_model_kept_is_the_best_by_validation(tmp_path: Path) -> None:
    wild = {"validate_every": 4, "lr": 0.5, "schedule": "constant"}  # the error goes up and down
    run = metavrf.train("sine", out=tmp_path, quiet=True, **TINY_OPTIONS | wild)
    best = min(run.metrics(), key=lambda record: record["val_mse"])
    _, metadata = read_tensors(run.model_file)
    assert metadata["best_step"] == metadata["step"] == best["step"]
    assert float(metadata["best"]) == best["val_mse"]
    assert 0 < best["step"] < 60  # else this shows nothing
    result = json.loads(run.result_file.read_text())
    assert (result["best_step"], result["validation"]["val_mse"]) == (best["step"], best["val_mse"])


def test_the_last_step_is_validated_even_between_validations(tmp_path: Path) -> None:
    run = metavrf.train("sine", out=tmp_path, quiet=True, **TINY_OPTIONS | {"iterations": 7, "validate_every": 5})
    assert [record["step"] for record in run.metrics()] == [5, 7]


def test_the_learning_rate_warms_up_then_falls_along_a_cosine() -> None:
    settings = TrainingSettings(iterations=1000, lr=0.5, warmup=10)
    assert learning_rate(settings, 0) == pytest.approx(0.05)
    assert learning_rate(settings, 4) == pytest.approx(0.25 * 0.5 * (1 + math.cos(math.pi * 0.004)))
    assert learning_rate(settings, 500) == pytest.approx(0.25)
    assert learning_rate(settings, 1000) == pytest.approx(0.0)


def test_a_constant_learning_rate_stays_after_the_warm_up() -> None:
    settings = TrainingSettings(iterations=1000, lr=0.5, warmup=4, schedule="constant")
    assert [learning_rate(settings, step) for step in (0, 1, 2, 3, 4, 999)] == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]


def test_no_warm_up_starts_at_the_peak() -> None:
    assert learning_rate(TrainingSettings(lr=0.5, warmup=0), 0) == 0.5


def test_diverging_training_ends_in_one_sentence_that_names_the_learning_rate(tmp_path: Path) -> None:
    done = run(train_command(tmp_path / "run", "--lr", "1e12"), tmp_path / "log")
    assert done.code == 2
    assert done.err.startswith("metavrf: training failed at step ")
    assert "lower --lr" in done.err
    assert done.err.count("\n") == 1


def test_diverging_training_says_truly_whether_a_checkpoint_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower --lr") as failure:
        metavrf.train("sine", out=tmp_path, quiet=True, **TINY_OPTIONS | {"lr": 1e12, "warmup": 0})
    assert ("is kept" in str(failure.value)) == (tmp_path / "state.safetensors").exists()


def test_unknown_settings_and_tasks_fail_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no setting 'shoot'"):
        metavrf.train("sine", out=tmp_path / "run", shoot=3)
    with pytest.raises(UserError, match="there is no task 'sinus'"):
        metavrf.train("sinus", out=tmp_path / "run")
    assert snapshot(tmp_path) == {}


def test_tensorboard_files_hold_every_validation(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = run(train_command(tmp_path / "run", "--tensorboard", "--quiet"), tmp_path / "log")
    assert (done.code, done.err) == (0, "")
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("val_mse")] == [20, 40, 60]
    recorded = [record["val_mse"] for record in Run(tmp_path / "run").metrics()]
    assert [event.value for event in events.Scalars("val_mse")] == pytest.approx(recorded)


# What a person sees


def test_without_a_terminal_each_validation_is_one_plain_line(tmp_path: Path) -> None:
    done = run(train_command(tmp_path / "run", "--context", "lstm"), tmp_path / "log")
    lines = done.err.splitlines()
    starts = [f"sine 5-shot metavrf lstm: step {step}/60  loss " for step in (20, 40, 60)]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=False)] == [True] * 3
    assert lines[3].startswith("best at step ")
    assert lines[4] == f"test it with: metavrf evaluate {tmp_path / 'run'}"
    assert len(lines) == 5
    assert done.out == ""
    assert "\x1b" not in done.err


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    done = run(train_command(tmp_path / "run", "--quiet"), tmp_path / "log")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_training_stays_on_the_cpu_of_a_machine_that_has_more_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.CUDAAccelerator.is_available", lambda: True)
    assert make_fabric(TrainingSettings(accelerator="cpu")).device == torch.device("cpu")
