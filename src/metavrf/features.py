"""Ready features: a data set embedded once and kept in a file that ``metavrf train`` takes as its data.

That is the paper's pre-trained path: the network is fixed, and what is meta-learned is the kernel on top of it.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from metavrf.errors import UserError
from metavrf.files import write_rows
from metavrf.joined import Samples
from metavrf.model import load
from metavrf.networks import BATCH, NETWORK
from metavrf.nn.deep import load_efficientnet_lite0
from metavrf.nn.embeddings import Embedding
from metavrf.runs.directory import Run
from metavrf.runs.progress import Progress
from metavrf.settings import DataSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.source import ClassTasks, open_tasks


def write_features(
    task: str, by: str, out: Path, settings: DataSettings, *, resolution: int = 160, quiet: bool = False
) -> tuple[tuple[int, int], TaskSpec]:
    """Embed every image of a data set and write the features, classes and split to ``out``.

    ``by`` is "efficientnet-lite0", a run directory, or FILE.py:NAME, where NAME is a torch module, or a function that
    makes one, from uint8 images ``[N, channels, height, width]`` to features ``[N, d]``.
    """
    if Path(out).suffix != ".safetensors":
        raise UserError(f"{out} must end in .safetensors")
    embed, pretraining = embedder(by, resolution)
    name = f"{by}@{resolution}" if by == NETWORK else ""  # a file or run of the user's may change, or be elsewhere
    tasks = open_tasks(task, settings, quiet=quiet)
    if not isinstance(tasks, ClassTasks) or len(tasks.spec.inputs) != 3:
        raise UserError(f"{task} has no pictures to embed")
    if Path(by).is_dir():
        _check_split(by, tasks.spec)
    bank = tasks.bank
    found = _features(embed, bank.inputs, by)
    with torch.inference_mode(), Progress(f"embedding {task}", len(bank.inputs), quiet=quiet) as progress:
        first = next(found)
        size = first.shape[1]
        others = {"starts": bank.starts, "counts": bank.counts}
        if bank.groups is not None:
            others["groups"] = bank.groups
        spec = replace(
            tasks.spec,
            inputs=(size,),
            sha256="0" * 64,  # until it is known
            pretraining=pretraining,
            embedder=name,
            pictures=task,
        )
        metadata = {"names": list(bank.names), "description": spec.to_dict(), "by": by}
        digest = hashlib.sha256(f"{tasks.spec.sha256} {by} {resolution}".encode())
        try:
            shape = (len(bank.inputs), size)
            with write_rows(Path(out), "inputs", torch.float32, shape, tensors=others, metadata=metadata) as writer:
                row = 0
                for features in chain([first], found):
                    writer.put(row, features)
                    digest.update(features.numpy().tobytes())  # a file or run may change under the same name
                    row += len(features)
                    progress.update(row, {})
                spec = replace(spec, sha256=digest.hexdigest())
                writer.metadata = metadata | {"description": spec.to_dict()}
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}; what was there is unharmed") from error
    return shape, spec


def _features(embed: Callable[[Tensor], Tensor], images: Samples, by: str) -> Iterator[Tensor]:
    """Checked features ``[n, d]`` of all images, some at a time."""
    for some in images.split(BATCH):
        features = _checked(embed, some, by)
        if features.ndim != 2 or features.shape[0] != len(some):
            raise UserError(f"{by} gives {tuple(features.shape)} for {len(some)} pictures: it must be [N, features]")
        features = features.float().cpu()
        if not torch.isfinite(features).all():
            raise UserError(f"{by} gives features that are not finite")
        yield features


def embedder(by: str, resolution: int) -> tuple[Callable[[Tensor], Tensor], str]:
    """What turns uint8 images into features, and what it was pre-trained on (or nothing)."""
    if by == NETWORK:
        network = load_efficientnet_lite0(resolution)
        return network, network.pretraining
    file, _, name = by.partition(":")
    if file.endswith(".py"):
        return _own_module(Path(file), name), f"own ({by})"
    embedding = load(by).learner.embedding
    if not isinstance(embedding, Embedding):
        raise UserError(f"the run {by} has no embedding of pictures")
    return lambda images: embedding(images.unsqueeze(0)).squeeze(0), ""


def _checked(embed: Callable[[Tensor], Tensor], images: Tensor, by: str) -> Tensor:
    """The features of some images; what the user's own module cannot do is one sentence."""
    try:
        return torch.as_tensor(embed(images))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"{by} failed on uint8 pictures of shape {tuple(images.shape)}: {reason}") from error


def _check_split(by: str, spec: TaskSpec) -> None:
    """Refuse a run that was trained on what these tasks test on: the same pictures, split otherwise."""
    trained = Run.open(by).spec()
    if trained.sha256 == spec.sha256 and dict(trained.classes) != dict(spec.classes):
        raise UserError(f"the run {by} was trained on another split of these classes ({trained.split}): use its own")


def _own_module(file: Path, name: str) -> Callable[[Tensor], Tensor]:
    """The module (or what makes it) that the user's file calls ``name``; the user names the file, so it is run."""
    if not file.is_file():
        raise UserError(f"{file} does not exist")
    try:
        defined = runpy.run_path(str(file))
        if name not in defined:
            raise UserError(f"{file} does not define {name!r}: give FILE.py:NAME of a torch module")
        made = defined[name]
        module = made if isinstance(made, nn.Module) else made()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{file}:{name} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{file}:{name} is {type(module).__name__}, not a torch module")
    return module.eval()
