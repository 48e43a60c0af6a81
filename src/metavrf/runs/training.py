"""The training loop: plain, resumable to the bit, on one process or several."""

from __future__ import annotations

import inspect
import logging
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from metavrf.config import Config, TrainingSettings
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import PathLike, load_weights
from metavrf.learners import LEARNERS
from metavrf.learners.base import Learner
from metavrf.learners.head import BAND_NODES, MixtureHead
from metavrf.learners.measuring import calibrate, calibrate_band
from metavrf.memory import keep_freed_memory
from metavrf.nn.embeddings import Embedding
from metavrf.prediction import Prediction
from metavrf.randomness import stream
from metavrf.runs.calibrating import calibrate_by_shots
from metavrf.runs.checkpoint import Position, load_checkpoint, save_checkpoint
from metavrf.runs.directory import Run
from metavrf.runs.optimizing import clip_gradients, learning_rate, make_optimizer
from metavrf.runs.progress import Progress
from metavrf.runs.provenance import provenance
from metavrf.runs.starting import start_from
from metavrf.runs.stopping import Interrupted, stop_signals
from metavrf.tasks.curves import FRAME_FILE, as_table
from metavrf.tasks.source import Tasks, open_tasks

CHECKPOINT_SECONDS = 120
TASKS_FOR_AXES = 40  # thousands of samples
TASKS_FOR_KERNELS = 200
TASKS_FOR_BAND = 500
AGREE_EVERY = 10  # steps between looks at whether another process was asked to stop or is due to save


# The option was renamed in PyTorch 2.13.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}


def train(
    task: Any = "sine",
    *,
    out: PathLike,
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Train a learner and keep the run in the directory ``out``.

    Args:
        task: a family of functions, a data set or a path; or a whole configuration (:meth:`metavrf.Config.of`). Or a
            pandas or polars frame of curves, with ``group``, ``inputs`` and ``targets`` as on the command line; the run
            keeps a copy of it.
        out: the run directory; must not hold a run already, unless ``resume``.
        resume: go on with the run in ``out``, with the settings saved there.
        quiet: show no progress.
        options: any setting by its name, such as ``shot=3, context="lstm", iterations=5000``; of a named task also
            ``learner`` and ``preset``. What is left out is as on the command line.
    """
    frame = None if isinstance(task, str | os.PathLike | Config) else as_table(task)
    if frame is not None:
        task = Path(out).absolute() / FRAME_FILE
    config = task.with_options(**options) if isinstance(task, Config) else Config.of(str(task), **options)
    first_rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0  # before Fabric knows
    run = Run.open(out) if resume else Run(out)
    if resume:
        run.refuse_if_not_resumable()
        config = run.config()
    LEARNERS[config.learner].check_tasks(config.episode, regression=config.kind == "functions")
    if frame is not None and not config.data.group:
        raise UserError("a frame holds curves: say which column tells them apart, as in group='patient'")
    tasks = open_tasks(config.validate().task, config.data, quiet=quiet or not first_rank, frame=frame)
    config = replace(config, episode=tasks.fitted(config.episode))
    tasks.training(config.episode, stream(0, "train"))  # what cannot work fails before anything is written
    tasks.held_out("val", 2, config.episode, stream(0, "validation"))
    learner = config.build(tasks.spec)
    begun = config.training.start_from and not resume
    start = start_from(config.training.start_from, learner, tasks.spec) if begun else None
    if isinstance(learner.embedding, Embedding):
        learner.embedding.mixed = config.training.precision == "bf16-mixed"
    accelerator(config.training)
    if config.training.tensorboard:
        _summary_writer()  # not installed is said before anything is written
    if resume and run.spec() != tasks.spec:
        raise UserError(f"the data is not what {run.path} was started on: a resumed run needs the same files")
    keep_freed_memory()
    if not first_rank:
        _train(config, run, tasks, learner, quiet=quiet)
        return run
    if not resume:
        run.refuse_if_held()
        run.make_folder()
    with run.locked():
        if not resume:
            Run.create(out, config, tasks.spec, start=start, frame=frame)
        try:
            _train(config, run, tasks, learner, quiet=quiet)
        except UserError:
            if not resume and not (run.state_file.exists() or run.model_file.exists()):
                run.discard()
            raise
    return run


def _train(config: Config[Any], run: Run, tasks: Tasks, learner: Learner, *, quiet: bool) -> None:
    """The part of one process."""
    fabric = make_fabric(config.training)
    fabric.launch()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    try:
        with stop_signals() as stopped:
            Trainer(config, run, fabric, tasks, learner, stopped=stopped, quiet=quiet).run_to_end()
    except RuntimeError as error:
        if fabric.world_size > 1 and any(engine in str(error).lower() for engine in ("gloo", "nccl")):
            raise UserError("another process of this run has failed, so this one stops too") from error
        raise
    except TypeError as error:
        if fabric.device.type == "mps" and "float64" in str(error):
            raise UserError(
                f"the learner {config.learner} needs double precision, which mps does not have: give --accelerator cpu"
            ) from error
        raise


def make_fabric(settings: TrainingSettings) -> Fabric:
    """Lightning Fabric for this many processes, or for those torchrun has started."""
    devices = _devices(settings)
    nodes = int(os.environ.get("WORLD_SIZE", devices)) // devices
    if nodes == 1 and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no network, and may have none
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Each rank carries its own context state, so buffers are not broadcast.
    strategy = DDPStrategy(**_OWN_BUFFERS) if devices * nodes > 1 else "auto"
    return Fabric(accelerator=accelerator(settings), devices=devices, num_nodes=nodes, strategy=strategy)


def accelerator(settings: TrainingSettings) -> str:
    """Where to train: what is asked for, if this machine has enough of it."""
    devices = _devices(settings)
    there = {"cpu": devices, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    chosen = settings.accelerator
    if chosen == "auto":  # not mps, which has no double precision
        chosen = "cuda" if there["cuda"] >= devices else "cpu"
    if there[chosen] < devices:
        raise UserError(
            f"accelerator = {chosen!r} needs {devices} of them, and PyTorch finds {there[chosen]} here: "
            "give --accelerator cpu, or fewer --devices"
        )
    return chosen


def _devices(settings: TrainingSettings) -> int:
    """Processes on this machine; torchrun decides, where it is used."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))


class Trainer:
    """One run in memory: learner, optimiser and where they are; ``run_to_end`` is the loop."""

    def __init__(
        self,
        config: Config[Any],
        run: Run,
        fabric: Fabric,
        tasks: Tasks,
        learner: Learner,
        *,
        stopped: list[int],
        quiet: bool,
    ) -> None:
        self.config, self.run, self.fabric, self.stopped = config, run, fabric, stopped
        self.quiet = quiet or fabric.global_rank > 0
        self.tasks = tasks
        self.learner = learner
        self.at, self.seed = Position(), config.training.seed
        self.resumed = any(file.exists() for file in run.checkpoints)
        if not self.resumed:
            with self._seeded_dropout():
                self.learner.initialise(self._first_tasks())
        fabric.to_device(self.learner)  # what was set from tasks, was set on the CPU: the same on every device
        self.optimizer = make_optimizer(config.training, self.learner)
        self.parameters = list(self.learner.parameters())  # to walk through the modules takes a share of a small step
        weights = None
        if self.resumed:
            self.at, weights = load_checkpoint(
                run, learner, self.optimizer, rank=fabric.global_rank, ranks=fabric.world_size
            )
        self.wrapped, self.wrapped_optimizer = fabric.setup(self.learner, self.optimizer)
        # What the wrapper does is for several processes; it takes a tenth of a small step.
        self.forward: Callable[..., Prediction] = self.wrapped if fabric.world_size > 1 else self.learner
        if weights is not None:  # after the set-up, which copies the first process' buffers to all
            self.learner.load_state_dict(weights)

    def run_to_end(self) -> None:
        """Train until the last step, an early stop or a signal."""
        settings = self.config.training
        validation = self.tasks.groups(
            "val", settings.validate_tasks, self.config.episode, stream(settings.seed, "validation")
        )
        if self.fabric.global_rank == 0:
            self.run.rewind_metrics(self.at.step)
        board = _tensorboard(self.run, self.at.step) if settings.tensorboard and self.fabric.global_rank == 0 else None
        began, saved = time.monotonic() - self.at.seconds, time.monotonic()
        cpu_began = time.process_time() - self.at.cpu_seconds
        context = f" {self.config.model.context}" if hasattr(self.config.model, "context") else ""
        label = f"{self.config.task} {self.config.episode.shot}-shot {self.config.learner}{context}"
        figures: dict[str, float] = {}
        with Progress(label, settings.iterations, self.at.step, quiet=self.quiet) as progress:
            while self.at.step < settings.iterations and not self.out_of_patience:
                terms = self.train_step()
                self.at.seconds, self.at.cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
                validating = self.at.step % settings.validate_every == 0 or self.at.step == settings.iterations
                if validating:
                    record = self._validate(validation, terms) if self.fabric.global_rank == 0 else {}
                    if board is not None:
                        for name, value in record.items():
                            board.add_scalar(name, value, self.at.step)
                    figures = {name: value for name, value in record.items() if name in ("val_mse", "val_accuracy")}
                    self.at.best_step = self.fabric.broadcast(self.at.best_step)  # only the first process validates
                    progress.update(self.at.step, _floats(terms) | figures, milestone=True)
                elif self.at.step % 20 == 0:
                    progress.update(self.at.step, _floats(terms) | figures)
                halt, due = self._agree(bool(self.stopped), time.monotonic() - saved > CHECKPOINT_SECONDS)
                if validating or halt or due:
                    self._save()
                    saved = time.monotonic()
                if halt and self.at.step < settings.iterations:
                    command = f"metavrf train --resume --out {shlex.quote(str(self.run.path))}"
                    message = f"stopped at step {self.at.step}; continue with: {command}"
                    raise Interrupted(message, self.stopped[0] if self.stopped else signal.SIGTERM)
        if self.fabric.global_rank == 0:
            self._finish()

    @property
    def out_of_patience(self) -> bool:
        """Whether the last ``patience`` validations brought nothing better."""
        settings = self.config.training
        return 0 < settings.patience <= (self.at.step - self.at.best_step) // settings.validate_every

    def train_step(self) -> dict[str, Tensor]:
        """One gradient step on one batch of tasks; returns the loss and its terms."""
        settings = self.config.training
        episodes = self.tasks_of(self.at.step)
        shard = episodes.share(self.fabric.global_rank, self.fabric.world_size).to(self.fabric.device)
        alone = self.fabric.world_size == 1  # then what wraps model and optimiser would only take its share of a step
        # DDP averages over processes; this weight makes it the mean over tasks even if shards differ in size.
        weight = shard.tasks * self.fabric.world_size / episodes.tasks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.at.step)
        if not self.learner.training:  # setting the mode of every layer takes a share of a small step
            self.wrapped.train()
        try:
            with self._seeded_dropout():
                prediction = self.forward(shard, stream(settings.seed, "draws", self.at.step))
            loss = prediction.loss
            assert loss is not None
            if not math.isfinite(loss.item()):
                raise UserError("the loss is not finite")
        except UserError as error:
            saved = self.run.state_file.exists()
            hint = f"the last checkpoint in {self.run.path} is kept" if saved else "there is no checkpoint yet"
            raise UserError(f"training failed at step {self.at.step}: {error}; lower --lr ({hint})") from error
        for parameter in self.parameters:  # the optimiser's own zero_grad takes a share of a small step
            parameter.grad = None
        if alone:
            loss.backward()
        else:
            self.fabric.backward(loss * weight)
        norm = clip_gradients(self.optimizer, self.parameters, settings.clip)
        # Two support points that nearly coincide can overflow a gradient: that batch teaches nothing.
        if math.isfinite(norm):
            (self.optimizer if alone else self.wrapped_optimizer).step()
        self.learner.remember(prediction)
        self.at.step += 1
        return {"loss": loss.detach(), **{name: term.detach() for name, term in prediction.terms.items()}}

    @contextmanager
    def _seeded_dropout(self) -> Iterator[None]:
        """Dropout draws from the global generator: seed it for this step, and leave it as it was."""
        state = torch.default_generator.get_state()  # torch.manual_seed would cost a millisecond
        torch.default_generator.manual_seed(stream(self.config.training.seed, "dropout", self.at.step).initial_seed())
        try:
            yield
        finally:
            torch.default_generator.set_state(state)

    def tasks_of(self, step: int) -> Episodes:
        """The training tasks of a step."""
        return self.tasks.training(self.config.episode, stream(self.config.training.seed, "train", step))

    def _first_tasks(self) -> Episodes:
        """The tasks that scales are set from: the first step's, but of middling shots, and many to find axes in.

        Of functions they are many too: kernels start where the tasks are.
        """
        shape = replace(self.config.episode, stream=1)
        if self.tasks.spec.regression and self.learner.components > 1:
            shape = replace(shape, batch=max(shape.batch, TASKS_FOR_KERNELS), train_shot=shape.train_shot or shape.shot)
        if shape.most_shot:
            middle = ((shape.train_shot or shape.shot) + shape.most_shot) // 2
            shape = replace(shape, train_shot=middle, most_shot=0)
        if self.config.embedding.project:
            shape = replace(shape, batch=max(shape.batch, TASKS_FOR_AXES))
        return self.tasks.training(shape, stream(self.config.training.seed, "train"))

    @property
    def criterion(self) -> str:
        """The figure of functions that the best model has the least of: many kernels are chosen by likelihood."""
        return "val_nll" if self.learner.components > 1 else "val_mse"

    def _validate(self, validation: Sequence[Episodes], terms: dict[str, Tensor]) -> dict[str, float]:
        """Measure on the validation tasks; keep the model if it is the best so far."""
        figures = {
            f"val_{name}": values.mean().item()
            for name, values in calibrate(self.learner, validation[0] if len(validation) == 1 else validation).items()
        }
        error = 100 - figures["val_accuracy"] if "val_accuracy" in figures else figures[self.criterion]
        if error < self.at.best:
            self.at.best, self.at.best_step = error, self.at.step
            self.run.save_model(self.learner.state_dict(), self._metadata())
        times = {"seconds": round(self.at.seconds, 2), "cpu_seconds": round(self.at.cpu_seconds, 2)}
        record = {"step": self.at.step, **times, **_floats(terms), **figures}
        self.run.append_metrics(record)
        return record

    def _agree(self, *mine: bool) -> list[bool]:
        """Which of these any process says; several processes ask each other every few steps only."""
        if self.fabric.world_size == 1:
            return list(mine)
        if self.at.step % AGREE_EVERY:
            return [False] * len(mine)
        votes = self.fabric.all_reduce(torch.tensor(mine, dtype=torch.float), reduce_op="sum")
        return [bool(vote) for vote in torch.as_tensor(votes) > 0]

    def _metadata(self) -> dict[str, Any]:
        return {"step": self.at.step, "seed": self.seed, "best": self.at.best, "best_step": self.at.best_step}

    def _save(self) -> None:
        """Write the one file that a resumed run starts from."""
        rank, ranks = self.fabric.global_rank, self.fabric.world_size
        save_checkpoint(self.run, self.learner, self.optimizer, self.at, self.seed, rank=rank, ranks=ranks)

    def _calibrate_band(self) -> None:
        """Set the 90 % band of the best model of functions by validation tasks as in training, of every size."""
        tensors, metadata = self.run.load_model()
        load_weights(self.learner, tensors, str(self.run.model_file))
        shape = self.config.episode
        sizes = range(shape.train_shot or shape.shot, (shape.most_shot or shape.train_shot or shape.shot) + 1)
        draw = stream(self.config.training.seed, "validation", 1)
        tasks = [
            self.tasks.held_out("val", TASKS_FOR_BAND, replace(shape, shot=samples), draw)
            for samples in BAND_NODES
            if samples in sizes
        ]
        calibrate_band(self.learner, tasks)
        self.run.save_model(self.learner.state_dict(), metadata)

    def _calibrate_shots(self) -> None:
        """Set the temperatures of the best model of classes, for as many shots as validation classes have samples."""
        tensors, metadata = self.run.load_model()
        load_weights(self.learner, tensors, str(self.run.model_file))
        settings = self.config.training
        most = settings.validate_tasks
        calibrate_by_shots(self.learner, self.tasks, self.config.episode, most=most, seed=settings.seed)
        self.run.save_model(self.learner.state_dict(), metadata)

    def _finish(self) -> None:
        if not self.tasks.spec.regression:
            self._calibrate_shots()
        elif isinstance(getattr(self.learner, "head", None), MixtureHead):
            self._calibrate_band()
        best = next((r for r in self.run.metrics() if r["step"] == self.at.best_step), {})
        self.run.save_result(
            {
                "task": self.config.task,
                "learner": self.config.learner,
                "protocol": self.learner.label(),
                "steps": self.at.step,
                "stopped_early": self.at.step < self.config.training.iterations,
                "best_step": self.at.best_step,
                "validation": {k: v for k, v in best.items() if k.startswith("val_")},
                "validation_tasks": self.config.training.validate_tasks,
                "parameters": sum(p.numel() for p in self.learner.parameters()),
                "train_seconds": round(self.at.seconds, 1),
                "train_cpu_seconds": round(self.at.cpu_seconds, 1),
                **({"started_from": start} if (start := self.run.start()) else {}),
                **provenance(self.config.training.seed),
            },
        )


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install 'metavrf[tensorboard]', or leave it out") from error
    return SummaryWriter


def _tensorboard(run: Run, step: int) -> Any:
    return _summary_writer()(str(run.path / "tensorboard"), purge_step=step + 1)


def _floats(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}
