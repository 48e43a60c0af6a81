"""A run made small enough to pass on: half precision, no checkpoint, and a card that says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metavrf import api
from metavrf.config import TEST_EPISODES
from metavrf.errors import UserError
from metavrf.evaluation import Evaluation
from metavrf.provenance import provenance
from metavrf.run import Run, write_atomically, write_json
from metavrf.tasks.datasets import NAMED_SETS


def pack(
    run: api.PathLike,
    out: api.PathLike,
    *,
    ways: Sequence[int] = (5, 20),
    shots: Sequence[int] = (1, 5),
    episodes: int = TEST_EPISODES,
    transductive_ways: Sequence[int] = (5,),
    transductive_episodes: int = 600,
) -> Path:
    """Write a packed model to the folder ``out``, test it there at these ways and shots, and write what was measured.

    The transductive protocol embeds every episode anew, which takes long: it has ways and a number of its own.
    """
    source = Run.open(run)
    result, data = source.result(), source.data()
    if result is None or data is None:
        raise UserError(f"{source.path} is not a finished run on classes: only such a run can be packed")
    tensors, metadata = source.load_model()
    packed = Run.create(out, source.config(), data)
    packed.save_model(
        {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}, metadata
    )
    write_json(packed.result_file, result)
    settings = [(way, shot) for way in ways for shot in shots]
    measured = [api.evaluate(packed.path, way=way, shot=shot, tasks=episodes) for way, shot in settings]
    measured += [
        api.evaluate(packed.path, way=way, shot=shot, tasks=transductive_episodes, protocol="transductive")
        for way, shot in settings
        if way in transductive_ways
    ]
    card = {
        "task": result["task"],
        "tests": [evaluation.to_dict() for evaluation in measured],
        "training": {key: result[key] for key in ("command", "commit", "seed", "steps", "train_seconds", "validation")},
        "provenance": provenance(measured[0].seed),
    }
    write_json(packed.path / "card.json", card)
    write_atomically(packed.path / "README.md", _card_text(packed, result, data, measured))
    return packed.path


def _card_text(run: Run, result: dict[str, Any], data: dict[str, Any], measured: Sequence[Evaluation]) -> str:
    named = NAMED_SETS.get(result["task"])
    model = run.config().model
    counts = ", ".join(f"{len(names)} {part}" for part, names in data["classes"].items())
    lines = [
        f"# {result['task']}: {result['learner']}, context {model.context}",
        "",
        f"- Data: {result['task']}" + (f" ({named.size}); {named.citation}" if named else ""),
        f"- Licence of the data: {named.licence}" if named else "- Licence of the data: see its source",
        f"- Split: {data['split']} ({counts} classes)",
        f"- Features: {data['pretraining']}-pretrained" if data["pretraining"] else "- Trained from scratch",
        f"- Trained by: `{result['command']}` at commit {result['commit']}, {result['steps']} steps, "
        f"{result['train_seconds'] / 60:.0f} minutes; the best model by validation classes is kept",
        "- Weights in half precision, licence Apache-2.0; calibrated by one temperature fitted on validation classes",
        "",
        f"Tested on test classes, {measured[0].query} queries a class, seed {measured[0].seed}:",
        "",
        "| ways | shots | protocol | episodes | accuracy (%) | nll | calibration error |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {e.way} | {e.shot} | {e.protocol} | {e.tasks} "
            f"| {e.mean:.2f} ± {e.ci95:.2f} | {e.nll:.4f} | {e.ece:.4f} |"
            for e in measured
        ),
        "",
        "Transductive: normalised by the whole episode's statistics, so a prediction depends on the other queries.",
        "",
    ]
    return "\n".join(lines)
