"""A run made small enough to pass on, with a card that says what it is: the layout of the Hugging Face hub.

    README.md           the card, for people and for the hub
    card.json           what was measured, and how
    config.toml, data.json, model.safetensors, result.json, manifest.json    as in any run

Models on classes are kept in half precision. Those of functions stay in single precision: they are small, and their
errors are far below what half precision resolves.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import PathLike, as_json, beside, write_atomically
from metavrf.model import TrainedModel, load
from metavrf.runs.calibrating import calibrate_by_shots
from metavrf.runs.directory import Run
from metavrf.runs.provenance import provenance
from metavrf.spec import TaskSpec
from metavrf.tasks.datasets import DATASETS
from metavrf.tasks.functions import EVALUATION_POINTS, family
from metavrf.tasks.source import open_tasks
from metavrf.testing.evaluate import evaluate
from metavrf.testing.evaluation import Evaluation
from metavrf.testing.settings import EvalSettings

CLASS_SHOTS, FUNCTION_SHOTS = (1, 5), (2, 3, 5, 10, 20)
LICENCE = "apache-2.0"


def save_pretrained(
    run: PathLike | TrainedModel,
    folder: PathLike,
    tests: Sequence[EvalSettings] | None = None,
    *,
    calibrate: bool = False,
) -> Path:
    """Write a finished run to ``folder`` as a small model with a card, ready for the Hugging Face hub.

    The model is tested as it is written, and the card holds what was measured. A run that has a card already, such as
    a model that comes with the package, keeps it and is not tested again. Open the folder with :func:`metavrf.load`.
    Where anything fails, nothing is left in ``folder``.

    Args:
        run: the run directory, the name of a shipped model, or an opened one.
        folder: where to write; must not hold a run already.
        tests: what to test; by default 5 and 20 ways of 1 and 5 shots of classes, or 2 to 20 shots of functions.
        calibrate: fit the probabilities of a model of classes anew, on its validation classes and for each number of
            shots, and test it anew; for models of earlier versions, which have one temperature for all shots.
    """
    model = run if isinstance(run, TrainedModel) else load(run)
    source, result = model.run, model.result
    if result is None:
        raise UserError(f"{source.path} is not a finished run: only such a run can be packed")
    if model.spec.columns is not None:
        raise UserError(f"{source.path} is of curves of a table, which a card cannot test: pass its folder on as it is")
    Run(folder).refuse_if_held()
    tensors, metadata = source.load_model()
    regression = model.spec.regression
    if calibrate:
        tensors = {**tensors, "temperature": _fitted_temperature(model)}
    precision = torch.float32 if regression else torch.float16
    where = Path(folder)
    with beside(where) as unfinished:
        packed = Run.create(unfinished, model.config, model.spec, "packed model")
        packed.save_model(
            {name: tensor.to(precision) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
            metadata,
        )
        packed.write(packed.result_file, as_json(result))
        card = None if calibrate else source.card()
        if card is None:
            written = load(unfinished)
            card = _card(result, [evaluate(written, settings) for settings in tests or default_tests(model)])
        packed.write(packed.card_file, as_json(card))
        write_atomically(packed.path / "README.md", card_text(packed))
        packed.seal()
    return where


def _fitted_temperature(model: TrainedModel) -> Tensor:
    """Temperatures by validation classes, of which the data must be at hand."""
    if model.spec.regression:
        raise UserError("calibrate is for models of classes: the band of functions is calibrated in training")
    settings = model.config.training
    tasks = open_tasks(model.config.task, model.config.data)
    calibrate_by_shots(model.learner, tasks, model.config.episode, most=settings.validate_tasks, seed=settings.seed)
    return model.learner.temperature


def default_tests(model: TrainedModel) -> list[EvalSettings]:
    """What a model is tested at, unless said otherwise."""
    if model.spec.regression:
        return [EvalSettings(shot=shot, adaptivity=True) for shot in FUNCTION_SHOTS]
    return [EvalSettings(way=way, shot=shot, adaptivity=True) for way in (5, 20) for shot in CLASS_SHOTS]


def _card(result: Mapping[str, Any], measured: Sequence[Evaluation]) -> dict[str, Any]:
    return {
        "task": result["task"],
        "tests": [evaluation.to_dict() for evaluation in measured],
        "training": {key: result[key] for key in ("command", "commit", "seed", "steps", "train_seconds", "validation")},
        "provenance": provenance(measured[0].seed),
    }


def card_text(run: Run) -> str:
    """The README.md of a packed model: its card in words, under the front matter that the hub reads."""
    config, data, card = run.config(), run.spec(), run.card()
    if card is None:
        raise UserError(f"{run.path} has no card: make one with 'metavrf pack'")
    classes = data.targets is None
    tags = ["metavrf", "few-shot-learning", "meta-learning", "kernel-methods"]
    tags.append("image-classification" if classes else "regression")
    training, tests = card["training"], card["tests"]
    lines = [
        "---",
        f"license: {LICENCE}",
        "library_name: metavrf",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
        "",
        f"# {data.pictures or config.task}: {config.learner}"
        + (f", context {config.model.context}" if hasattr(config.model, "context") else ""),
        "",
        *(_about_classes(config.task, data) if classes else _about_functions(config)),
        f"- Trained by: `{training['command']}` at commit {training['commit']}, {training['steps']} steps, "
        f"{training['train_seconds'] / 60:.0f} minutes; "
        f"the best model by validation {'classes' if classes else 'tasks'} is kept",
        f"- Tested by: `{card['provenance']['command']}` at commit {card['provenance']['commit']}",
        "- Weights in half precision, licence Apache-2.0; calibrated on validation classes"
        if classes
        else f"- Weights in single precision, licence Apache-2.0; {_band(config)}",
        "",
        *(_class_table(tests) if classes else _function_table(tests)),
        "",
        *_adaptivity_table(tests),
    ]
    return "\n".join(lines)


def _about_classes(task: str, data: TaskSpec) -> list[str]:
    named = DATASETS.get(data.pictures or task)
    counts = ", ".join(f"{len(data.classes[part])} {part}" for part in ("train", "val", "test"))
    lines = [
        f"- Data: {data.pictures or task}" + (f" ({named.size}); {named.citation}" if named else ""),
        f"- Licence of the data: {named.licence if named else 'see its source'}",
        f"- Split: {data.split} ({counts} classes)",
    ]
    if not data.pretraining:
        return [*lines, "- Trained from scratch"]
    made = f" ({data.embedder}), made by `{data.embed_command(task)}`" if data.embedder else ""
    return [*lines, f"- On ready features, {data.pretraining}-pretrained{made}"]


def _about_functions(config: Config[Any]) -> list[str]:
    functions = family(config.task)
    ranges = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in functions.parameters.items())
    shape = config.episode
    least = shape.train_shot or shape.shot
    shots = f"{least} to {shape.most_shot}" if shape.most_shot else str(least)
    return [
        f"- Data: drawn from the family {config.task}. {inspect.getdoc(functions)}",
        f"- Range: {ranges}, uniform; x from {functions.domain[0]:g} to {functions.domain[1]:g}, "
        + (f"noise {functions.noise:g}" if functions.noise else "no noise"),
        "- Licence of the data: none needed, it is computed",
        "- Split: none; training, validation and test tasks are drawn from streams of their own",
        f"- Trained on tasks of {shots} support points",
    ]


def _class_table(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"Tested on test classes, {tests[0]['query']} queries per class, seed {tests[0]['seed']}:",
        "",
        "| ways | shots | protocol | episodes | accuracy (%) | nll | calibration error |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {test['way']} | {test['shot']} | {_protocol(test)} | {test['tasks']} "
            f"| {test['mean']:.2f} ± {test['ci95']:.2f} | {test['nll']:.4f} | {test['ece']:.4f} |"
            for test in tests
        ),
    ]
    if any(test["protocol"] == "transductive" for test in tests):
        sentence = "normalised by the whole episode's statistics, so a prediction depends on the other queries."
        lines += ["", f"Transductive: {sentence}"]
    if any(test.get("views") for test in tests):
        lines += ["", "Views: a picture's features are the mean over it and its shifted or mirrored copies."]
    return lines


def _band(config: Config[Any]) -> str:
    calibrated = getattr(config.model, "components", 1) > 1
    return "the 90 % band is calibrated on validation tasks" if calibrated else "the band is the learned likelihood's"


def _adaptivity_table(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the model infers anything of a task, where that was measured."""
    measured = [test for test in tests if "own" in test.get("adaptivity", {})]
    if not measured:
        return []
    metric = measured[0]["metric"]
    lines = [
        "What inference is worth: the same tasks answered with their own, the mean and another task's inference.",
        "",
        f"| ways | shots | {metric}: own | mean | another's | nll: own | mean | another's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for test in measured:
        cells = [
            f"{test['adaptivity'][whose][name]:.4g}" for name in (metric, "nll") for whose in ("own", "mean", "other")
        ]
        lines.append(f"| {test.get('way', '')} | {test['shot']} | {' | '.join(cells)} |")
    return [*lines, ""]


def _protocol(test: Mapping[str, Any]) -> str:
    views = test.get("views")
    return str(test["protocol"]) + (f", views {views}" if views else "")


def _function_table(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"Tested on new functions at {EVALUATION_POINTS} evenly spaced points, seed {tests[0]['seed']}:",
        "",
        "| shots | protocol | tasks | mean squared error | nll | in the 90 % band |",
        "|---|---|---|---|---|---|",
        *(
            f"| {test['shot']} | {test['protocol']} | {test['tasks']} | {test['mean']:.4g} ± {test['ci95']:.2g} "
            f"| {test['nll']:.4g} | {100 * test['coverage90']:.1f} % |"
            for test in tests
        ),
    ]
