"""The classifier without a model on features of a network, beside what else one would take for them.

    python benchmarks/rows_features.py --classes val        # what settings are chosen by
    python benchmarks/rows_features.py --classes test [--episodes 200] [--save results/rows-features.json]
    python benchmarks/rows_features.py --classes test --only CIFAR-FS --shots 5 ...     # the others stay in the file

EfficientNet-Lite0 features of some pictures per class of miniImageNet and CIFAR-FS, as they are; 5-way episodes of 1,
5 and 8 shots with 15 queries per class. Beside MetaVRFClassifier(): scikit-learn's logistic regression with C = 1, 100
and by cross-validation, linear SVM, and nearest class mean, which have features of length 1. SVM and nearest mean have
no probabilities of their own: theirs are softmaxed decision values, and softmaxed negative squared distances. Features
are kept in a folder, so that a second run is quick.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from metavrf import MetaVRFClassifier
from metavrf.features import embedder
from metavrf.files import write_json
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance

WAY, QUERY, SHOTS, SEED = 5, 15, (1, 5, 8), 2020
FILES = {
    "miniImageNet": {"val": "miniimagenet-val", "test": "miniimagenet-test"},
    "CIFAR-FS": {"val": "cifar100-test", "test": "cifar100-test"},
}
OURS = "MetaVRFClassifier()"
Floats = NDArray[np.float64]


def pictures(source: str, classes: str, count: int) -> dict[int, list[Image.Image]]:
    """The first ``count`` pictures of each class."""
    folder = Path(os.environ.get("METAVRF_DATA", "data"))
    table = pq.read_table(folder / f"{FILES[source][classes]}.parquet")
    labels = table["label"].to_numpy()
    wanted = set(np.unique(labels).tolist())
    if source == "CIFAR-FS":
        described = json.loads(table.schema.metadata[b"huggingface"])
        names = described["info"]["features"]["label"]["names"]
        ours = json.loads((folder / "cifar_fs_splits.json").read_text())["cifar_fs"][classes]
        wanted = {names.index(name) for name in ours}
    found = {}
    for label in sorted(wanted):
        rows = table["image"].take(np.nonzero(labels == label)[0][:count]).to_pylist()
        found[label] = [Image.open(io.BytesIO(row["bytes"])).convert("RGB") for row in rows]
    return found


def features(source: str, classes: str, count: int, resolution: int, cache: Path) -> torch.Tensor:
    """``[classes, count, 1280]``."""
    file = cache / f"{source}-{classes}-{count}-{resolution}.safetensors"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        network, _ = embedder("efficientnet-lite0", resolution)
        rows = []
        for some in pictures(source, classes, count).values():
            pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in some]))
            with torch.no_grad():
                rows.append(network(pixels.permute(0, 3, 1, 2).contiguous()))
        save_file({"features": torch.stack(rows)}, file)
    return load_file(file)["features"]


def answered(method: str, x: Floats, y: NDArray[Any], new: Floats) -> Floats:
    """Probabilities ``[N, classes]`` of one method."""
    if method == OURS:
        return np.asarray(MetaVRFClassifier().fit(x, y).predict_proba(new))
    x, new = normalize(x), normalize(new)
    if method == "nearest class mean":
        return softmax(-np.square(new[:, None] - NearestCentroid().fit(x, y).centroids_).sum(-1))
    if method == "linear SVM":
        return softmax(LinearSVC().fit(x, y).decision_function(new))
    span = np.linalg.qr(x.T)[0]  # the penalty is a length: nothing but the time changes
    x, new = x @ span, new @ span
    folds = min(3, int(np.bincount(y).min()))
    if method.endswith("CV") and folds > 1:
        return np.asarray(LogisticRegressionCV(Cs=8, cv=folds, max_iter=300).fit(x, y).predict_proba(new))
    c = 100.0 if method.endswith("100") else 1.0  # one sample per class cannot be divided
    return np.asarray(LogisticRegression(C=c, max_iter=300).fit(x, y).predict_proba(new))


METHODS = (
    OURS,
    "logistic regression, C = 1",
    "logistic regression, C = 100",
    "logistic regression, CV",
    "linear SVM",
    "nearest class mean",
)


def softmax(values: Floats) -> Floats:
    """Of the last axis."""
    found = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(found / found.sum(-1, keepdims=True))


def measured(bank: torch.Tensor, shot: int, episodes: int, methods: tuple[str, ...]) -> dict[str, Any]:
    """Mean accuracy and nll of each method, with the standard error of each, and of its difference to ours."""
    rows = bank.double().numpy()
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
    y, target = np.repeat(np.arange(WAY), shot), np.repeat(np.arange(WAY), QUERY)
    for episode in range(episodes):
        random = np.random.default_rng([SEED, shot, episode])
        classes = random.permutation(len(rows))[:WAY]
        order = np.stack([random.permutation(rows.shape[1])[: shot + QUERY] for _ in classes])
        chosen = rows[classes[:, None], order]
        x, new = chosen[:, :shot].reshape(-1, rows.shape[2]), chosen[:, shot:].reshape(-1, rows.shape[2])
        for method in methods:
            answer = answered(method, x, y, new).clip(1e-4)
            nll = log_loss(target, answer / answer.sum(1, keepdims=True))
            found[method].append((float(np.mean(answer.argmax(1) == target)), float(nll)))
    result = {}
    for method, values in found.items():
        mean, error = np.mean(values, 0), np.std(values, 0, ddof=1) / episodes**0.5
        result[method] = {"accuracy": mean[0], "nll": mean[1], "standard errors": error.tolist()}
        if method != OURS and OURS in found:
            gap = np.subtract(values, found[OURS])
            error = gap.std(0, ddof=1) / episodes**0.5
            result[method]["less ours"] = {"accuracy": gap.mean(0)[0], "nll": gap.mean(0)[1]}
            result[method]["less ours"]["standard errors"] = error.tolist()
    return result


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", choices=("val", "test"), default="val")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--only", choices=list(FILES), nargs="+", default=list(FILES))
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS)
    parser.add_argument("--pictures", type=int, default=60, help="of each class")
    parser.add_argument("--resolution", type=int, default=112)
    parser.add_argument("--cache", type=Path, default=Path("bench/features"))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = []
    for source in options.only:
        bank = features(source, options.classes, options.pictures, options.resolution, options.cache)
        for shot in options.shots:
            began = time.process_time(), time.perf_counter()
            found = measured(bank, shot, options.episodes, METHODS)
            seconds = time.process_time() - began[0], time.perf_counter() - began[1]
            lines += [
                [source, str(shot), method, f"{100 * of['accuracy']:.1f}", f"{of['nll']:.3f}"]
                for method, of in found.items()
            ]
            if options.save:
                keep(options, f"{source}, {shot}", found, seconds)
    print_table(["features of", "shots", "method", "accuracy", "nll"], lines)


def keep(options: argparse.Namespace, name: str, found: dict[str, Any], seconds: tuple[float, float]) -> None:
    """Write figures into the file; those of the same protocol that it has already stay."""
    protocol = {"classes": options.classes, "episodes": options.episodes, "way": WAY, "query": QUERY}
    protocol |= {"pictures": options.pictures, "resolution": options.resolution}
    values: dict[str, Any] = {"protocol": protocol, "figures": {}, "runs": {}}
    if options.save.exists() and (before := json.loads(options.save.read_text()))["protocol"] == protocol:
        values |= before
    values["figures"][name] = found
    cpu, wall = (round(value, 1) for value in seconds)
    values["runs"][name] = {"cpu_seconds": cpu, "wall_seconds": wall, "provenance": provenance(SEED)}
    order = [f"{source}, {shot}" for source in FILES for shot in SHOTS]
    for part in ("figures", "runs"):
        values[part] = {key: values[part][key] for key in order if key in values[part]}
    write_json(options.save, values)


if __name__ == "__main__":
    main()
