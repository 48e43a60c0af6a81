"""Where jobs are done: in processes of this machine, on a Ray cluster, or by Slurm.

An executor begins jobs and tells which have ended; :func:`metavrf.studies.work.run_jobs` decides what is begun, and
takes up again what died. Machines share the folder of the study: a job is a configuration as text, and paths.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from metavrf.errors import UserError
from metavrf.studies.work import DIED, LOOK_EVERY, Order, Prepare, attempt

On = Literal["local", "ray", "slurm"]


class Executor(Protocol):
    """Does jobs somewhere."""

    def begin(self, order: Order) -> Any:
        """Begin a job; returns what stands for it."""

    def ended(self, begun: Sequence[Any]) -> list[tuple[Any, str]]:
        """Those that have ended, each with what went wrong, or nothing; waits a moment for one."""

    def close(self, begun: Sequence[Any]) -> None:
        """Ask those that are not done to stop, which save where they are; wait for them, and leave."""


def executor(on: str, at_once: int, folder: Path, prepare: Prepare | None = None) -> Executor:
    """The executor of that name; ``prepare`` is called in each of its processes first."""
    if on == "local":
        return Local(prepare)
    try:
        if on == "ray":
            from metavrf.studies.on_ray import OnRay

            return OnRay(at_once, prepare)
        if on == "slurm":
            from metavrf.studies.on_slurm import OnSlurm

            return OnSlurm(folder, prepare)
    except ImportError as error:
        raise UserError(f"--on {on} needs the extra {on!r}: pip install 'metavrf[{on}]'") from error
    raise UserError(f"on = {on!r} is not a choice: give local, ray or slurm")


def own_variables() -> dict[str, str]:
    """The settings of metavrf in the environment, which go with a job to another machine."""
    return {name: value for name, value in os.environ.items() if name.startswith("METAVRF_")}


def attempt_elsewhere(order: Order, prepare: Prepare | None, variables: dict[str, str]) -> str:
    """:func:`attempt` on another machine."""
    os.environ.update(variables)
    return attempt(order, prepare)


class Local:
    """Processes of this machine, each of one thread."""

    def __init__(self, prepare: Prepare | None = None) -> None:
        self._prepare = prepare
        self._server = multiprocessing.get_context("forkserver")  # it imports torch once
        self._server.set_forkserver_preload([__name__])
        self._answers: dict[Any, Any] = {}

    def begin(self, order: Order) -> Any:
        """A process that does the job."""
        receive, send = self._server.Pipe(duplex=False)
        process = self._server.Process(target=_work, args=(order, send, self._prepare, dict(os.environ)))
        process.start()
        send.close()
        self._answers[process] = receive
        return process

    def ended(self, begun: Sequence[Any]) -> list[tuple[Any, str]]:
        """Processes that have ended."""
        there = multiprocessing.connection.wait([process.sentinel for process in begun], LOOK_EVERY)
        return [(process, self._answer(process)) for process in begun if process.sentinel in there]

    def _answer(self, process: Any) -> str:
        process.join()
        try:
            answer = str(self._answers.pop(process).recv())
        except EOFError:  # it was killed, or fell over
            answer = ""
        if answer or process.exitcode == 0:
            return answer
        return DIED if process.exitcode < 0 else f"it ended with {process.exitcode}"

    def close(self, begun: Sequence[Any]) -> None:
        """Ask the processes to stop, and wait for them."""
        for process in begun:
            process.terminate()
        for process in begun:
            process.join()


def _work(order: Order, send: Any, prepare: Callable[[], None] | None, environment: dict[str, str]) -> None:
    """One job in its own process."""
    os.environ.update(environment)  # the server may have been started under another
    os.setpgrp()  # Ctrl-C is for the first process, which asks this one to stop
    threading.Thread(target=_die_with_parent, daemon=True).start()
    send.send(attempt(order, prepare))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a training saves where it is
