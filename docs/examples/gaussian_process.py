"""Fit a Gaussian process to each test task of the family ringing, to set beside a model trained on that family.

    python docs/examples/gaussian_process.py results/own-family-gaussian-process.json

The tasks are those of ``metavrf evaluate RUN --shot 10 --tasks 1000``. For each, scikit-learn maximises the likelihood
of two processes, RBF and RBF times periodic, and the likelier one answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from metavrf.studies.processes import fitted_process

from metavrf.commands.plugins import load_plugins
from metavrf.files import write_json
from metavrf.runs.provenance import provenance
from metavrf.testing.settings import TEST_SEED

SHOT, TASKS = 10, 1000

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file to write: python docs/examples/gaussian_process.py OUT.json")
    torch.set_num_threads(1)
    load_plugins([Path(__file__).with_name("ringing.py")])
    figures = fitted_process("ringing", SHOT, TASKS)
    write_json(Path(sys.argv[1]), {"family": "ringing", **figures, "provenance": provenance(TEST_SEED)})
    print(f"mean squared error {figures['mean']:.4g} ± {figures['ci95']:.2g}")
