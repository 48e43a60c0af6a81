"""How fast it is: measure, print, draw, save. See docs/performance.md.

    python benchmarks/bench.py [--only SECTION ...] [--rounds 11] [--save FILE] [--chart FILE] [--quick]

Imports no torch by itself, so that --help is fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from metavrf.errors import UserError
from metavrf.memory import keep_freed_memory
from metavrf.reports import check_picture, markdown_table, print_table, report
from speed.measure import SECTIONS, Bench, SectionName
from speed.quoted import AUTHORS_ACCURACY
from speed.results import Results, lead_aims
from speed.work import Work


@dataclass
class Benchmark:
    """Measure speed: each variant by turns in one run, as ratios. Wants a quiet machine; see docs/performance.md."""

    only: tuple[SectionName, ...] = SECTIONS
    """Sections to measure; none if empty."""
    rounds: int = 11
    """Rounds, in each of which every variant takes its turn."""
    threads: int = 0
    """CPU threads; 0 for PyTorch's own choice."""
    accuracy: float = 0.0
    """Also train learners for so many minutes each on Omniglot, and show accuracy against wall time."""
    learners: tuple[str, ...] = ("metavrf", "prototypical", "maml")
    """The learners of --accuracy."""
    every: float = 30.0
    """Seconds of training between validations of --accuracy."""
    save: Path | None = None
    """Write all figures with their provenance to this JSON file."""
    chart: Path | None = None
    """Draw the times to this file (.png, .pdf or .svg)."""
    curves: Path | None = None
    """Draw accuracy against wall time to this file."""
    show: tuple[Path, ...] = ()
    """Measure nothing: print (and draw) what these files hold, that were saved before."""
    markdown: bool = False
    """Print Markdown, as docs/performance.md has it."""
    json: bool = False
    """Print one JSON object instead of tables."""
    quick: bool = False
    """Tiny sizes, to see that everything runs; the figures say nothing."""

    def run(self) -> None:
        """Measure what is asked for, or read what was measured."""
        check_picture(self.chart)
        check_picture(self.curves)
        if self.rounds < 1 or self.accuracy < 0 or self.every <= 0 or self.threads < 0:
            raise UserError("give at least one round, positive times, and threads that are not negative")
        if self.accuracy and not self.learners:
            raise UserError("--accuracy needs at least one of --learners")
        found = [Results.read(path) for path in self.show] or [self.measure()]
        values = found[0].to_dict() if len(found) == 1 else {"results": [results.to_dict() for results in found]}
        if self.json:
            print(json.dumps(values))
        else:
            for results in found:
                show(results, markdown=self.markdown)
        self.draw(found)
        if not self.show:
            report(values, None, self.save, 0)

    def measure(self) -> Results:
        """The sections, then accuracy."""
        if self.chart and not self.only:
            raise UserError("there are no times to draw: give --only the sections to measure, or leave out --chart")
        work = Work.quick() if self.quick else Work()
        results = Bench(work, self.rounds, self.threads, watch).run(self.only)
        if not self.accuracy:
            return results
        import torch

        from metavrf.config import Config
        from speed.accuracy import accuracy_curves

        if self.threads:
            torch.set_num_threads(self.threads)
        configs = [Config.of("omniglot", learner) for learner in self.learners]  # each by its preset, 5-way 1-shot
        curves = accuracy_curves(configs, 60 * self.accuracy, self.every, watch)
        return replace(results, curves=curves, aims=[*results.aims, *lead_aims(curves)])

    def draw(self, found: Sequence[Results]) -> None:
        """The pictures that are asked for."""
        if self.chart:
            from speed.charts import plot_times

            sections = [section for results in found for section in results.sections]
            plot_times(sections, self.chart, "median and quartiles of each variant")
        curves = {name: points for results in found for name, points in results.curves.items()}
        if self.curves and curves:
            from speed.charts import plot_curves

            quoted = {"authors' code, test classes (quoted)": AUTHORS_ACCURACY}
            plot_curves(curves, self.curves, "Omniglot, 5-way 1-shot, validation classes, 15 queries", quoted)


def watch(section: str, done: int, total: int) -> None:
    """Say how far the measuring is."""
    print(f"{section}: {done} of {total}", file=sys.stderr, flush=True)


def show(results: Results, *, markdown: bool) -> None:
    """Every table, with what a reader must know."""
    for title, header, lines in results.tables():
        if markdown:
            print(markdown_table(title, header, lines), end="\n\n")
        else:
            print_table(header, lines, title)
    facts = results.machine
    where = f"{facts['processor']}, {facts['cpus']} CPUs, {facts['threads']} threads." if facts else ""
    remarks = [*results.remarks(), *([f"Measured on: {where}"] if where else [])]
    print("\n".join(f"- {remark}" for remark in remarks) if markdown else "\n".join(remarks))


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 2 and one sentence for what a user can mend."""
    command = tyro.cli(Benchmark, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        keep_freed_memory()
        command.run()
    except UserError as error:
        print(f"metavrf: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("metavrf: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
