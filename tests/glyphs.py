"""Small drawings by class, as a bank, a Parquet file or a folder: image data that costs nothing to make."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from metavrf.errors import UserError
from metavrf.tasks.bank import Bank

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def glyph(number: int, drawer: int, side: int = 16) -> NDArray[Any]:
    """Character ``number`` by the hand of ``drawer``, black on white, uint8 ``[side, side]``."""
    points = np.random.default_rng(number).uniform(0.1, 0.9, (4, 2))
    hand = np.random.default_rng((number, drawer)).normal(0, 0.04, (4, 2))
    page = Image.new("L", (side, side), "white")
    ImageDraw.Draw(page).line((side * (points + hand)).flatten().tolist(), fill="black", width=max(1, side // 8))
    return np.array(page)


def name_of(number: int) -> str:
    return f"glyph{number:02d}"


def glyph_bank(classes: int = 8, drawers: int = 6, side: int = 16) -> Bank:
    """Glyphs as bright ink on black, uint8 ``[N, 1, side, side]``."""
    drawn = [torch.from_numpy(255 - glyph(number, k, side)) for number in range(classes) for k in range(drawers)]
    labels = torch.arange(classes).repeat_interleave(drawers)
    return Bank.of_labels(torch.stack(drawn).unsqueeze(1), labels, [name_of(number) for number in range(classes)])


def encoded(picture: NDArray[Any] | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    data = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(data, kind, **options)
    return data.getvalue()


def write_table(
    path: Path, pictures: Sequence[bytes | None], labels: Sequence[Any], names: Sequence[str] | None = None
) -> Path:
    """A Parquet file in the layout of the Hugging Face hub; without class names if ``names`` is None."""
    images = pa.array([{"bytes": picture, "path": None} for picture in pictures], IMAGE)
    table = pa.table({"image": images, "label": pa.array(labels)})
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)
    return path


def write_glyph_table(path: Path, numbers: Iterable[int], drawers: int = 6, side: int = 16) -> Path:
    """A Parquet file of glyphs."""
    rows = [(label, number, k) for label, number in enumerate(numbers) for k in range(drawers)]
    pictures = [encoded(glyph(number, k, side)) for _, number, k in rows]
    return write_table(
        path, pictures, [row[0] for row in rows], [name_of(n) for n in dict.fromkeys(r[1] for r in rows)]
    )


def write_glyph_folder(path: Path, numbers: Iterable[int], drawers: int = 6, side: int = 16) -> Path:
    """A folder of glyphs, one sub-folder a class."""
    for number in numbers:
        (path / name_of(number)).mkdir(parents=True)
        for k in range(drawers):
            (path / name_of(number) / f"{k}.png").write_bytes(encoded(glyph(number, k, side)))
    return path


@contextmanager
def refused(*named: object) -> Iterator[None]:
    """The block is refused in one sentence that names all of these."""
    with pytest.raises(UserError) as raised:
        yield
    assert "\n" not in str(raised.value)
    assert [part for part in named if str(part) not in str(raised.value)] == [], raised.value
