"""A search for settings by Optuna: each trial is an ordinary run, judged by its best validation, never by test classes.

    FOLDER/sweep.journal   what was tried, in Optuna's own storage: lines of JSON
    FOLDER/sweep.seal      how long the journal was when it was last written to, and the sum of that
    FOLDER/runs/trial-N    the run of a trial
    FOLDER/sweep.json      the table

Called again, a search goes on: what a trial tries depends on the seed, its number and the trials before it alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from metavrf.config import GROUPS, Config
from metavrf.errors import UserError
from metavrf.files import PathLike, read_summed_json, write_json, write_summed_json
from metavrf.randomness import stream
from metavrf.runs.directory import Run
from metavrf.runs.locking import lock
from metavrf.runs.provenance import provenance
from metavrf.schema import check_shape
from metavrf.studies.executors import Executor, executor
from metavrf.studies.work import Order, Prepare, Say, work_off

JOURNAL, SEAL, TABLE, NAME = "sweep.journal", "sweep.seal", "sweep.json", "sweep"
WIDE = 10  # ranges of this ratio or more are searched on a logarithmic scale
_TRAINING_ONLY = ("query", "batch", "train_way", "train_shot", "most_shot", "augment", "rotate", "mirror")
_WHERE = ("seed", "validate_tasks", "devices", "threads", "accelerator", "tensorboard", "start_from")


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    number: int
    settings: Mapping[str, Any]
    run: str
    figure: float | None
    """Of its best validation; None where it failed."""


@dataclass(frozen=True)
class SweepResult:
    """What a search has found."""

    figure: str
    """What trials are judged by: val_accuracy, of functions val_nll (many kernels) or val_mse."""
    trials: list[Trial]
    best: Trial
    config: Config[Any]
    """The settings of the best trial, to train with."""
    importances: Mapping[str, float]
    """The share of the variance of the figure that each setting explains; empty where trials are too few."""


class _Work(NamedTuple):
    """Where trials are run, and by which figure they are judged."""

    executor: Executor
    at_once: int
    folder: Path
    figure: str
    say: Say


def sweep(
    task: Any,
    over: Mapping[str, str],
    *,
    out: PathLike,
    trials: int = 20,
    jobs: int = 1,
    on: str = "local",
    say: Say = lambda _: None,
    prepare: Prepare | None = None,
    **options: Any,
) -> SweepResult:
    """Search settings by runs that are judged on validation tasks; needs the extra 'sweep'.

    Args:
        task: as for :func:`metavrf.train`, or a whole configuration.
        over: settings by name, each with a range ``"1e-4..1e-2"`` or values ``"none,lstm"``.
        out: folder of the search; one that is there goes on.
        trials: runs in all.
        jobs: runs at a time, one thread each.
        on: where they run: local, ray or slurm.
        say: told of each trial that ends.
        prepare: called first in each process, to load plugins.
        options: settings that all runs have.
    """
    optuna = _optuna()
    base = task.with_options(**options) if isinstance(task, Config) else Config.of(str(task), **options)
    if trials < 1 or jobs < 1:
        raise UserError("--trials and --jobs must be at least 1")
    if not base.training.threads:
        base = base.with_options(threads=1)
    space = {name: _distribution(optuna, base, name, text) for name, text in over.items()}
    if not space:
        raise UserError("say what to search: --over lr=1e-4..1e-2, or several settings")
    figure = judged_by(base)
    folder = Path(out).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    with lock(folder, f"another process is searching in {folder}: wait for it, or choose another --out"):
        study = _open(optuna, folder, {"config": base.to_toml(), "over": dict(over)}, figure)
        work = _Work(executor(on, jobs, folder, prepare), jobs, folder, figure, say)
        _run_trials(optuna, study, base, space, trials=trials, work=work)
        found = _result(optuna, study, base, folder, figure)
        write_json(folder / TABLE, _as_json(found, base, over))
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("a sweep needs the extra 'sweep': pip install 'metavrf[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def judged_by(config: Config[Any]) -> str:
    """The validation figure that a run of these settings keeps its best model by."""
    if config.kind == "classes":
        return "val_accuracy"
    return "val_nll" if getattr(config.model, "components", 1) > 1 else "val_mse"


def _distribution(optuna: Any, base: Config[Any], name: str, text: str) -> Any:
    """What Optuna draws a setting from: a range of numbers, whole where the setting is, or one of several values."""
    kind = _kind(base, name)
    low, dots, high = text.partition("..")
    if not dots:
        values = [_value(name, word, kind) for word in text.split(",")]
        for value in values:
            base.with_options(**{name: value}).validate()
        if len(set(values)) < 2:
            raise UserError(f"{name}={text} is nothing to search: give a range such as 1e-4..1e-2, or several values")
        return optuna.distributions.CategoricalDistribution(values)
    if kind not in (int, float):
        raise UserError(f"{name}={text} is a range, and {name} is not a number: give its values, as in {name}=a,b")
    ends = [_value(name, word, kind) for word in (low, high)]
    for value in ends:
        base.with_options(**{name: value}).validate()
    if not ends[0] < ends[1]:
        raise UserError(f"{name}={text} is empty: give the lower end first")
    numbers = optuna.distributions
    draw = numbers.IntDistribution if kind is int else numbers.FloatDistribution
    return draw(*ends, log=0 < WIDE * ends[0] <= ends[1])


def _kind(base: Config[Any], name: str) -> Any:
    """The type of a setting that may be searched."""
    base.with_options(**{name: None})  # an unknown one is an error
    group = next(g for g in GROUPS if name in {item.name for item in fields(getattr(base, g))})
    if name in _WHERE or (group in ("episode", "data") and name not in _TRAINING_ONLY):
        raise UserError(
            f"{name} is not to be searched: trials are compared on the same validation tasks; fix it instead"
        )
    return get_type_hints(type(getattr(base, group)))[name]


def _value(name: str, word: str, kind: Any) -> Any:
    """A value of a setting from its text."""
    word = word.strip()
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == word), word)
    try:
        if kind is bool:
            return {"true": True, "false": False}[word.lower()]
        if kind is int:
            return int(float(word)) if float(word).is_integer() else int(word)
        return kind(word)
    except (ValueError, KeyError, OverflowError, TypeError) as error:
        what = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "a value")
        raise UserError(f"{name}={word} must be {what}") from error


def _open(optuna: Any, folder: Path, asked: Mapping[str, Any], figure: str) -> Any:
    """The search in a folder, new or taken up; one of other settings is refused."""
    journal = folder / JOURNAL
    if journal.exists():
        whole = _verified(journal)
        if not whole.endswith(b"\n"):  # the last line was cut off by a crash
            os.truncate(journal, whole.rfind(b"\n") + 1)
        journal.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a process that was killed: we have ours
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    try:
        storage = optuna.storages.JournalStorage(backend)
        direction = "maximize" if figure == "val_accuracy" else "minimize"
        study = optuna.create_study(study_name=NAME, storage=storage, load_if_exists=True, direction=direction)
        known = study.user_attrs
    except (ValueError, KeyError, AssertionError) as error:
        raise UserError(f"{journal} is damaged: choose another --out, or take it from a copy") from error
    if any(name in known and known[name] != value for name, value in asked.items()):
        raise UserError(f"{folder} holds a search with other settings: choose another --out, or remove it")
    for name, value in asked.items():
        if name not in known:
            study.set_user_attr(name, value)
    _seal(folder)
    return study


def _seal(folder: Path) -> None:
    """Note the length and the sum of the journal, which only grows."""
    whole = (folder / JOURNAL).read_bytes()
    write_summed_json(folder / SEAL, {"bytes": len(whole), "journal": hashlib.sha256(whole).hexdigest()})


def _verified(journal: Path) -> bytes:
    """The journal, once it was compared with its seal. What a killed process wrote after that stands behind."""
    advice = "take the folder from a copy, or choose another --out"
    seal = journal.with_name(SEAL)
    known = read_summed_json(seal, advice)
    whole = journal.read_bytes()
    if known is not None:
        check_shape(known, {"bytes": int, "journal": str}, seal)
        sealed = whole[: known["bytes"]]
        if len(sealed) < known["bytes"] or hashlib.sha256(sealed).hexdigest() != known["journal"]:
            raise UserError(f"{journal} is damaged or was changed: its SHA-256 sum is not the one in {SEAL}; {advice}")
    return whole


def _run_trials(
    optuna: Any, study: Any, base: Config[Any], space: Mapping[str, Any], *, trials: int, work: _Work
) -> None:
    """Do the trials that are left, those that were begun first."""
    states, folder, figure = optuna.trial.TrialState, work.folder, work.figure
    begun = [trial.number for trial in study.get_trials(states=[states.RUNNING])]
    (folder / "runs").mkdir(exist_ok=True)

    def take() -> int | None:
        if begun:
            return int(begun.pop(0))
        number = len(study.get_trials(deepcopy=False))
        if number >= trials:
            return None
        seed = stream(base.training.seed, "sweep", number).initial_seed() % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        asked = int(study.ask(dict(space)).number)
        _seal(folder)
        return asked

    def order(number: int) -> Order:
        settings = study.get_trials(deepcopy=False)[number].params
        return base.with_options(**settings).to_toml(), _path(folder, number), {}

    def give(number: int, answer: str, seconds: float) -> None:
        value = _judged(_path(folder, number), figure) if not answer else None
        if value is None:
            study.tell(number, state=states.FAIL)
        else:
            study.tell(number, value)
        _seal(folder)
        settings = study.get_trials(deepcopy=False)[number].params
        work.say(f"trial {number}: {_words(settings)}: {answer or f'{figure} {value:.4g}, {seconds:.0f} s'}")

    work_off(
        work.executor,
        work.at_once,
        take=take,
        order=order,
        give=give,
        label=lambda number: f"trial {number}",
        say=work.say,
    )


def _words(settings: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


def _path(folder: Path, number: int) -> Path:
    return folder / "runs" / f"trial-{number}"


def _judged(path: Path, figure: str) -> float | None:
    result = Run(path).result()
    return None if result is None else result["validation"].get(figure)


def _result(optuna: Any, study: Any, base: Config[Any], folder: Path, figure: str) -> SweepResult:
    found = [
        Trial(trial.number, trial.params, str(_path(folder, trial.number)), trial.value)
        for trial in study.get_trials(deepcopy=False)
    ]
    judged = [trial for trial in found if trial.figure is not None]
    if not judged:
        raise UserError(f"all {len(found)} trials failed: search nearer to settings that work")
    best = found[study.best_trial.number]
    importances: dict[str, float] = {}
    if len({trial.figure for trial in judged}) > 1:
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        importances = dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    return SweepResult(figure, found, best, base.with_options(**best.settings), importances)


def _as_json(found: SweepResult, base: Config[Any], over: Mapping[str, str]) -> dict[str, Any]:
    return {
        "task": base.task,
        "learner": base.learner,
        "over": dict(over),
        "judged_by": found.figure,
        "validation_tasks": base.training.validate_tasks,
        "trials": [asdict(trial) for trial in found.trials],
        "best": found.best.number,
        "importances": dict(found.importances),
        **provenance(base.training.seed),
    }
