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
from PIL import Image, ImageOps, PngImagePlugin

from glyphs import IMAGE, Pixels, encoded, glyph, refused, write_glyph_folder, write_glyph_table, write_table
from metavrf.run import write_tensors
from metavrf.tasks.bank import Bank
from metavrf.tasks.images import FolderSource, ParquetSource, Preprocessing, Source, cache_folder, read_bank

GREY, COLOUR = Preprocessing(8, channels=1), Preprocessing(8)
HALVES = np.repeat(np.array([[0, 255]], np.uint8).repeat(4, axis=1), 8, axis=0)  # black to the left of white
PICTURE = encoded(HALVES)


def page(mode: str) -> Image.Image:
    return Image.fromarray(HALVES).convert("RGB").convert(mode)


def with_alpha(mode: str, alpha: int) -> Image.Image:
    """A black page that can be seen through."""
    picture = Image.new("LA", (8, 8), (0, alpha))
    return picture.convert(mode)


def palette(alpha: int) -> bytes:
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([255, 0, 0, 0, 0, 0])
    return encoded(picture, transparency=bytes([255, alpha]))


def read(*files: Path, how: Preprocessing = GREY) -> Bank:
    """A reading without a cache of use."""
    return read_bank(ParquetSource(files), how, files[0].parent / "cache")[0]


def members(bank: Bank, name: str) -> Pixels:
    number = list(bank.names).index(name)
    start = int(bank.starts[number])
    return bank.inputs[start : start + int(bank.counts[number])].numpy()


def assert_equal(first: Bank, second: Bank) -> None:
    assert list(first.names) == list(second.names)
    for name in ("inputs", "starts", "counts"):
        assert torch.equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(
    "data",
    [
        encoded(page("1")),
        encoded(page("L")),
        encoded(page("RGB")),
        encoded(page("P")),
        encoded(page("LA")),
        encoded(page("RGBA")),
        encoded(HALVES.astype(np.uint16) * 257),
        encoded(HALVES.astype(np.int32) * 257, "TIFF"),
        encoded(HALVES.astype(np.float32), "TIFF"),
        encoded(page("L"), "JPEG", quality=95),
        encoded(page("CMYK"), "JPEG", quality=95),
        encoded(page("CMYK"), "TIFF"),
        encoded(page("RGB"), "WEBP", lossless=True),
        encoded(page("P"), "GIF"),
        encoded(page("RGB"), "BMP"),
        encoded(page("L"), "PPM"),
    ],
)
@pytest.mark.parametrize("how", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_picture_is_the_same_in_every_format_and_mode(data: bytes, how: Preprocessing) -> None:
    pixels = how.decode(data, "it")
    assert pixels.dtype == np.uint8
    assert pixels.shape == how.shape
    assert np.abs(pixels.astype(int) - HALVES).max() <= 2


def test_colours_keep_their_order_and_become_their_luminance_in_grey() -> None:
    red = encoded(Image.new("RGB", (8, 8), (200, 100, 50)))
    assert COLOUR.decode(red, "it")[:, 3, 3].tolist() == [200, 100, 50]
    assert GREY.decode(red, "it")[0, 3, 3] == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)


@pytest.mark.parametrize(("alpha", "seen"), [(0, 255), (128, 127), (255, 0)])
def test_what_is_transparent_becomes_white(alpha: int, seen: int) -> None:
    for data in (encoded(with_alpha("LA", alpha)), encoded(with_alpha("RGBA", alpha)), palette(alpha)):
        assert (COLOUR.decode(data, "it") == seen).all()


def test_a_transparent_colour_of_a_palette_becomes_white() -> None:
    assert (GREY.decode(encoded(page("P"), "GIF", transparency=0), "it") == 255).all()


def test_sixteen_bits_are_scaled_to_eight() -> None:
    levels = np.repeat(np.array([0, 257, 32896, 65535], np.uint16), 16).reshape(8, 8)
    assert np.unique(GREY.decode(encoded(levels), "it")).tolist() == [0, 1, 128, 255]


@pytest.mark.xfail(strict=True, reason="_flatten takes a dark 16-bit picture for an 8-bit one")
def test_a_dark_picture_of_sixteen_bits_stays_dark() -> None:
    assert GREY.decode(encoded(np.full((8, 8), 200, np.uint16)), "it").max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_camera_was(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    pixels = GREY.decode(encoded(page("RGB"), kind, exif=exif, quality=95), "it")
    assert np.abs(pixels[0].astype(int) - np.rot90(HALVES, -1)).max() <= 4


def test_inverting_makes_ink_bright() -> None:
    assert (Preprocessing(8, channels=1, invert=True).decode(PICTURE, "it") == 255 - HALVES).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_the_square_in_the_middle_is_kept(axis: int) -> None:
    three = np.zeros((8, 8, 3, 3), np.uint8)
    three[..., range(3), range(3)] = 255  # red, green and blue squares
    wide = np.concatenate([three[:, :, k] for k in range(3)], axis=axis)
    pixels = COLOUR.decode(encoded(wide), "it")
    assert (pixels[1] == 255).all()
    assert (pixels[[0, 2]] == 0).all()


def test_fine_patterns_become_grey_when_they_are_made_smaller() -> None:
    fine = np.indices((64, 64)).sum(0) % 2 * np.uint8(255)
    assert np.abs(GREY.decode(encoded(fine.astype(np.uint8)), "it").astype(int) - 127).max() <= 12


def test_a_large_photograph_is_reduced_as_if_read_in_full() -> None:
    y, x = np.mgrid[:480, :320]
    scene = np.stack([x * 0.75, y * 0.5, 127 + 127 * np.sin(x / 40)], axis=2).astype(np.uint8)
    data = encoded(scene, "JPEG", quality=95)
    full = ImageOps.fit(Image.fromarray(scene), (16, 16), Image.Resampling.LANCZOS)
    assert np.abs(Preprocessing(16).decode(data, "it") - np.asarray(full, int).transpose(2, 0, 1)).max() <= 6


def bomb(side: int) -> bytes:
    """A white-on-nothing PNG of one bit a pixel, tiny as a file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((side // 8 + 1) * side), 1)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8000, 10_000, 20_000])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(
    side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: object) -> None:
        raise AssertionError("decoded")

    write_glyph_folder(tmp_path / "set", [0, 1], 1)
    (tmp_path / "set" / "glyph00" / "0.png").write_bytes(bomb(side))
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    with refused("0.png", "pixels"):
        read_bank(FolderSource(tmp_path / "set"), GREY, tmp_path / "cache")


PHOTOGRAPH = encoded(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8), "JPEG")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.jpg", PHOTOGRAPH[: len(PHOTOGRAPH) // 2]),
        ("cut.png", PICTURE[:-30]),
        ("header.png", PICTURE[:20]),
        ("text.jpeg", b"this is no picture\nat all"),
        ("empty.png", b""),
        pytest.param(
            "exif.webp",
            encoded(page("RGB"), "WEBP", exif=b"Exif\0\0II*\0\x08"),
            marks=pytest.mark.xfail(strict=True, reason="struct.error of damaged EXIF is not caught"),
        ),
    ],
)
def test_a_broken_picture_is_named(name: str, data: bytes, tmp_path: Path) -> None:
    write_glyph_folder(tmp_path / "set", [0, 1])
    (tmp_path / "set" / "glyph01" / name).write_bytes(data)
    with refused(tmp_path / "set" / "glyph01" / name, "mend or remove"):
        read_bank(FolderSource(tmp_path / "set"), GREY, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_odd_metadata_of_a_picture_is_no_cause_for_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    write_glyph_folder(tmp_path / "set", [0, 1])
    odd = encoded(page("RGB"), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0")
    (tmp_path / "set" / "glyph01" / "odd.jpg").write_bytes(odd)
    bank, _ = read_bank(FolderSource(tmp_path / "set"), GREY, tmp_path / "cache")
    assert bank.counts.tolist() == [6, 7]


@pytest.mark.xfail(strict=True, reason="decode() runs in threads, where catch_warnings is not safe")
def test_reading_in_threads_leaves_the_programs_warnings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pictures_of_a_folder_are_read_class_by_class_whatever_their_size_and_ending(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    Image.fromarray(HALVES).resize((30, 20)).save(tmp_path / "a" / "2.BMP")
    Image.new("L", (5, 70)).save(tmp_path / "a" / "deep" / "1.png")
    Image.new("RGB", (90, 9), "white").save(tmp_path / "b" / "x.jpg")
    for other in ("README.txt", "a/notes.md", "a/list.csv", "b/.DS_Store", ".hidden/x.png"):
        (tmp_path / other).write_text("no picture")
    bank, _ = read_bank(FolderSource(tmp_path), COLOUR, tmp_path / ".cache")
    assert bank.names == ["a", "b"]
    assert bank.counts.tolist() == [2, 1]
    assert bank.inputs.shape == (3, 3, 8, 8)
    assert (members(bank, "b") == 255).all()
    assert (members(bank, "a")[1] == 0).all()


@pytest.mark.xfail(strict=True, reason="files such as macOS's ._photo.png are taken for pictures")
def test_hidden_files_are_left_out(tmp_path: Path) -> None:
    write_glyph_folder(tmp_path / "set", [0, 1])
    (tmp_path / "set" / "glyph00" / "._0.png").write_bytes(b"\0\5\x16\7 resource fork")
    assert len(FolderSource(tmp_path / "set").files) == 12


def test_a_folder_needs_two_classes_each_with_a_picture(tmp_path: Path) -> None:
    with refused(tmp_path, "0 sub-folders"):
        FolderSource(tmp_path)
    write_glyph_folder(tmp_path, [3])
    with refused(tmp_path, "1 sub-folders", "two or more"):
        FolderSource(tmp_path)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("no picture")
    with refused(tmp_path / "nothing", "no pictures"):
        FolderSource(tmp_path)


def test_a_table_is_read_with_its_class_names(tmp_path: Path) -> None:
    bank = read(write_glyph_table(tmp_path / "a.parquet", [4, 2], 3, side=8))
    assert bank.names == ["glyph04", "glyph02"]
    for number in (4, 2):
        expected = np.stack([glyph(number, drawer, 8) for drawer in range(3)])
        assert (members(bank, f"glyph0{number}")[:, 0] == expected).all()


def test_classes_of_a_table_without_names_are_named_by_their_numbers(tmp_path: Path) -> None:
    bank = read(write_table(tmp_path / "a.parquet", [PICTURE] * 5, [2, 0, 1, 0, 2]))
    assert bank.names == ["0", "1", "2"]
    assert bank.counts.tolist() == [2, 1, 2]


def test_classes_of_equal_name_in_two_tables_are_one_class(tmp_path: Path) -> None:
    shades = [encoded(np.full((8, 8), shade, np.uint8)) for shade in (10, 20, 30, 40, 50)]
    first = write_table(tmp_path / "1.parquet", shades[:2], [1, 0], ["a", "b"])
    second = write_table(tmp_path / "2.parquet", shades[2:], [0, 1, 1], ["c", "a"])
    bank = read(first, second)
    assert bank.names == ["a", "b", "c"]
    shown = {name: members(bank, name)[:, 0, 0, 0].tolist() for name in bank.names}
    assert shown == {"a": [20, 40, 50], "b": [10], "c": [30]}


def write(path: Path, **columns: Any) -> None:
    pyarrow.parquet.write_table(pa.table(columns), path)


ENTRY = {"bytes": PICTURE, "path": None}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: write(path, image=pa.array([ENTRY], IMAGE)), "no column 'label': it has image"),
        (lambda path: write(path, picture=[PICTURE], label=[0]), "no column 'image': it has picture, label"),
        (lambda path: write(path, image=[PICTURE], label=[0]), "is binary: it must be a struct"),
        (lambda path: write(path, image=[{"path": "a.png"}], label=[0]), "it must be a struct with the field 'bytes'"),
        (lambda path: write(path, image=pa.array([ENTRY, None], IMAGE), label=[0, 0]), "row 1"),
        (lambda path: write_table(path, [PICTURE, PICTURE, None], [0, 1, 1]), "row 2"),
        (lambda path: write_table(path, [PICTURE, b"no picture"], [0, 1]), "row 1"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, -3]), "negative number -3"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, 2], ["a", "b"]), "holds 2, but there are 2 class names"),
        (lambda path: write_table(path, [PICTURE] * 2, [0, None]), "must hold whole numbers"),
        (lambda path: write_table(path, [PICTURE] * 2, ["a", "b"]), "must hold whole numbers"),
        (lambda path: path.write_text("no table"), "not a Parquet file"),
        (lambda path: path.write_bytes(b""), "not a Parquet file"),
        (lambda path: None, "does not exist"),
        pytest.param(
            lambda path: write(path, image=[{"bytes": list(PICTURE)}], label=[0]),
            "'image'",
            marks=pytest.mark.xfail(strict=True, reason="the type of image.bytes is not checked: AttributeError"),
        ),
        pytest.param(
            lambda path: write_table(path, [], pa.array([], pa.int64()), ["a", "b"]),
            "not a single picture",
            marks=pytest.mark.xfail(strict=True, reason="an empty table is refused without its name"),
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(make: Callable[[Path], Any], named: str, tmp_path: Path) -> None:
    make(tmp_path / "a.parquet")
    with refused(tmp_path / "a.parquet", named):
        read(tmp_path / "a.parquet")


@pytest.mark.xfail(strict=True, reason="pyarrow's reason has line breaks")
def test_a_damaged_table_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = write_glyph_table(tmp_path / "a.parquet", range(4))
    data = bytearray(path.read_bytes())
    data[10:60] = b"\xff" * 50
    path.write_bytes(data)
    with refused(path):
        read(path)


@pytest.mark.xfail(strict=True, reason="text in image.bytes is taken for the path of a file to open")
def test_a_table_never_makes_other_files_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PICTURE)
    write(tmp_path / "a.parquet", image=[{"bytes": str(tmp_path / "secret.png")}], label=[0])
    with refused(tmp_path / "a.parquet"):
        read(tmp_path / "a.parquet")


def test_rotations_are_classes_of_their_own(tmp_path: Path) -> None:
    table = write_glyph_table(tmp_path / "a.parquet", [0, 1], 2, side=8)
    plain, bank = read(table), read(table, how=Preprocessing(8, channels=1, rotations=True))
    assert bank.names == [f"glyph0{k}{turn}" for turn in ("", "@90", "@180", "@270") for k in (0, 1)]
    for name in plain.names:
        for turns, turn in enumerate(("", "@90", "@180", "@270")):
            assert (members(bank, name + turn) == np.rot90(members(plain, name), turns, (2, 3))).all()


def folder_source(path: Path) -> Source:
    return FolderSource(path if path.exists() else write_glyph_folder(path, range(3), 2))


def table_source(path: Path) -> Source:
    return ParquetSource([path if path.exists() else write_glyph_table(path, range(3), 2)])


KINDS = pytest.mark.parametrize("source", [folder_source, table_source], ids=["folder", "table"])
MakeSource = Callable[[Path], Source]


@KINDS
@pytest.mark.parametrize("rotations", [False, True])
def test_a_second_reading_decodes_nothing_and_is_the_same(
    source: MakeSource, rotations: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Preprocessing(8, channels=1, rotations=rotations)
    fresh, key = read_bank(source(tmp_path / "data"), how, tmp_path / "cache")
    before = {path.name: path.read_bytes() for path in (tmp_path / "cache" / "banks").iterdir()}
    monkeypatch.setattr(Preprocessing, "decode", lambda *_: pytest.fail("decoded"))
    cached, again = read_bank(source(tmp_path / "data"), how, tmp_path / "cache")
    assert key == again
    assert_equal(fresh, cached)
    assert [name.endswith(".safetensors") and key.startswith(name.split(".")[0]) for name in before] == [True]
    assert {path.name: path.read_bytes() for path in (tmp_path / "cache" / "banks").iterdir()} == before


def change_folder(path: Path) -> None:
    file = path / "glyph00" / "0.png"
    file.write_bytes(encoded(255 - glyph(0, 0)))
    os.utime(file, ns=(1, 1))


def change_table(path: Path) -> None:
    write_table(path, [encoded(255 - glyph(0, 0))] * 6, [0, 0, 1, 1, 2, 2], ["glyph00", "glyph01", "glyph02"])


@pytest.mark.parametrize(("source", "change"), [(folder_source, change_folder), (table_source, change_table)])
def test_changed_data_is_read_anew(source: MakeSource, change: Callable[[Path], None], tmp_path: Path) -> None:
    old, old_key = read_bank(source(tmp_path / "data"), GREY, tmp_path / "cache")
    change(tmp_path / "data")
    new, new_key = read_bank(source(tmp_path / "data"), GREY, tmp_path / "cache")
    assert old_key != new_key
    assert (new.inputs[0] != old.inputs[0]).any()


@KINDS
def test_every_preprocessing_has_a_cache_of_its_own(source: MakeSource, tmp_path: Path) -> None:
    ways = [GREY, COLOUR, Preprocessing(9), Preprocessing(8, 1, invert=True), Preprocessing(8, 1, rotations=True)]
    for how in ways * 2:
        bank, _ = read_bank(source(tmp_path / "data"), how, tmp_path / "cache")
        assert bank.inputs.shape == (24 if how.rotations else 6, *how.shape)
    assert len(list((tmp_path / "cache" / "banks").iterdir())) == len(ways)


@pytest.mark.xfail(strict=True, reason="a folder is known by names, sizes and times alone, not by place or content")
def test_folders_alike_in_all_but_their_pictures_are_not_mixed_up(tmp_path: Path) -> None:
    for name, shade in (("one", 0), ("two", 255)):
        for kind in "ab":
            file = tmp_path / name / kind / "0.bmp"
            file.parent.mkdir(parents=True)
            file.write_bytes(encoded(np.full((8, 8), shade, np.uint8), "BMP"))
            os.utime(file, ns=(1, 1))  # as archives made reproducibly have it
    first, second = (read_bank(FolderSource(tmp_path / n), GREY, tmp_path / "cache")[0] for n in ("one", "two"))
    assert (first.inputs == 0).all()
    assert (second.inputs == 255).all()


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-5]),
        lambda file: file.write_bytes(b"garbage" * 99),
        lambda file: file.write_bytes(b""),
        lambda file: write_tensors(file, {"inputs": torch.zeros(6, 1, 8, 8)}, {"names": ["a"]}),
        lambda file: write_tensors(
            file,
            {"inputs": torch.zeros(6, 1, 7, 7), "starts": torch.arange(3), "counts": torch.arange(3)},
            {"names": ["a", "b", "c"]},
        ),
    ],
)
def test_a_damaged_cache_is_made_anew(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    fresh, _ = read_bank(table_source(tmp_path / "data"), GREY, tmp_path / "cache")
    (file,) = (tmp_path / "cache" / "banks").iterdir()
    whole = file.read_bytes()
    damage(file)
    again, _ = read_bank(table_source(tmp_path / "data"), GREY, tmp_path / "cache")
    assert_equal(fresh, again)
    assert file.read_bytes() == whole
    assert list(file.parent.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="not cached"):
        bank, _ = read_bank(table_source(tmp_path / "data"), GREY, tmp_path / "cache")
    fresh, _ = read_bank(table_source(tmp_path / "data"), GREY, tmp_path / "other")
    assert_equal(bank, fresh)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"METAVRF_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/metavrf"),
        ({"HOME": "/home/me"}, "/home/me/.cache/metavrf"),
        ({"HOME": "/home/me", "METAVRF_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/me/.cache/metavrf"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("METAVRF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
