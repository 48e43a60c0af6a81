"""Jobs of a Slurm cluster, submitted by submitit. Needs the extra 'slurm'.

submitit keeps what it submits, and what comes back, in files of its own, which are pickles: they are in a folder that
only its owner may enter.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError
from submitit.helpers import DelayedSubmission

from metavrf.errors import UserError
from metavrf.studies.executors import attempt_elsewhere, own_variables
from metavrf.studies.work import DIED, LOOK_EVERY, Order, Prepare

MINUTES = 24 * 60  # of a job; one that is not done by then is queued again
SECONDS_TO_SAVE = 60


class Attempt:
    """A job as submitit takes it: out of time or preempted, it is queued again, and goes on where it was."""

    def __call__(self, order: Order, prepare: Prepare | None, variables: dict[str, str]) -> str:
        """Do it."""
        return attempt_elsewhere(order, prepare, variables)

    def checkpoint(self, *arguments: Any) -> DelayedSubmission:
        """What to queue: the same again."""
        return DelayedSubmission(self, *arguments)


class OnSlurm:
    """Each job is a job of Slurm on one CPU. ``cluster`` is another of submitit's, for tests."""

    def __init__(self, folder: Path, prepare: Prepare | None = None, cluster: str = "slurm") -> None:
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError("--on slurm finds no sbatch here: call it on a machine that submits to Slurm")
        folder = folder.absolute() / "slurm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._engine = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        self._engine.update_parameters(name="metavrf", cpus_per_task=1, timeout_min=MINUTES)
        self._common = (prepare, own_variables())

    def begin(self, order: Order) -> Any:
        """A job in the queue."""
        try:
            return self._engine.submit(Attempt(), order, *self._common)
        except FailedSubmissionError as error:
            raise UserError(f"Slurm did not take the job ({' '.join(str(error).split())})") from error

    def ended(self, begun: Sequence[Any]) -> list[tuple[Any, str]]:
        """Jobs that have ended."""
        there = [job for job in begun if job.done()]
        if not there:
            time.sleep(LOOK_EVERY)
        return [(job, self._answer(job)) for job in there]

    def _answer(self, job: Any) -> str:
        try:
            return str(job.result())
        except FailedJobError as error:
            return " ".join(str(error).split()[-40:])  # the end of a traceback
        except UncompletedJobError:
            return DIED

    def close(self, begun: Sequence[Any]) -> None:
        """Cancel the jobs: Slurm sends SIGTERM first, and a training saves where it is."""
        for job in begun:
            job.cancel(check=False)
        end = time.monotonic() + SECONDS_TO_SAVE
        while time.monotonic() < end and not all(job.done() for job in begun):
            time.sleep(LOOK_EVERY)
