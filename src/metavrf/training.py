"""The training loop: plain, resumable to the bit, on one process or several."""

from __future__ import annotations

import inspect
import logging
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from metavrf.api import describe
from metavrf.config import Config, TrainingSettings
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.evaluation import calibrate, calibrate_band
from metavrf.learners import build, learner_class
from metavrf.learners.base import Learner
from metavrf.learners.head import BAND_NODES, MixtureHead
from metavrf.memory import keep_freed_memory
from metavrf.prediction import Prediction
from metavrf.presets import preset
from metavrf.progress import Progress
from metavrf.provenance import provenance
from metavrf.randomness import stream
from metavrf.run import Run, load_weights, read_tensors, write_json
from metavrf.stopping import Interrupted, stop_signals
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
    task: str | Config = "sine",
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Train a learner and keep the run in the directory ``out``.

    Args:
        task: name of a task family, or a whole configuration.
        out: the run directory; must not hold a run already, unless ``resume``.
        resume: go on with the run in ``out``, with the settings saved there.
        quiet: show no progress.
        options: any setting by its name, such as ``shot=3, context="lstm", iterations=5000``.
    """
    if isinstance(task, Config):
        config = task.with_options(**options)
    else:
        asked = options.pop("learner", "metavrf"), options.pop("preset", "default"), options.get("context")
        start = preset(task, *asked)
        config = start.with_options(**options)
    first_rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0  # before Fabric knows
    run = Run.open(out) if resume else Run(out)
    if resume:
        config = run.config()
    learner_class(config.learner)  # an unknown one is refused before data is read
    tasks = open_tasks(config.validate().task, config.data, quiet=quiet or not first_rank)
    tasks.training(config.episode, stream(0, "train"))  # what cannot work fails before anything is written
    tasks.held_out("val", 2, config.episode, stream(0, "validation"))
    learner = build(config, tasks.description)
    data = None if tasks.description.targets else tasks.description.to_dict()
    if resume and describe(run) != tasks.description:
        raise UserError(f"the data is not what {run.path} was started on: a resumed run needs the same files")
    if not resume and first_rank:
        run = Run.create(out, config, data)
    keep_freed_memory()
    fabric = make_fabric(config.training)
    fabric.launch()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    try:
        with stop_signals() as stopped:
            Trainer(config, run, fabric, tasks, learner, stopped=stopped, quiet=quiet).run_to_end()
    except RuntimeError as error:
        if fabric.world_size > 1 and "gloo" in str(error):
            raise UserError("another process of this run has failed, so this one stops too") from error
        raise
    return run


def make_fabric(settings: TrainingSettings) -> Fabric:
    """Lightning Fabric for this many processes, or for those torchrun has started."""
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))  # torchrun decides, where it is used
    nodes = int(os.environ.get("WORLD_SIZE", devices)) // devices
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Each rank carries its own context state, so buffers are not broadcast.
    strategy = DDPStrategy(**_OWN_BUFFERS) if devices * nodes > 1 else "auto"
    # Tasks are drawn and tested on the CPU, so that is where the learner stays, whatever else the machine has.
    return Fabric(accelerator="cpu", devices=devices, num_nodes=nodes, strategy=strategy)


class Trainer:
    """One run in memory: learner, optimiser and where they are; ``run_to_end`` is the loop."""

    def __init__(
        self,
        config: Config,
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
        self.step, self.best, self.best_step, self.seconds = 0, math.inf, 0, 0.0
        self.cpu_seconds = 0.0  # of this process: unlike the wall clock, no other work on the machine adds to it
        self.resumed = run.state_file.exists()
        if not self.resumed:
            with self._seeded_dropout():
                self.learner.initialise(self._first_tasks())
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=config.training.lr, fused=True)
        weights = self._load() if self.resumed else None
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
            self.run.rewind_metrics(self.step)
        board = _tensorboard(self.run, self.step) if settings.tensorboard and self.fabric.global_rank == 0 else None
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        cpu_began = time.process_time() - self.cpu_seconds
        context = f" {self.config.model.context}" if self.config.learner == "metavrf" else ""
        label = f"{self.config.task} {self.config.episode.shot}-shot {self.config.learner}{context}"
        figures: dict[str, float] = {}
        with Progress(label, settings.iterations, self.step, quiet=self.quiet) as progress:
            while self.step < settings.iterations and not self.out_of_patience:
                terms = self.train_step()
                self.seconds, self.cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
                validating = self.step % settings.validate_every == 0 or self.step == settings.iterations
                if validating:
                    record = self._validate(validation, terms) if self.fabric.global_rank == 0 else {}
                    if board is not None:
                        for name, value in record.items():
                            board.add_scalar(name, value, self.step)
                    figures = {name: value for name, value in record.items() if name in ("val_mse", "val_accuracy")}
                    self.best_step = self.fabric.broadcast(self.best_step)  # only the first process validates
                    progress.update(self.step, _floats(terms) | figures, milestone=True)
                elif self.step % 20 == 0:
                    progress.update(self.step, _floats(terms) | figures)
                halt, due = self._agree(bool(self.stopped), time.monotonic() - saved > CHECKPOINT_SECONDS)
                if validating or halt or due:
                    self._save()
                    saved = time.monotonic()
                if halt and self.step < settings.iterations:
                    command = f"metavrf train --resume --out {shlex.quote(str(self.run.path))}"
                    message = f"stopped at step {self.step}; continue with: {command}"
                    raise Interrupted(message, self.stopped[0] if self.stopped else signal.SIGTERM)
        if self.fabric.global_rank == 0:
            self._finish()

    @property
    def out_of_patience(self) -> bool:
        """Whether the last ``patience`` validations brought nothing better."""
        settings = self.config.training
        return 0 < settings.patience <= (self.step - self.best_step) // settings.validate_every

    def train_step(self) -> dict[str, Tensor]:
        """One gradient step on one batch of tasks; returns the loss and its terms."""
        settings = self.config.training
        episodes = self.tasks_of(self.step)
        shard = episodes.share(self.fabric.global_rank, self.fabric.world_size)
        # DDP averages over processes; this weight makes it the mean over tasks even if shards differ in size.
        weight = shard.tasks * self.fabric.world_size / episodes.tasks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        if not self.learner.training:  # setting the mode of every layer takes a share of a small step
            self.wrapped.train()
        try:
            with self._seeded_dropout():
                prediction = self.forward(shard, stream(settings.seed, "draws", self.step))
            loss = prediction.loss
            assert loss is not None
            if not math.isfinite(loss.item()):
                raise UserError("the loss is not finite")
        except UserError as error:
            saved = self.run.state_file.exists()
            hint = f"the last checkpoint in {self.run.path} is kept" if saved else "there is no checkpoint yet"
            raise UserError(f"training failed at step {self.step}: {error}; lower --lr ({hint})") from error
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss * weight)
        norm = clip_gradients(self.learner, settings.clip)
        # Two support points that nearly coincide can overflow a gradient: that batch teaches nothing.
        if math.isfinite(norm):
            self.wrapped_optimizer.step()
        self.learner.remember(prediction)
        self.step += 1
        return {"loss": loss.detach(), **{name: term.detach() for name, term in prediction.terms.items()}}

    @contextmanager
    def _seeded_dropout(self) -> Iterator[None]:
        """Dropout draws from the global generator: seed it for this step, and leave it as it was."""
        state = torch.default_generator.get_state()  # torch.manual_seed would cost a millisecond
        torch.default_generator.manual_seed(stream(self.config.training.seed, "dropout", self.step).initial_seed())
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
        if self.tasks.description.targets is not None and self.config.model.components > 1:
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
        return "val_nll" if self.config.model.components > 1 else "val_mse"

    def _validate(self, validation: Sequence[Episodes], terms: dict[str, Tensor]) -> dict[str, float]:
        """Measure on the validation tasks; keep the model if it is the best so far."""
        figures = {
            f"val_{name}": values.mean().item()
            for name, values in calibrate(self.learner, validation[0] if len(validation) == 1 else validation).items()
        }
        error = 100 - figures["val_accuracy"] if "val_accuracy" in figures else figures[self.criterion]
        if error < self.best:
            self.best, self.best_step = error, self.step
            self.run.save_model(self.learner.state_dict(), self._metadata())
        record = {"step": self.step, **self._times(2), **_floats(terms), **figures}
        self.run.append_metrics(record)
        return record

    def _agree(self, *mine: bool) -> list[bool]:
        """Which of these any process says; several processes ask each other every few steps only."""
        if self.fabric.world_size == 1:
            return list(mine)
        if self.step % AGREE_EVERY:
            return [False] * len(mine)
        votes = self.fabric.all_reduce(torch.tensor(mine, dtype=torch.float), reduce_op="sum")
        return [bool(vote) for vote in torch.as_tensor(votes) > 0]

    def _metadata(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seed": self.config.training.seed,
            "best": self.best,
            "best_step": self.best_step,
        }

    def _times(self, digits: int) -> dict[str, float]:
        return {"seconds": round(self.seconds, digits), "cpu_seconds": round(self.cpu_seconds, digits)}

    def _save(self) -> None:
        """Write the one file that a resumed run starts from."""
        tensors = {f"learner.{name}": tensor for name, tensor in self.learner.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        if self.fabric.world_size > 1:  # buffers, such as the context state, differ between processes
            for name, buffer in self.learner.named_buffers():
                gathered = [torch.empty_like(buffer) for _ in range(self.fabric.world_size)]
                torch.distributed.all_gather(gathered, buffer.contiguous())
                tensors |= {f"rank{rank}.{name}": value for rank, value in enumerate(gathered)}
        if self.fabric.global_rank == 0:
            self.run.save_state(tensors, self._metadata() | self._times(3))

    def _load(self) -> dict[str, Tensor]:
        """Take up optimiser and step from the checkpoint; returns this process' weights and buffers."""
        where = str(self.run.state_file)
        tensors, metadata = read_tensors(self.run.state_file)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = tensor
        load_weights(self.learner, groups.get("learner", {}), where)
        weights = groups["learner"] | groups.get(f"rank{self.fabric.global_rank}", {})
        load_weights(self.learner, weights, where)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        expected = {
            f"{index}.{name}": () if name == "step" else tuple(parameter.shape)
            for index, parameter in enumerate(parameters)
            for name in ("step", "exp_avg", "exp_avg_sq")
        }
        moments = groups.get("optimizer", {})
        sound = {name: tuple(tensor.shape) for name, tensor in moments.items()} == expected
        if not sound or not all(torch.isfinite(tensor).all() for tensor in moments.values()):
            raise UserError(
                f"{where} does not belong to this configuration, or is damaged: its optimiser state does not fit"
            )
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in moments.items():
            index, _, key = name.partition(".")
            # The fused step reads moments in the memory layout of the weights (channels last), which files do not keep.
            laid_out = tensor if key == "step" else torch.empty_like(parameters[int(index)]).copy_(tensor)
            state.setdefault(int(index), {})[key] = laid_out
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})
        try:
            self.step, self.best_step = int(metadata["step"]), int(metadata["best_step"])
            self.best, self.seconds = float(metadata["best"]), float(metadata["seconds"])
            self.cpu_seconds = float(metadata["cpu_seconds"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} is not a checkpoint of this version of metavrf ({error})") from error
        return weights

    def _calibrate_band(self) -> None:
        """Set the 90 % band of the best model of functions by validation tasks of every size it was trained on."""
        tensors, metadata = self.run.load_model()
        load_weights(self.learner, tensors, str(self.run.model_file))
        shape = self.config.episode
        sizes = range(shape.train_shot or shape.shot, (shape.most_shot or shape.train_shot or shape.shot) + 1)
        draw = stream(self.config.training.seed, "validation", 1)
        tasks = [
            self.tasks.held_out("val", TASKS_FOR_BAND, replace(shape, shot=samples, stream=1), draw)
            for samples in BAND_NODES
            if samples in sizes
        ]
        calibrate_band(self.learner, tasks)
        self.run.save_model(self.learner.state_dict(), metadata)

    def _finish(self) -> None:
        if isinstance(getattr(self.learner, "head", None), MixtureHead) and self.tasks.description.targets is not None:
            self._calibrate_band()
        best = next((r for r in self.run.metrics() if r["step"] == self.best_step), {})
        write_json(
            self.run.result_file,
            {
                "task": self.config.task,
                "learner": self.config.learner,
                "protocol": self.learner.protocol,
                "steps": self.step,
                "stopped_early": self.step < self.config.training.iterations,
                "best_step": self.best_step,
                "validation": {k: v for k, v in best.items() if k.startswith("val_")},
                "validation_tasks": self.config.training.validate_tasks,
                "parameters": sum(p.numel() for p in self.learner.parameters()),
                "train_seconds": round(self.seconds, 1),
                "train_cpu_seconds": round(self.cpu_seconds, 1),
                **provenance(self.config.training.seed),
            },
        )


def clip_gradients(learner: Learner, limit: float) -> float:
    """Scale all gradients so that their joint norm is at most ``limit``, unless that is 0; returns the norm before."""
    gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients)).norm().item()
    if limit and norm > limit:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Linear warm-up, then constant or a cosine down to zero."""
    rate = settings.lr * min(1.0, (step + 1) / max(1, settings.warmup))
    if settings.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / settings.iterations))
    return rate


def _tensorboard(run: Run, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install 'metavrf[tensorboard]', or leave it out") from error
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1)


def _floats(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}
