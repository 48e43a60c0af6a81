"""The commands that pass something on: features of a data set, a packed model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from metavrf.commands.plugins import Plugins
from metavrf.reports import show
from metavrf.settings import DataSettings, Views
from metavrf.testing.settings import EvalSettings


@dataclass
class Embed(Plugins):
    """Write the features of a data set to a file that 'metavrf train' takes as its data."""

    task: Positional[str]
    """A named data set, a Parquet file or a folder of class folders."""
    out: Path
    """The feature file to write (.safetensors)."""
    by: str = "efficientnet-lite0"
    """What embeds: efficientnet-lite0 (needs the extra 'deep'), a run, or FILE.py:NAME of a torch module of yours."""
    resolution: int = 160
    """Side to which efficientnet-lite0 resizes the pictures."""
    settings: OmitArgPrefixes[DataSettings] = field(default_factory=DataSettings)

    def run(self) -> None:
        """Embed, and say what to do with the file."""
        self.load_plugins()
        from metavrf.features import write_features

        shape, spec = write_features(self.task, self.by, self.out, self.settings, resolution=self.resolution)
        label = f" ({spec.pretraining}-pretrained)" if spec.pretraining else ""
        show(f"{shape[0]} samples, {shape[1]} features{label}: metavrf train {self.out} --out RUN")


@dataclass
class Pack(Plugins):
    """Make a small copy of a finished run to pass on, tested and with a card: the layout of the Hugging Face hub."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training."""
    out: Path
    """Folder for the packed model."""
    ways: tuple[int, ...] = (5, 20)
    """Ways to test a model of classes at."""
    shots: tuple[int, ...] = ()
    """Shots to test it at; by default 1 and 5 of classes, 2, 3, 5, 10 and 20 of functions."""
    views: tuple[Views, ...] = ("one",)
    """Views of a picture to test a model of classes with, as of 'metavrf evaluate'."""
    tasks: Annotated[int | None, arg(aliases=["--episodes"], metavar="INT")] = None
    """Number of test tasks (episodes); by default 4,000 of functions, 3,000 of classes."""
    transductive_ways: tuple[int, ...] = (5,)
    """Ways to test the transductive protocol at too, which takes long at many."""
    transductive_tasks: Annotated[int, arg(aliases=["--transductive-episodes"])] = 600
    """Test tasks of the transductive protocol."""
    calibrate: bool = False
    """Fit the probabilities of a model of classes anew on validation classes, for each number of shots: for models of
    earlier versions, which have one temperature for all shots."""

    def run(self) -> None:
        """Pack, and print the card."""
        self.load_plugins()
        from metavrf.model import load
        from metavrf.release.pack import CLASS_SHOTS, FUNCTION_SHOTS, save_pretrained

        model = load(self.run_directory)
        functions = model.spec.regression
        shots = self.shots or (FUNCTION_SHOTS if functions else CLASS_SHOTS)
        if functions:
            tests = [EvalSettings(shot=shot, tasks=self.tasks, adaptivity=True) for shot in shots]
        else:
            settings = [(way, shot) for way in self.ways for shot in shots]
            tests = [
                EvalSettings(way=way, shot=shot, tasks=self.tasks, views=views, adaptivity=views == "one")
                for views in self.views
                for way, shot in settings
            ]
            tests += [
                EvalSettings(way=way, shot=shot, tasks=self.transductive_tasks, protocol="transductive")
                for way, shot in settings
                if way in self.transductive_ways
            ]
        show((save_pretrained(model, self.out, tests, calibrate=self.calibrate) / "README.md").read_text())
