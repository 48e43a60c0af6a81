"""How long a user waits: adapting to a 5-way 5-shot task and predicting 75 queries; a whole 'metavrf fit' on photos.

    python benchmarks/adapt.py [--repeats 200] [--photos] [--save FILE]

On 256 features, beside scikit-learn's KernelRidge on the same ones. The methods are timed in turn, round after round,
so that noise hits all alike. ``--photos`` adds 'metavrf fit' on 10 classes of 10 photographs in a process of its own,
its start included; it needs the extra 'deep'.
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

from metavrf import MetaVRFClassifier
from metavrf.memory import keep_freed_memory
from metavrf.provenance import provenance
from metavrf.reports import print_table
from metavrf.run import write_json

WAY, SHOT, QUERY, FEATURES = 5, 5, 75, 256
MOST_MILLISECONDS, MOST_TIMES_KERNEL_RIDGE, MOST_SECONDS = 5, 2, 20
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
    values: dict[str, Any] = {"milliseconds_quartiles": rows}
    if options.photos:
        values["fit_photos_seconds"] = fit_photos()
        seconds = values["fit_photos_seconds"]
        print(f"metavrf fit on {PHOTO_CLASSES} x {PHOTOS} photos: {seconds:.1f} s (aim: {MOST_SECONDS} s)")
    if options.save:
        write_json(options.save, values | {"provenance": provenance(0)})


if __name__ == "__main__":
    main()
