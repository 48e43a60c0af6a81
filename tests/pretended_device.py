"""A device that is not there: tensors that say they are on it, and refuse to be mixed with those of the CPU.

PyTorch's ``meta`` device plays the part. A tensor on it is a :class:`Placed` one here, which holds its numbers on the
CPU and computes with them, so code that looks at values works too. What a GPU would refuse is refused:

- an operation on tensors of both devices, unless that of the CPU has no dimension;
- ``numpy()`` of a tensor of the device;
- a draw on the device by a generator of the CPU.

More is refused than a GPU would: indexing by a tensor of the CPU, which a GPU waits for; and a draw on the device by
its own generator, which would not be the same on another device.

Operations are seen below autograd and below ``torch.func``: also backward, and inside ``vmap`` and ``grad``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
JOINING = (aten.cat.default, aten.stack.default)  # what has no dimension is not moved by itself here


class MixedDevicesError(AssertionError):
    """What would fail on a GPU, or not be reproducible there."""


class Placed(Tensor):
    """A tensor on the pretended device."""

    numbers: Tensor
    is_meta = False  # PyTorch takes it for a tensor without numbers elsewhere

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Placed:
        placed: Placed = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=numbers.requires_grad,
        )
        placed.numbers = numbers
        return placed

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Placed({self.numbers})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """As PyTorch asks of tensors that hold others."""
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Placed:
        return Placed(inner["numbers"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device where it takes place."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    ours = any(isinstance(tensor, Placed) for tensor in tensors)
    asked = kwargs.get("device")
    to_device = ours if asked is None else torch.device(asked) == DEVICE
    if ours and func not in MOVES:
        _check(func, tensors)
    if to_device and torch.Tag.nondeterministic_seeded in func.tags:
        raise MixedDevicesError(f"{func} draws on the device: draw on the CPU and move")
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if func is aten.copy_.default:  # to where its first argument is
        to_device = isinstance(args[0], Placed)
    inner_args, inner_kwargs = tree_map(_numbers, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if not to_device:
        if func is aten.copy_.default:
            return args[0]
        return result.clone() if ours and func is aten._to_copy.default else result
    result = tree_map(lambda value: Placed(value) if isinstance(value, Tensor) else value, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if ours else result


def _check(func: Any, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, Placed) and (tensor.ndim > 0 or func in JOINING):
            raise MixedDevicesError(f"{func} mixes devices: {list(tensor.shape)} is on the CPU")


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, Placed) else value


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class _FromLists(TorchFunctionMode):
    """PyTorch makes ``torch.tensor([1.0], device="meta")`` out of the modes' sight, without numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.new_tensor:
            own, *args = args
            func, kwargs = torch.tensor, {"dtype": own.dtype, "device": own.device} | kwargs
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None:
            return func(*args, **kwargs | {"device": None}).to(device)
        return func(*args, **kwargs)


@contextmanager
def pretended_device() -> Iterator[None]:
    """While it lasts, tensors made on :data:`DEVICE`, or moved to it, are :class:`Placed`."""
    with _FromLists(), _Operations():
        yield


def assert_placed(module: nn.Module) -> None:
    """Every parameter and buffer of a module is on the device."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        assert isinstance(tensor, Placed), name
