"""The commands that pass something on: features of a data set, a packed model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from metavrf.config import DataSettings, Views


@dataclass
class Embed:
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
        from metavrf.features import write_features

        shape, description = write_features(self.task, self.by, self.out, self.settings, resolution=self.resolution)
        label = f" ({description.pretraining}-pretrained)" if description.pretraining else ""
        print(f"{shape[0]} samples, {shape[1]} features{label}: metavrf train {self.out} --out RUN")


@dataclass
class Pack:
    """Make a small copy of a finished run to pass on, tested and with a card: the layout of the Hugging Face hub."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training."""
    out: Path
    """Folder for the packed model."""
    ways: tuple[int, ...] = (5, 20)
    """Ways to test a model of classes at."""
    shots: tuple[int, ...] = ()
    """Shots to test it at; by default 1 and 5 of classes, 2, 3, 5, 10 and 20 of functions."""
    tasks: Annotated[int | None, arg(aliases=["--episodes"])] = None
    """Number of test tasks (episodes); 4,000 of functions, 3,000 of classes."""
    views: tuple[Views, ...] = ("one",)
    """Views of a picture to test a model of classes with, as of 'metavrf evaluate'."""
    transductive_ways: tuple[int, ...] = (5,)
    """Ways to test the transductive protocol at too, which takes long at many."""
    transductive_tasks: Annotated[int, arg(aliases=["--transductive-episodes"])] = 600
    """Test tasks of the transductive protocol."""
    transductive_shares: tuple[float, ...] = (1.0,)
    """Weights of the episode's statistics to test it at, beside running ones."""

    def run(self) -> None:
        """Pack, and print the card."""
        from metavrf.pack import save_pretrained

        folder = save_pretrained(
            self.run_directory,
            self.out,
            ways=self.ways,
            shots=self.shots,
            tasks=self.tasks,
            views=self.views,
            transductive_ways=self.transductive_ways,
            transductive_tasks=self.transductive_tasks,
            transductive_shares=self.transductive_shares,
        )
        print((folder / "README.md").read_text())
