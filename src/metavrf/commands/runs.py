"""The commands on runs: evaluate, compare, info."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from metavrf.commands.plugins import Plugins
from metavrf.reports import check_picture, comparison_table, number, print_rows, print_table, report, row_dict, show
from metavrf.testing.settings import EvalSettings

RUN = arg(metavar="RUN")
_DEFAULT = EvalSettings()


@dataclass(kw_only=True)
class TestCommand(Plugins):
    """What evaluate and compare have in common."""

    settings: OmitArgPrefixes[EvalSettings] = _DEFAULT
    plot: Annotated[Path | None, arg(metavar="PATH")] = None
    """Draw a few tasks to this file (.png, .pdf or .svg)."""
    save: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the figures with their provenance to this JSON file."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass
class Evaluate(TestCommand):
    """Test a run on tasks that are fixed by a seed."""

    run_directory: Annotated[Positional[Path], RUN]
    """The --out of a training, a model that comes with the package (omniglot, sine, photos), or hf://owner/name."""

    def run(self) -> None:
        """Evaluate, print, draw, save."""
        self.load_plugins()
        from metavrf.reports import draw_figure
        from metavrf.testing.evaluate import evaluate, open_model

        check_picture(self.plot)
        model = open_model(self.run_directory, self.settings)
        redrawn = dataclasses.replace(self.settings, bases=None, samples=None, draw=None)  # the model has them now
        results = [evaluate(model, settings) for settings in redrawn.each()]
        if self.plot:
            draw_figure({str(self.run_directory): model}, results[0], self.plot, self.settings)
        if len(results) == 1:
            report(results[0].to_dict(), self.json, self.save, self.settings.seed, [model])
            return
        values = {result.protocol: result.to_dict() for result in results}
        report(values, self.json or None, self.save, self.settings.seed, [model])
        if not self.json:
            names = dict.fromkeys(name for value in values.values() for name in value if name != "data_sha256")
            lines = [[name, *(number(value.get(name, "")) for value in values.values())] for name in names]
            print_table(["", *values], lines)


@dataclass
class Compare(TestCommand):
    """Test runs on the same tasks, with paired differences to the first and the limits no learner can beat."""

    runs: Annotated[Positional[list[Path]], RUN]
    """Two runs or more."""
    floor: bool = True
    """Show the limits too."""
    chart: Annotated[Path | None, arg(metavar="PATH")] = None
    """Draw the figures with their intervals to this file (.png, .pdf or .svg)."""
    markdown: bool = False
    """Print the table as Markdown."""

    def run(self) -> None:
        """Compare, print, draw, save."""
        self.load_plugins()
        from metavrf.reports import draw_figure
        from metavrf.testing.compare import compare
        from metavrf.testing.evaluate import open_model

        check_picture(self.plot)
        check_picture(self.chart)
        models = {str(path): open_model(path, self.settings) for path in self.runs}
        redrawn = dataclasses.replace(self.settings, bases=None, samples=None, draw=None)
        rows = compare([models[str(path)] for path in self.runs], redrawn, floor=self.floor)
        if self.plot:
            draw_figure(models, rows[0].evaluation, self.plot, self.settings)
        if self.chart:
            from metavrf.plots import plot_comparison

            plot_comparison(rows, self.chart, comparison_table(rows)[0].partition(";")[0])
        if not self.json:
            print_rows(rows, markdown=self.markdown)
        values = {"rows": [row_dict(row) for row in rows]}
        report(values, self.json or None, self.save, self.settings.seed, list(models.values()))


@dataclass
class Info(Plugins):
    """Say what a run is: settings, progress, result."""

    run_directory: Annotated[Positional[Path], RUN]
    """The --out of a training, a model that comes with the package (omniglot, sine, photos), or hf://owner/name."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Print settings and result, and a packed model's card."""
        self.load_plugins()
        from metavrf.manifest import check_all
        from metavrf.runs.directory import Run

        run = Run.open(self.run_directory)
        check_all(run.path)
        config, metrics, result = run.config(), run.metrics(), run.result()
        values = {
            "run": str(run.path),
            "finished": result is not None,
            "step": result["steps"] if result else run.step(),
            "iterations": config.training.iterations,
            "config": dataclasses.asdict(config),
            "last_validation": metrics[-1] if metrics else None,
            "result": result,
            "card": run.card(),
        }
        if self.json:
            print(json.dumps(values))
            return
        if values["card"]:
            from metavrf.release.pack import card_text

            show(card_text(run))
        show(f"# {run.path}: step {values['step']} of {values['iterations']}")
        if result is None:
            show(f"# not finished; continue with: metavrf train --resume --out {run.path}")
        show(config.to_toml())
        print(json.dumps(result or values["last_validation"], indent=2))
