from __future__ import annotations

import os
import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, PngImagePlugin

from glyphs import IMAGE, encoded, glyph, refused, write_glyph_folder, write_glyph_table, write_table
from metavrf.files import write_tensors
from metavrf.tasks.bank import Bank
from metavrf.tasks.images import FolderSource, ParquetSource, Preprocessing, Source, cache_folder, read_bank

GREY, COLOUR = Preprocessing(8, channels=1), Preprocessing(8)
HALVES = np.tile(np.repeat(np.array([0, 255], np.uint8), 4), (8, 1))  # black to the left of white
PICTURE = encoded(HALVES)
PHOTOGRAPH = encoded(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8), "JPEG")


def page(mode: str) -> Image.Image:
    return Image.fromarray(HALVES).convert("RGB").convert(mode)


def read(*files: Path, how: Preprocessing = GREY) -> Bank:
    source = FolderSource(files[0]) if files[0].is_dir() else ParquetSource(files)
    return read_bank(source, how, files[0].parent / "cache")[0]


def members(bank: Bank, name: str) -> NDArray[Any]:
    number = list(bank.names).index(name)
    return bank.inputs[bank.starts[number] :][: bank.counts[number], 0].numpy()


FORMATS = {
    **{f"PNG-{mode}": encoded(page(mode)) for mode in ("1", "L", "RGB", "P", "LA", "RGBA")},
    **{f"JPEG-{mode}": encoded(page(mode), "JPEG", quality=95) for mode in ("L", "CMYK")},
    **{kind: encoded(page("RGB"), kind, lossless=True) for kind in ("WEBP", "GIF", "BMP", "PPM")},
    "PNG-16": encoded(HALVES.astype(np.uint16) * 257),
    "TIFF-32": encoded(HALVES.astype(np.int32) * 257, "TIFF"),
    "TIFF-float": encoded(HALVES.astype(np.float32), "TIFF"),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_picture_is_the_same_in_every_format_and_mode(format: str, how: Preprocessing) -> None:
    pixels = how.decode(FORMATS[format], "it")
    assert (pixels.shape, pixels.dtype) == (how.shape, np.uint8)
    assert np.abs(pixels.astype(int) - HALVES).max() <= 2


def test_colours_keep_their_order_and_ink_may_be_made_bright() -> None:
    brown = encoded(Image.new("RGB", (8, 8), (200, 100, 50)))
    assert COLOUR.decode(brown, "it")[:, 3, 3].tolist() == [200, 100, 50]
    assert GREY.decode(brown, "it")[0, 3, 3] == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert (Preprocessing(8, channels=1, invert=True).decode(PICTURE, "it") == 255 - HALVES).all()


@pytest.mark.parametrize(("alpha", "seen"), [(0, 255), (128, 127), (255, 0)])
def test_what_is_transparent_becomes_white(alpha: int, seen: int) -> None:
    clear = Image.new("LA", (8, 8), (0, alpha))
    palette = encoded(Image.new("L", (8, 8), 0).convert("P"), transparency=bytes([alpha]))
    for data in (encoded(clear), encoded(clear.convert("RGBA")), palette):
        assert (COLOUR.decode(data, "it") == seen).all()


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([0, 257, 32896, 65535], [0, 1, 128, 255]),
        pytest.param([0, 100, 200, 255], [0, 0, 1, 1]),
    ],
)
def test_sixteen_bits_are_scaled_to_eight(values: list[int], seen: list[int]) -> None:
    assert (
        GREY.decode(encoded(np.repeat(np.array(values, np.uint16), 16).reshape(8, 8)), "it")[0, ::2, 0].tolist() == seen
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_camera_was(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees
    pixels = GREY.decode(encoded(page("RGB"), kind, exif=exif, quality=95), "it")[0]
    assert np.abs(pixels.astype(int) - np.rot90(HALVES, -1)).max() <= 4


def test_the_square_in_the_middle_is_kept_and_made_smaller_without_aliasing() -> None:
    squares = np.repeat(np.eye(3, dtype=np.uint8) * 255, 8, axis=0)  # red, green and blue
    for wide in (np.tile(squares, (8, 1, 1)), np.tile(squares, (8, 1, 1)).transpose(1, 0, 2)):
        assert (COLOUR.decode(encoded(wide), "it") == np.array([0, 255, 0]).reshape(3, 1, 1)).all()
    fine = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    assert np.abs(GREY.decode(encoded(fine), "it").astype(int) - 127).max() <= 12


def test_a_large_photograph_is_reduced_as_if_read_in_full() -> None:
    y, x = np.mgrid[:480, :320]
    scene = Image.fromarray(np.stack([x * 0.75, y * 0.5, 127 + 127 * np.sin(x / 40)], axis=2).astype(np.uint8))
    full = np.asarray(ImageOps.fit(scene, (16, 16), Image.Resampling.LANCZOS), int).transpose(2, 0, 1)
    assert np.abs(Preprocessing(16).decode(encoded(scene, "JPEG", quality=95), "it") - full).max() <= 6


def bomb(side: int) -> bytes:
    """A PNG of one bit a pixel, tiny as a file."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(bytes((side // 8 + 1) * side), 1), b"IEND": b""}
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [8000, 10_000, 20_000])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(
    side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_glyph_folder(tmp_path / "set", [0, 1], 1)
    (tmp_path / "set" / "glyph00" / "0.png").write_bytes(bomb(side))
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda _: pytest.fail("decoded"))
    with refused("glyph00/0.png", "pixels"):
        read(tmp_path / "set")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.jpg", PHOTOGRAPH[: len(PHOTOGRAPH) // 2]),
        ("cut.png", PICTURE[:-30]),
        ("header.png", PICTURE[:20]),
        ("text.jpeg", b"this is no picture\nat all"),
        ("empty.png", b""),
        pytest.param("exif.webp", encoded(page("RGB"), "WEBP", exif=b"Exif\0\0II*\0\x08")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_picture_is_named(name: str, data: bytes, tmp_path: Path) -> None:
    (write_glyph_folder(tmp_path / "set", [0, 1]) / "glyph01" / name).write_bytes(data)
    with refused(tmp_path / "set" / "glyph01" / name, "mend or remove"):
        read(tmp_path / "set")
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []


def test_decoding_in_threads_leaves_the_programs_warnings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, overlapping = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: GREY.decode(PICTURE, "it"))

    def transpose(picture: Image.Image) -> Image.Image:
        if threading.current_thread() is other:
            inside.set()
            overlapping.wait(10)
        else:
            overlapping.set()
            other.join(10)
        return picture

    monkeypatch.setattr(ImageOps, "exif_transpose", transpose)
    before = list(warnings.filters)
    other.start()
    inside.wait(10)
    GREY.decode(PICTURE, "it")
    assert warnings.filters == before


def test_pictures_of_a_folder_are_read_by_class_whatever_their_size_and_metadata(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".hidden"):
        (tmp_path / "set" / name).mkdir(parents=True)
    Image.fromarray(HALVES).resize((30, 20)).save(tmp_path / "set" / "a" / "2.BMP")
    Image.new("L", (5, 70)).save(tmp_path / "set" / "a" / "deep" / "1.png")
    odd = b"Exif\0\0II*\0\x08\0\0\0\x05\0"  # of which Pillow warns
    Image.new("RGB", (90, 9), "white").save(tmp_path / "set" / "b" / "x.jpg", exif=odd)
    for other in ("README.txt", "a/notes.md", "b/.DS_Store", ".hidden/x.png"):
        (tmp_path / "set" / other).write_text("no picture")
    bank = read(tmp_path / "set", how=COLOUR)
    assert bank.names == ["a", "b"]
    assert bank.inputs.shape == (3, 3, 8, 8)
    assert (members(bank, "a")[1] == 0).all()
    assert (members(bank, "b") == 255).all()


def test_hidden_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    (write_glyph_folder(tmp_path / "set", [0, 1]) / "glyph00" / "._0.png").write_bytes(b"resource fork")
    assert len(FolderSource(tmp_path / "set").files) == 12


def test_a_folder_needs_two_classes_each_with_a_picture(tmp_path: Path) -> None:
    with refused(tmp_path, "0 sub-folders"):
        FolderSource(tmp_path)
    with refused(tmp_path, "1 sub-folders", "two or more"):
        FolderSource(write_glyph_folder(tmp_path, [3]))
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("no picture")
    with refused(tmp_path / "nothing", "no pictures"):
        FolderSource(tmp_path)


def test_classes_of_a_table_have_its_names_or_their_numbers(tmp_path: Path) -> None:
    named = read(write_glyph_table(tmp_path / "named.parquet", [4, 2], 3, side=8))
    assert named.names == ["glyph04", "glyph02"]
    for number in (4, 2):
        assert (members(named, f"glyph0{number}") == [glyph(number, drawer, 8) for drawer in range(3)]).all()
    plain = read(write_table(tmp_path / "plain.parquet", [PICTURE] * 5, [2, 0, 1, 0, 2]))
    assert (plain.names, plain.counts.tolist()) == (["0", "1", "2"], [2, 1, 2])


def test_classes_of_equal_name_in_two_tables_are_one_class(tmp_path: Path) -> None:
    shades = [encoded(np.full((8, 8), shade, np.uint8)) for shade in (10, 20, 30, 40, 50)]
    first = write_table(tmp_path / "1.parquet", shades[:2], [1, 0], ["a", "b"])
    second = write_table(tmp_path / "2.parquet", shades[2:], [0, 1, 1], ["c", "a"])
    bank = read(first, second)
    shown = {name: members(bank, name)[:, 0, 0].tolist() for name in bank.names}
    assert shown == {"a": [20, 40, 50], "b": [10], "c": [30]}


def write(path: Path, **columns: Any) -> None:
    pyarrow.parquet.write_table(pa.table(columns), path)


def damage(path: Path) -> None:
    data = write_glyph_table(path, range(4)).read_bytes()
    path.write_bytes(data[:10] + b"\xff" * 50 + data[60:])


def point_elsewhere(path: Path) -> None:
    path.with_name("other.png").write_bytes(PICTURE)
    write(path, image=[{"bytes": str(path.with_name("other.png"))}], label=[0])


ROW = pa.array([{"bytes": PICTURE, "path": None}, None], IMAGE)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: write(path, image=ROW), "no column 'label': it has image"),
        (lambda path: write(path, picture=ROW, label=[0, 1]), "no column 'image': it has picture, label"),
        (lambda path: write(path, image=[PICTURE], label=[0]), "is binary: it must be a struct"),
        (lambda path: write(path, image=[{"path": "a.png"}], label=[0]), "it must be a struct with the"),
        (lambda path: write(path, image=ROW, label=[0, 0]), "row 1"),
        (lambda path: write_table(path, [PICTURE, PICTURE, None], [0, 1, 1]), "row 2"),
        (lambda path: write_table(path, [PICTURE, b"no picture"], [0, 1]), "row 1"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, -3]), "negative number -3"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, 2], ["a", "b"]), "holds 2, but there are 2 class names"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, None]), "must hold whole numbers"),
        (lambda path: write_table(path, [PICTURE] * 2, ["a", "b"]), "must hold whole numbers"),
        (lambda path: path.write_text("no table"), "not a Parquet file"),
        (lambda path: path.write_bytes(b""), "not a Parquet file"),
        (lambda path: None, "does not exist"),
        pytest.param(damage, "not a Parquet file"),
        pytest.param(lambda path: write(path, image=[{"bytes": list(PICTURE)}], label=[0]), "'image'"),
        pytest.param(point_elsewhere, "'image'"),
        pytest.param(lambda path: write_table(path, [], pa.array([], pa.int64())), "picture"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(make: Callable[[Path], Any], named: str, tmp_path: Path) -> None:
    make(tmp_path / "a.parquet")
    with refused(tmp_path / "a.parquet", named):
        read(tmp_path / "a.parquet")


def test_rotations_are_classes_of_their_own(tmp_path: Path) -> None:
    table = write_glyph_table(tmp_path / "a.parquet", [0, 1], 2, side=8)
    plain, bank = read(table), read(table, how=Preprocessing(8, channels=1, rotations=True))
    assert bank.names == [f"glyph0{k}{turn}" for turn in ("", "@90", "@180", "@270") for k in (0, 1)]
    for name in bank.names:
        original, _, degrees = name.partition("@")
        assert (members(bank, name) == np.rot90(members(plain, original), int(degrees or 0) // 90, (1, 2))).all()


def folder_source(path: Path) -> Source:
    return FolderSource(path if path.exists() else write_glyph_folder(path, range(3), 2))


def table_source(path: Path) -> Source:
    return ParquetSource([path if path.exists() else write_glyph_table(path, range(3), 2)])


def change_folder(path: Path) -> None:
    (path / "glyph00" / "0.png").write_bytes(encoded(255 - glyph(0, 0)))


def change_table(path: Path) -> None:
    write_table(path, [encoded(255 - glyph(0, 0))] * 6, [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(("source", "change"), [(folder_source, change_folder), (table_source, change_table)])
def test_a_second_reading_decodes_nothing_unless_data_or_preprocessing_changed(
    source: Callable[[Path], Source], change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    ways = [GREY, COLOUR, Preprocessing(9), Preprocessing(8, 1, invert=True), Preprocessing(8, 1, rotations=True)]
    fresh = [read_bank(source(data), how, cache) for how in ways]
    files = {file.name for file in (cache / "banks").iterdir()}
    assert files == {f"{key[:32]}.safetensors" for _, key in fresh}
    assert len(files) == len(ways)
    with monkeypatch.context() as patch:
        patch.setattr(Preprocessing, "decode", lambda *_: pytest.fail("decoded"))
        for how, (bank, key) in zip(ways, fresh, strict=True):
            cached, same_key = read_bank(source(data), how, cache)
            assert (cached.names, same_key) == (bank.names, key)
            assert all(torch.equal(getattr(cached, k), getattr(bank, k)) for k in ("inputs", "starts", "counts"))
    change(data)
    changed, other_key = read_bank(source(data), GREY, cache)
    assert other_key not in {key for _, key in fresh}
    assert (changed.inputs[0] != fresh[0][0].inputs[0]).any()


def test_folders_alike_in_all_but_their_pictures_are_not_mixed_up(tmp_path: Path) -> None:
    for name, shade in (("one", 0), ("two", 255)):
        for kind in "ab":
            file = tmp_path / name / kind / "0.bmp"
            file.parent.mkdir(parents=True)
            file.write_bytes(encoded(np.full((8, 8), shade, np.uint8), "BMP"))
            os.utime(file, ns=(1, 1))  # as archives made reproducibly have it
    assert [read(tmp_path / name).inputs[:].unique().tolist() for name in ("one", "two")] == [[0], [255]]


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-5]),
        lambda file: file.write_bytes(b"garbage" * 99),
        lambda file: file.write_bytes(b""),
        lambda file: write_tensors(file, {"inputs": torch.zeros(6, 1, 8, 8)}, {"names": ["a"]}),
    ],
)
def test_a_damaged_cache_is_made_anew(harm: Callable[[Path], Any], tmp_path: Path) -> None:
    table = write_glyph_table(tmp_path / "a.parquet", range(3))
    fresh = read(table).inputs[:].clone()  # the bank itself is the file that is harmed
    (file,) = (tmp_path / "cache" / "banks").iterdir()
    whole = file.read_bytes()
    harm(file)
    assert torch.equal(read(table).inputs[:], fresh)
    assert file.read_bytes() == whole
    assert list(file.parent.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_only_warns(tmp_path: Path) -> None:
    table = write_glyph_table(tmp_path / "a.parquet", range(3), side=8)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="not cached"):
        bank = read(table)
    assert (members(bank, "glyph02")[1] == glyph(2, 1, 8)).all()


@pytest.mark.parametrize(
    ("own", "xdg", "folder"),
    [("/own", "/xdg", "/own"), ("", "/xdg", "/xdg/metavrf"), ("", "", "/home/me/.cache/metavrf")],
)
def test_the_cache_is_where_the_environment_says(
    own: str, xdg: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("METAVRF_CACHE", own), ("XDG_CACHE_HOME", xdg), ("HOME", "/home/me")):
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
