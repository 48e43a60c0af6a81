"""How long a user waits: adapting to a 5-way 5-shot task and predicting 75 queries; curves; 'metavrf fit' on photos.

    python benchmarks/adapt.py [--repeats 200] [--photos] [--save FILE]

On 256 features, beside scikit-learn's KernelRidge on the same ones. The methods are timed in turn, round after round,
so that noise hits all alike. Curves of 5, 20 and 50 points are answered at 101 places by the model of many kernels, in
one go and by folding the task into a module first. ``--photos`` adds 'metavrf fit' on 10 classes of 10 photographs in a
process of its own, its start included; it needs the extra 'deep'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.kernel_ridge import KernelRidge

from metavrf import Episodes, MetaVRFClassifier, load
from metavrf.config import Config
from metavrf.files import write_json
from metavrf.learners.base import Learner
from metavrf.memory import keep_freed_memory
from metavrf.randomness import stream
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance
from metavrf.tasks.source import open_tasks

WAY, SHOT, QUERY, FEATURES = 5, 5, 75, 256
MOST_MILLISECONDS, MOST_TIMES_KERNEL_RIDGE, MOST_SECONDS = 5, 2, 20
POINTS, ASKED = (5, 20, 50), 101
FIRST_TASKS = {"batch": 200, "shot": 11, "train_shot": 0, "most_shot": 0}  # as a training starts from
PHOTO_CLASSES, PHOTOS, SIDE = 10, 10, (640, 480)


def task(seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Support, labels and queries: classes that overlap a little."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(WAY, FEATURES))
    y = np.repeat(np.arange(WAY), SHOT)
    support = centres[y] + random.normal(size=(len(y), FEATURES))
    query = np.tile(centres, (QUERY // WAY, 1)) + random.normal(size=(QUERY, FEATURES))
    return support, y, query


def methods() -> dict[str, Callable[[], object]]:
    """Each adapts anew and predicts."""
    support, y, query = task()
    onehot = np.eye(WAY)[y]
    return {
        "KernelRidge": lambda: KernelRidge(kernel="rbf").fit(support, onehot).predict(query),
        "MetaVRFClassifier('omniglot')": lambda: MetaVRFClassifier("omniglot").fit(support, y).predict_proba(query),
        "MetaVRFClassifier()": lambda: MetaVRFClassifier().fit(support, y).predict_proba(query),
    }


def curve_model() -> tuple[str, Learner]:
    """The model of curves that comes with the package; where that has one kernel still, an untrained one of many."""
    shipped = load("sine").learner
    if shipped.components > 1:
        return f"'sine', {shipped.components} kernels", shipped
    config = Config.of("sine").with_options(**FIRST_TASKS)
    learner = config.build()
    learner.initialise(open_tasks("sine", config.data).training(config.episode, stream(0, "train")))
    return f"untrained, {learner.components} kernels", learner.eval()


def curve(points: int) -> Episodes:
    """A task: points of a sine curve, and an even grid to be asked about."""
    x = 10 * torch.rand(points, generator=torch.Generator().manual_seed(0)) - 5
    return Episodes.of_task(x, 2 * torch.sin(x + 1), torch.linspace(-5, 5, ASKED))


def curve_methods(learner: Learner) -> dict[str, Callable[[], object]]:
    """A curve's answers from its points, in one go or by way of a module, whose answers alone are timed too."""

    def of(task: Episodes, points: int) -> dict[str, Callable[[], object]]:
        support, asked = task.asking(task.query_x[:, :0]), task.query_x[0]
        ready = learner.adapted(support)

        @torch.no_grad()
        def answers() -> object:
            return ready(asked)

        @torch.no_grad()
        def adapted() -> object:
            return learner.adapted(support)(asked)

        return {
            f"predict, {points} points": lambda: learner.predict(task),
            f"adapted and asked, {points} points": adapted,
            f"asked again, {points} points": answers,
        }

    return {name: piece for points in POINTS for name, piece in of(curve(points), points).items()}


def measure(pieces: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each piece, round after round."""
    times: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(repeats):
        for name, piece in pieces.items():
            start = time.perf_counter()
            piece()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def photographs(folder: Path) -> Path:
    """A folder of class folders of coloured noise: what is in them does not change the time."""
    random = np.random.default_rng(0)
    for number in range(PHOTO_CLASSES):
        (folder / f"class{number}").mkdir(parents=True)
        for index in range(PHOTOS):
            coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            coarse.resize(SIDE, Image.Resampling.BICUBIC).save(folder / f"class{number}" / f"{index}.jpg")
    return folder


def fit_photos() -> float:
    """Seconds of the whole command."""
    with tempfile.TemporaryDirectory() as place:
        folder = photographs(Path(place) / "photos")
        command = [sys.executable, "-m", "metavrf", "fit", str(folder), "--out", f"{place}/model", "--json"]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
        assert json.loads(done.stdout)["model"] == "photos"
        return seconds


def measure_curves(repeats: int) -> dict[str, Any]:
    """Print and return how long curves take."""
    name, learner = curve_model()
    pieces = curve_methods(learner)
    measure(pieces, 10)
    rows = {label: statistics.quantiles(values, n=4) for label, values in measure(pieces, repeats).items()}
    lines = [[label, f"{median:.2f}", f"{low:.2f} to {high:.2f}"] for label, (low, median, high) in rows.items()]
    print_table(["a curve", "ms", "quartiles"], lines, f"Curves asked at {ASKED} places; model: {name}")
    return {"curve_model": name, "curve_milliseconds_quartiles": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--photos", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    keep_freed_memory()
    pieces = methods()
    measure(pieces, 10)
    times = measure(pieces, options.repeats)
    rows = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
    reference = rows["KernelRidge"][1]
    lines = [
        [name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{median / reference:.2f}"]
        for name, (low, median, high) in rows.items()
    ]
    title = (
        f"{WAY}-way {SHOT}-shot, {QUERY} queries, {FEATURES} features, {torch.get_num_threads()} threads; "
        f"aims: {MOST_MILLISECONDS} ms, {MOST_TIMES_KERNEL_RIDGE} x KernelRidge"
    )
    print_table(["adapt and predict", "ms", "quartiles", "x KernelRidge"], lines, title)
    values: dict[str, Any] = {"milliseconds_quartiles": rows} | measure_curves(options.repeats)
    if options.photos:
        values["fit_photos_seconds"] = fit_photos()
        seconds = values["fit_photos_seconds"]
        print(f"metavrf fit on {PHOTO_CLASSES} x {PHOTOS} photos: {seconds:.1f} s (aim: {MOST_SECONDS} s)")
    if options.save:
        write_json(options.save, values | {"provenance": provenance(0)})


if __name__ == "__main__":
    main()
