"""Synthetic tables, to train what looks at real ones: a wide prior over columns and over what targets depend on.

Columns are normal, uniform, heavy-tailed or integer codes, alone, correlated or repeated, and many do not matter.
Targets are draws of Gaussian processes with a length per column, sums of functions of one or two columns, linear plus
smooth, steps of small trees, or small random networks, with normal or heavy-tailed noise. Classes are the largest of
several such functions, slices of one, or clusters; they may be unbalanced.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FUNCTIONS = ("process", "additive", "linear", "trees", "network")
FEATURES = 96  # cosines that make a draw of a Gaussian process
MOST_TREES, DEEPEST = 6, 4
LEAST_NOISE, MOST_NOISE = 0.02, 1.5  # as shares of a function's deviation
FEWEST_ROWS, MOST_ROWS, MOST_COLUMNS, MOST_CLASSES = 3, 200, 50, 10


class Size(NamedTuple):
    """Of the tasks of a batch; no ``classes`` are real targets."""

    rows: int
    columns: int
    classes: int | None


class Tables(NamedTuple):
    """Tasks of one size: ``x [T, N, c]`` and ``y [T, N]``, real or labels; the first ``rows`` are the support."""

    x: Tensor
    y: Tensor
    size: Size


def some_size(generator: torch.Generator, *, classes: bool, most_rows: int = MOST_ROWS) -> Size:
    """Rows and columns, evenly over their logarithms; at least two rows per class on average."""
    u = torch.rand(3, generator=generator).tolist()
    least = 4 if classes else FEWEST_ROWS
    rows = round(least * (most_rows / least) ** u[0])
    columns = round(MOST_COLUMNS ** u[1])
    ways = 2 + math.floor(u[2] ** 2 * (min(MOST_CLASSES, rows // 2) - 1))
    return Size(rows, columns, ways if classes else None)


def tables(size: Size, tasks: int, query: int, generator: torch.Generator) -> Tables:
    """Draw tasks of one size with ``query`` rows each beside the support."""
    number, columns, classes = size.rows + query, size.columns, size.classes
    latent = _latent((tasks, number, columns), generator)
    relevance = _relevance(tasks, columns, generator)
    if classes is None:
        x, plain = _columns(latent, generator)
        return Tables(x, _noisy(_functions(plain, relevance, 1, generator)[..., 0], generator), size)
    clustered = torch.rand(tasks, generator=generator) < 0.3
    labels = _unbalanced(tasks, number, classes, generator)
    apart = torch.exp(_normal((tasks, 1, 1), generator) * 0.6 + 0.5) / relevance.square().sum(1)[:, None, None].sqrt()
    centres = apart * _normal((tasks, classes, columns), generator) * relevance.unsqueeze(1)
    shifted = latent + centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, columns))
    x, plain = _columns(torch.where(clustered[:, None, None], shifted, latent), generator)
    return Tables(x, torch.where(clustered.unsqueeze(1), labels, _labels(plain, relevance, classes, generator)), size)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator)


def _latent(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Normal columns; in half of the tasks they share factors, in some a column repeats another."""
    tasks, number, columns = shape
    own = _normal(shape, generator)
    factors = max(1, columns // 4)
    shared = _normal((tasks, number, factors), generator) @ _normal((tasks, factors, columns), generator)
    share = 0.95 * _uniform((tasks, 1, 1), generator) * (_uniform((tasks, 1, 1), generator) < 0.5)
    latent = (1 - share).sqrt() * own + (share / factors).sqrt() * shared
    repeats = _uniform((tasks, columns), generator) < 0.15 * (_uniform((tasks, 1), generator) < 0.3)
    source = torch.where(
        repeats, torch.randint(columns, (tasks, columns), generator=generator), torch.arange(columns).expand(tasks, -1)
    )
    return latent.gather(2, source.unsqueeze(1).expand(shape))


def _relevance(tasks: int, columns: int, generator: torch.Generator) -> Tensor:
    """``[T, c]``, 0 of columns that do not matter: from one to all of them do."""
    matter = torch.exp(_uniform((tasks, 1), generator) * math.log(columns + 1)).floor().clamp(1, columns)
    rank = _uniform((tasks, columns), generator).argsort(1).argsort(1)
    spread = 0.8 * _uniform((tasks, 1), generator)
    return (rank < matter) * torch.exp(spread * _normal((tasks, columns), generator))


def _columns(latent: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the table shows ``[T, N, c]``, and what functions see of it: the same, standardised."""
    tasks, _, columns = latent.shape
    level = torch.special.ndtr(latent)
    steps = torch.randint(2, 9, (tasks, 1, columns), generator=generator)
    power = 1 + _uniform((tasks, 1, columns), generator)
    kinds = (
        latent,
        level,
        torch.where(power < 1.5, latent.sign() * latent.abs().pow(2 * power), torch.exp(power * latent)),
        (level * steps).floor().clamp_max(steps - 1.0),
    )
    favour = torch.tensor([1.0, 0.6, 0.4, 0.6]) * torch.exp(1.5 * _normal((tasks, 4), generator))
    kind = torch.multinomial(favour, columns, replacement=True, generator=generator).unsqueeze(1)
    shown = torch.stack(kinds).gather(0, kind.expand_as(latent).unsqueeze(0))[0]
    standard = (shown - shown.mean(1, keepdim=True)) / shown.std(1, keepdim=True).clamp_min(1e-6)
    tamed = torch.where((kind == 2) & (_uniform((tasks, 1, 1), generator) < 0.7), latent, standard)
    return shown, tamed


def _functions(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """``[T, N, outputs]`` of deviation 1 over the rows of a task, each task with a function of its own kind."""
    kind = torch.randint(len(FUNCTIONS), (len(x),), generator=generator)
    found = x.new_zeros(*x.shape[:2], outputs)
    for number, make in enumerate((_process, _additive, _linear, _trees, _network)):
        mine = (kind == number).nonzero()[:, 0]
        if len(mine):
            found[mine] = make(x[mine], relevance[mine], outputs, generator)
    found = found - found.mean(1, keepdim=True)
    return found / found.std(1, keepdim=True).clamp_min(1e-6)


def _process(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """A Gaussian process with a length per column; heavy-tailed frequencies make some of them rough."""
    tasks, _, columns = x.shape
    length = relevance.square().sum(1).sqrt() * torch.exp(0.6 * _normal((tasks,), generator) + 0.2)
    frequency = _normal((tasks, columns, FEATURES), generator) * (relevance / length.unsqueeze(1)).unsqueeze(-1)
    tails = _normal((tasks, 3, FEATURES), generator).square().mean(1, keepdim=True).clamp_min(0.05).rsqrt()
    rough = _uniform((tasks, 1, 1), generator) < 0.4
    phase = 2 * math.pi * _uniform((tasks, 1, FEATURES), generator)
    waves = torch.cos(x @ (frequency * torch.where(rough, tails, 1.0)) + phase)
    return waves @ _normal((tasks, FEATURES, outputs), generator)


def _additive(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """A sum of smooth functions of one or two columns each."""
    tasks, _, columns = x.shape
    column = torch.multinomial(relevance, FEATURES * 2, replacement=True, generator=generator).view(tasks, 2, FEATURES)
    frequency = _normal((tasks, 2, FEATURES), generator) * torch.exp(0.5 * _normal((tasks, 1, 1), generator))
    paired = _uniform((tasks, 1, FEATURES), generator) < _uniform((tasks, 1, 1), generator) - 0.3
    frequency = torch.cat([frequency[:, :1], frequency[:, 1:] * paired], 1)
    weights = x.new_zeros(tasks, columns, FEATURES).scatter_add_(1, column, frequency)
    phase = 2 * math.pi * _uniform((tasks, 1, FEATURES), generator)
    return torch.cos(x @ weights + phase) @ _normal((tasks, FEATURES, outputs), generator)


def _linear(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """Linear, in half of the tasks plus smooth."""
    tasks, _, columns = x.shape
    line = x @ (relevance.unsqueeze(-1) * _normal((tasks, columns, outputs), generator))
    smooth = _process(x, relevance, outputs, generator) / math.sqrt(FEATURES / 2)
    share = _uniform((tasks, 1, 1), generator) * (_uniform((tasks, 1, 1), generator) < 0.5)
    return line / line.std(1, keepdim=True).clamp_min(1e-6) + 1.5 * share * smooth


def _trees(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """A few trees, each with the same split at all nodes of a level; splits are at values of the columns."""
    tasks, number, _ = x.shape
    splits = MOST_TREES * DEEPEST
    column = torch.multinomial(relevance, splits, replacement=True, generator=generator)
    values = x.gather(2, column.unsqueeze(1).expand(-1, number, -1))  # [T, N, splits]
    at = torch.randint(number, (tasks, 1, splits), generator=generator)
    above = (values > values.gather(1, at)).view(tasks, number, MOST_TREES, DEEPEST)
    depth = torch.randint(1, DEEPEST + 1, (tasks, 1, MOST_TREES, 1), generator=generator)
    leaf = ((above & (torch.arange(DEEPEST) < depth)) * 2 ** torch.arange(DEEPEST)).sum(-1)  # [T, N, trees]
    counted = torch.arange(MOST_TREES) < torch.randint(1, MOST_TREES + 1, (tasks, 1), generator=generator)
    worth = _normal((tasks, MOST_TREES, 2**DEEPEST, outputs), generator) * counted[..., None, None]
    place = (leaf + 2**DEEPEST * torch.arange(MOST_TREES)).flatten(1).unsqueeze(-1).expand(-1, -1, outputs)
    return worth.flatten(1, 2).gather(1, place).view(tasks, number, MOST_TREES, outputs).sum(2)


def _network(x: Tensor, relevance: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """Two hidden layers of 16 units, with tanh or rectified."""
    tasks, _, columns = x.shape
    size = relevance.square().sum(1).sqrt()[:, None, None]
    gain = torch.exp(0.5 * _normal((tasks, 1, 1), generator) + 0.3)
    smooth = _uniform((tasks, 1, 1), generator) < 0.5
    hidden = x @ (gain / size * relevance.unsqueeze(-1) * _normal((tasks, columns, 16), generator))
    for _ in range(2):
        hidden = hidden + 0.5 * _normal((tasks, 1, 16), generator)
        hidden = torch.where(smooth, hidden.tanh(), hidden.relu())
        hidden = hidden @ (gain * _normal((tasks, 16, 16), generator) / 4)
    return hidden @ _normal((tasks, 16, outputs), generator)


def _noisy(function: Tensor, generator: torch.Generator) -> Tensor:
    """Targets ``[T, N]``: with noise, some of it heavy-tailed, some of them skewed."""
    tasks, number = function.shape
    skewed = _uniform((tasks, 1), generator)
    function = torch.where(skewed < 0.15, torch.exp(function.clamp_max(4)), function)
    function = torch.where((skewed > 0.15) & (skewed < 0.25), function * function.abs(), function)
    deviation = function.std(1, keepdim=True).clamp_min(1e-3)
    level = LEAST_NOISE * (MOST_NOISE / LEAST_NOISE) ** _uniform((tasks, 1), generator)
    tails = _normal((tasks, number, 4), generator).square().mean(-1).clamp_min(0.02).rsqrt()
    heavy = _uniform((tasks, 1), generator) < 0.2
    return function + level * deviation * torch.where(heavy, tails, 1.0) * _normal((tasks, number), generator)


def _unbalanced(tasks: int, number: int, classes: int, generator: torch.Generator) -> Tensor:
    """Labels ``[T, N]`` of classes that are equally or unequally frequent."""
    spread = 1.5 * _uniform((tasks, 1), generator) * (_uniform((tasks, 1), generator) < 0.5)
    frequency = torch.softmax(spread * _normal((tasks, classes), generator), -1)
    return torch.multinomial(frequency, number, replacement=True, generator=generator)


def _labels(x: Tensor, relevance: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """The largest of as many functions as there are classes, or slices of one, ``[T, N]``."""
    tasks, number, _ = x.shape
    functions = _functions(x, relevance, classes, generator)
    level = 1.2 * _uniform((tasks, 1, 1), generator).square()
    noisy = functions + level * _normal((tasks, number, classes), generator)
    spread = 0.8 * _uniform((tasks, 1, 1), generator) * (_uniform((tasks, 1, 1), generator) < 0.5)
    largest = (noisy + spread * _normal((tasks, 1, classes), generator)).argmax(-1)
    order = noisy[..., 0].argsort(1).argsort(1)  # slices by rank, at uneven places
    parts = torch.softmax(2 * spread[..., 0] * _normal((tasks, classes), generator), -1).cumsum(-1)
    slices = torch.searchsorted(parts.contiguous(), (order + 0.5) / number).clamp_max(classes - 1)
    return torch.where(_uniform((tasks, 1), generator) < 0.35, slices, largest)
