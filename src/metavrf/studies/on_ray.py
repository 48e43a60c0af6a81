"""Jobs on a Ray cluster: that of RAY_ADDRESS, or one that is started on this machine. Needs the extra 'ray'."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray

from metavrf.errors import UserError
from metavrf.studies.executors import attempt_elsewhere, own_variables
from metavrf.studies.work import DIED, LOOK_EVERY, Order, Prepare

SECONDS_TO_SAVE = 60
_GONE = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)


class OnRay:
    """Each job is a task of Ray on one CPU."""

    def __init__(self, at_once: int, prepare: Prepare | None = None) -> None:
        address = os.environ.get("RAY_ADDRESS", "local")
        own = {"num_cpus": at_once, "include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"cannot reach a Ray cluster at {address} ({reason}): see RAY_ADDRESS") from error
        # Tasks are not retried by Ray: whoever begins them says that they died, and takes them up again.
        self._task = ray.remote(num_cpus=1, max_retries=0)(attempt_elsewhere)
        self._common = (prepare, own_variables())

    def begin(self, order: Order) -> Any:
        """A task."""
        return self._task.remote(order, *self._common)

    def ended(self, begun: Sequence[Any]) -> list[tuple[Any, str]]:
        """Tasks that have ended."""
        there, _ = ray.wait(list(begun), num_returns=len(begun), timeout=LOOK_EVERY) if begun else ([], [])
        return [(task, self._answer(task)) for task in there]

    def _answer(self, task: Any) -> str:
        try:
            return str(ray.get(task))
        except _GONE:
            return DIED
        except ray.exceptions.RayError as error:
            return " ".join(str(error).split()[-40:])  # the end of a traceback

    def close(self, begun: Sequence[Any]) -> None:
        """Interrupt the tasks, which save, and leave the cluster."""
        for task in begun:
            ray.cancel(task)
        if begun:
            ray.wait(list(begun), num_returns=len(begun), timeout=SECONDS_TO_SAVE)
        ray.shutdown()
