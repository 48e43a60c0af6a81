from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files as package_files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from scipy.stats import chisquare

from glyphs import encoded, glyph, refused, write_table
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.tasks import download
from metavrf.tasks.datasets import DATASETS, listing
from metavrf.tasks.images import Preprocessing
from metavrf.tasks.source import ClassTasks, open_tasks
from metavrf.tasks.splits import PARTS

REAL = Path(os.environ.get("METAVRF_DATA") or "no-data").resolve()
OMNIGLOT = DATASETS["omniglot"]
FILES = ("omniglot-background.parquet", "omniglot-evaluation.parquet")
ALPHABETS = ("Latin", "Greek", "Tifinagh", "Tengwar")

needs_real_data = pytest.mark.skipif(
    not REAL.is_dir(), reason="METAVRF_DATA does not name the folder of the real Parquet files"
)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("METAVRF_DATA", raising=False)
    monkeypatch.setattr(download, "DOWNLOADS", dict.fromkeys(download.DOWNLOADS, unreachable))


def unreachable(folder: Path, *, quiet: bool = False) -> list[Path]:
    raise UserError("the network is unreachable")


def touch(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


def turned(names: list[str]) -> list[str]:
    return [name + turn for turn in ("", "@90", "@180", "@270") for name in names]


def test_files_are_looked_for_in_data_then_the_environments_folder_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVRF_DATA", str(tmp_path / "environment"))
    (tmp_path / "given").mkdir()
    for folder in (tmp_path / "cache" / "data", tmp_path / "environment", tmp_path / "given"):
        touched = touch(folder, *FILES)
        assert OMNIGLOT.find(str(tmp_path / "given")) == touched
    (tmp_path / "given" / FILES[0]).unlink()
    assert OMNIGLOT.find(str(tmp_path / "given")) == [tmp_path / "environment" / FILES[0], touched[1]]
    assert OMNIGLOT.find("") == [tmp_path / "environment" / file for file in FILES]


def test_missing_files_are_downloaded_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def fetch(folder: Path, *, quiet: bool = False) -> list[Path]:
        asked.append(folder)
        return touch(folder, *FILES)

    monkeypatch.setattr(download, "DOWNLOADS", {"omniglot": fetch})
    found = [OMNIGLOT.find("") for _ in range(2)]
    assert found == [[tmp_path / "cache" / "data" / file for file in FILES]] * 2
    assert asked == [tmp_path / "cache" / "data"]


def test_what_cannot_be_downloaded_is_refused_with_which_files_to_put_where(tmp_path: Path) -> None:
    where = tmp_path / "cache" / "data"
    with refused("unreachable", f"put {', '.join(FILES)} into {where}", "--data", "METAVRF_DATA"):
        OMNIGLOT.find("")
    touch(tmp_path / "given", FILES[0])
    with refused("unreachable", f"put {FILES[1]} into {where}"):
        OMNIGLOT.find(str(tmp_path / "given"))
    files = "miniimagenet-train.parquet, miniimagenet-val.parquet, miniimagenet-test.parquet"
    with refused("mini-imagenet cannot be downloaded", "non-commercial", f"put {files} into {where}"):
        open_tasks("mini-imagenet", DataSettings())
    with refused(tmp_path / "nowhere", "does not exist"):
        DATASETS["cifar-fs"].find(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", DATASETS)
def test_names_that_are_not_known_are_refused_before_anything_is_read(name: str) -> None:
    assert DATASETS[name].name == name
    with refused("'lunar'", name, ", ".join(DATASETS[name].splits)):
        open_tasks(name, DataSettings(split="lunar"))
    with refused("'mnist'", "omniglot, cifar-fs, fc100, mini-imagenet"):
        DATASETS["mnist"]


def test_omniglot_is_bright_ink_in_four_rotations_grouped_by_alphabet(
    tmp_path: Path, generator: torch.Generator
) -> None:
    names = [f"{alphabet}/character0{k}" for alphabet in ALPHABETS for k in (1, 2)]
    for file, first in zip(FILES, (0, 4), strict=True):
        drawn = [encoded(glyph(first + number, drawer, 28)) for number in range(4) for drawer in range(2)]
        write_table(tmp_path / file, drawn, [0, 0, 1, 1, 2, 2, 3, 3], names[first : first + 4])
    bank, _ = OMNIGLOT.read(str(tmp_path))
    assert bank.names == turned(names)
    assert bank.inputs.shape == (4 * 16, 1, 28, 28)
    assert torch.equal(bank.inputs[:][3, 0], torch.from_numpy(255 - glyph(1, 1, 28)))
    support = bank.sample(200, 2, 1, 1, generator, within_group=True).support_x
    pairs = {frozenset(bank.names[row // 2] for row in task) for task in support.tolist()}
    assert pairs == {frozenset(pair) for pair in zip(bank.names[::2], bank.names[1::2], strict=True)}


def write_classes(path: Path, names: list[str], picture: bytes, samples: int = 2) -> None:
    """A Parquet file in which every sample of every class is the same picture."""
    labels = [number for number in range(len(names)) for _ in range(samples)]
    write_table(path, [picture] * len(labels), labels, names)


def shade(colour: tuple[int, int, int], side: int) -> bytes:
    return encoded(Image.new("RGB", (side, side), colour))


def write_cifar(folder: Path, *, samples: int = 2) -> list[str]:
    """Both files of CIFAR-100, all red; gives the class names."""
    names = sorted(chain(*DATASETS["fc100"].splits["oreshkin"]([], 0).values()))
    for file in DATASETS["fc100"].files:
        write_classes(folder / file, names, shade((250, 0, 0), 32), samples)
    return names


def write_mixed(folder: Path) -> None:
    """All classes of the three sets: characters of one drop of ink on white, red and green pictures."""
    page = np.full((105, 105), 255, np.uint8)
    page[40:70, 10:40] = 0
    characters = [n for n in chain(*OMNIGLOT.splits["vinyals"]([], 0).values()) if "@" not in n]
    write_classes(folder / FILES[0], characters[:964], encoded(page))
    write_classes(folder / FILES[1], characters[964:], encoded(page))
    write_cifar(folder, samples=1)
    for file, first, last in zip(DATASETS["mini-imagenet"].files, (0, 64, 80), (64, 80, 100), strict=True):
        write_classes(folder / file, [f"n{number:02d}" for number in range(first, last)], shade((0, 250, 0), 84))


def shipped() -> dict[str, Any]:
    """The lists of CIFAR-100's classes that come with the package."""
    return dict(json.loads(package_files("metavrf.tasks.splits").joinpath("cifar100.json").read_text()))


def test_superclasses_are_twenty_of_five_classes_of_which_fc100_splits_none() -> None:
    lists = shipped()
    superclasses = {name: set(classes) for name, classes in lists["superclasses"].items()}
    assert [len(classes) for classes in superclasses.values()] == [5] * 20
    assert len(set().union(*superclasses.values())) == 100
    for classes in superclasses.values():
        assert sum(bool(classes & set(lists["fc100"][part])) for part in PARTS) == 1
        assert classes <= set(chain(*lists["cifar-fs"].values()))


def test_streams_on_cifar_are_of_one_superclass_each(tmp_path: Path, generator: torch.Generator) -> None:
    names = write_cifar(tmp_path)
    superclasses = shipped()["superclasses"]
    settings = DataSettings(data=str(tmp_path))
    shape = EpisodeSettings(way=5, shot=1, query=1, test_query=1, batch=30, train_way=20, stream=3)
    tasks = open_tasks("fc100", settings, quiet=True)
    assert isinstance(tasks, ClassTasks)
    for part, groups in (("train", 12), ("val", 4), ("test", 4)):
        assert tasks.banks[part].group_sizes().tolist() == [5] * groups
        episodes = tasks.held_out(part, 150, shape, generator)
        streams = [{names[row // 4] for row in rows} for rows in episodes.support_x.view(50, -1).tolist()]
        assert all(stream in [set(classes) for classes in superclasses.values()] for stream in streams)
        assert len({frozenset(stream) for stream in streams}) == groups
    assert tasks.training(shape, generator).way == 5
    few = open_tasks("cifar-fs", settings, quiet=True)
    assert few.training(shape, generator).way == 5
    for part, largest in (("val", 2), ("test", 3)):
        assert few.held_out(part, 6, replace(shape, way=largest), generator).stream == 3
        with refused("way=5", f"{largest} classes of the largest group"):
            few.held_out(part, 6, shape, generator)


@pytest.fixture(scope="module")
def mixed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the three sets, written once for all tests."""
    folder = tmp_path_factory.mktemp("mixed")
    write_mixed(folder)
    return folder


@pytest.fixture
def mixed(mixed_data: Path, monkeypatch: pytest.MonkeyPatch) -> ClassTasks:
    monkeypatch.setenv("METAVRF_CACHE", str(mixed_data / "cache"))
    tasks = open_tasks("mixed-images", DataSettings(data=str(mixed_data)), quiet=True)
    assert isinstance(tasks, ClassTasks)
    return tasks


MIXED_SHAPE = EpisodeSettings(way=5, shot=1, query=1, test_query=1, batch=900, train_way=16)


def test_mixed_images_are_of_one_size_in_colour_and_characters_bright_on_black(mixed: ClassTasks) -> None:
    assert mixed.spec.inputs == (3, 32, 32)
    assert mixed.bank.inputs.shape == (4 * 1623 * 2 + 200 + 200, 3, 32, 32)
    character = mixed.bank.inputs[0].float()
    assert torch.equal(character, character[:1].expand(3, -1, -1))
    assert character.max() == 255
    assert character.mean() < 40


def test_mixed_images_are_split_as_each_of_the_sets_is(mixed: ClassTasks) -> None:
    assert len(set(mixed.bank.names)) == len(mixed.bank.names)
    for part, sizes in (("train", [4112, 64, 64]), ("val", [688, 16, 16]), ("test", [1692, 20, 20])):
        bank = mixed.banks[part]
        assert bank.group_sizes().tolist() == sizes
        for name in ("omniglot", "cifar-fs", "mini-imagenet"):
            own = [n.removeprefix(f"{name}/") for n in mixed.bank.names if n.startswith(f"{name}/")]
            split = next(iter(DATASETS[name].splits.values()))(own, 0)[part]
            assert [n for n in bank.names if n.startswith(f"{name}/")] == [f"{name}/{n}" for n in split]


def test_a_task_on_mixed_images_is_of_one_set_all_equally_likely(mixed: ClassTasks, generator: torch.Generator) -> None:
    held_out = mixed.held_out("test", 900, MIXED_SHAPE, generator).looked_up()
    for episodes in (mixed.training(MIXED_SHAPE, generator), held_out):
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        red, green, blue = x.flatten(3).amax(3).unbind(2)  # [tasks, samples] each
        kinds = torch.stack([blue > 200, (red > 200) & (blue < 50), (green > 200) & (blue < 50)])
        assert torch.equal(kinds.any(2), kinds.all(2))
        assert kinds.all(2).sum(0).eq(1).all()
        assert chisquare(kinds.all(2).sum(1)).pvalue > 0.01
    with refused("way=17", "16 val classes of the smallest"):
        mixed.held_out("val", 3, replace(MIXED_SHAPE, way=17), generator)


def test_a_stream_on_mixed_images_is_of_one_set(mixed: ClassTasks, generator: torch.Generator) -> None:
    rows = mixed.held_out("val", 40, replace(MIXED_SHAPE, stream=4), generator).support_x.reshape(10, -1)
    of_set = (rows >= 4 * 1623 * 2).int() + (rows >= 4 * 1623 * 2 + 200)
    assert torch.equal(of_set, of_set[:, :1].expand_as(of_set))
    assert len(of_set.unique()) == 3


def test_a_listing_counts_mixed_images(mixed_data: Path) -> None:
    entry = listing(DATASETS["mixed-images"], str(mixed_data))
    assert entry["classes"] == {"train": 4112 + 64 + 64, "val": 688 + 16 + 16, "test": 1692 + 20 + 20}
    assert entry["images"] == {part: 2 * classes for part, classes in entry["classes"].items()}


def test_mixed_images_are_not_rotated_again(mixed_data: Path) -> None:
    with refused("--rotate", "mixed-images"):
        open_tasks("mixed-images", DataSettings(data=str(mixed_data), rotate=True))


def test_pictures_of_a_named_set_are_resized_where_that_is_asked_for(mixed_data: Path, tmp_path: Path) -> None:
    def shape(**asked: Any) -> tuple[int, ...]:
        tasks = open_tasks("mini-imagenet", DataSettings(data=str(mixed_data), **asked), quiet=True)
        assert isinstance(tasks, ClassTasks)
        assert tasks.spec.inputs == tasks.bank.inputs.shape[1:]
        return tasks.spec.inputs

    assert shape() == (3, 84, 84)
    assert shape(image_size=20) == (3, 20, 20)
    with refused("--image-size", "mixed-images"):
        open_tasks("mixed-images", DataSettings(data=str(mixed_data), image_size=20))
    with refused("image_size = 7", "at least 8"):
        Config.of("mini-imagenet", image_size=7).validate()


def test_mixed_images_ask_for_what_cannot_be_downloaded_before_they_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch(folder: Path, *, quiet: bool = False) -> list[Path]:
        pytest.fail(f"downloaded into {folder}")

    monkeypatch.setattr(download, "DOWNLOADS", dict.fromkeys(download.DOWNLOADS, fetch))
    with refused("mini-imagenet cannot be downloaded", "non-commercial", "miniimagenet-train.parquet"):
        open_tasks("mixed-images", DataSettings())


def test_a_listing_tells_what_is_missing_and_counts_nothing(tmp_path: Path) -> None:
    touch(tmp_path / "given", FILES[0])
    entry = listing(OMNIGLOT, str(tmp_path / "given"))
    assert entry["files"] == {FILES[0]: str(tmp_path / "given" / FILES[0]), FILES[1]: None}
    assert (entry["name"], entry["licence"], entry["complete"]) == ("omniglot", "MIT", False)
    assert entry["splits"] == ["vinyals", "random", "lake"]
    assert "classes" not in entry
    assert json.loads(json.dumps(entry)) == entry


def published(file: str) -> dict[str, Any]:
    return dict(json.loads((REAL / file).read_text()))


def names_of(file: str) -> list[str]:
    metadata = pyarrow.parquet.read_schema(REAL / file).metadata[b"huggingface"]
    return list(json.loads(metadata)["info"]["features"]["label"]["names"])


def ordered(split: Any) -> dict[str, list[str]]:
    """A split without regard to the order of its classes."""
    return {part: sorted(names) for part, names in split.items()}


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache in which the real Omniglot is decoded once for all tests."""
    cache = tmp_path_factory.mktemp("omniglot")
    yield cache
    for file in (cache / "banks").glob("*"):
        file.unlink()  # 100 MB that pytest would keep


Open = Callable[..., ClassTasks]


@pytest.fixture
def omniglot(decoded: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the real Omniglot; no character of a part is in another, in whatever rotation."""
    monkeypatch.setenv("METAVRF_CACHE", str(decoded))

    def opened(split: str = "", seed: int = 0) -> ClassTasks:
        tasks = open_tasks("omniglot", DataSettings(data=str(REAL), split=split, split_seed=seed), quiet=True)
        assert isinstance(tasks, ClassTasks)
        characters = {part: [n for n in bank.names if "@" not in n] for part, bank in tasks.banks.items()}
        assert len(set(chain(*characters.values()))) == sum(map(len, characters.values())) == 1623
        assert ordered(tasks.spec.classes) == {part: sorted(turned(names)) for part, names in characters.items()}
        return tasks

    return opened


@needs_real_data
def test_omniglot_is_split_as_published(omniglot: Open) -> None:
    tasks, split = omniglot(), published("omniglot_vinyals_splits.json")["splits"]
    assert tasks.spec.split == "vinyals"
    assert ordered(tasks.spec.classes) == {part: sorted(turned(names)) for part, names in split.items()}
    assert tasks.bank.inputs.shape == (4 * 1623 * 20, 1, 28, 28)
    assert 10 < tasks.bank.inputs[::1000].float().mean() < 60  # little ink on black
    assert {part: len(bank.names) for part, bank in tasks.banks.items()} == {"train": 4112, "val": 688, "test": 1692}


@needs_real_data
@pytest.mark.parametrize(
    ("name", "classes", "images"),
    [
        ("omniglot", (4112, 688, 1692), (82_240, 13_760, 33_840)),
        ("cifar-fs", (64, 16, 20), (38_400, 9600, 12_000)),
        ("fc100", (60, 20, 20), (36_000, 12_000, 12_000)),
        ("mini-imagenet", (64, 16, 20), (38_400, 9600, 12_000)),
        ("mixed-images", (4240, 720, 1732), (159_040, 32_960, 57_840)),
    ],
)
def test_a_listing_counts_classes_and_images_and_decodes_none(
    name: str, classes: tuple[int, ...], images: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preprocessing, "decode", lambda *_: pytest.fail("decoded"))
    entry = listing(DATASETS[name], str(REAL))
    assert entry["complete"] is True
    assert entry["classes"] == dict(zip(PARTS, classes, strict=True))
    assert entry["images"] == dict(zip(PARTS, images, strict=True))


@needs_real_data
def test_lakes_split_of_omniglot_is_by_alphabet(omniglot: Open, generator: torch.Generator) -> None:
    tasks = omniglot("lake")
    background, evaluation = (names_of(file) for file in FILES)
    assert sorted(tasks.banks["test"].names) == sorted(turned(evaluation))
    assert sorted([*tasks.banks["train"].names, *tasks.banks["val"].names]) == sorted(turned(background))
    alphabets = {part: {name.split("/")[0] for name in bank.names} for part, bank in tasks.banks.items()}
    assert {part: len(names) for part, names in alphabets.items()} == {"train": 25, "val": 5, "test": 20}
    assert len(set().union(*alphabets.values())) == 50
    for task in tasks.banks["test"].sample(100, 20, 1, 1, generator, within_group=True).support_x.tolist():
        names = {tasks.bank.names[row // 20] for row in task}
        assert len(names) == 20
        assert len({(name.split("/")[0], name.partition("@")[2]) for name in names}) == 1


@needs_real_data
def test_a_random_split_of_omniglot_is_of_characters_by_seed(omniglot: Open) -> None:
    first, again, other = (omniglot("random", seed).spec for seed in (0, 0, 1))
    assert {part: len(names) for part, names in first.classes.items()} == {"train": 4400, "val": 400, "test": 1692}
    assert first == again
    assert first.classes != other.classes


@needs_real_data
@pytest.mark.parametrize("name", ["cifar-fs", "fc100"])
def test_the_splits_of_cifar_are_as_published(name: str) -> None:
    (divide,) = DATASETS[name].splits.values()
    train, test = (names_of(file) for file in DATASETS[name].files)
    split, lists = divide(train, 0), published("cifar_fs_splits.json")
    fc100 = {part: entry["classes"] for part, entry in lists["fc100"].items()}
    assert ordered(split) == ordered(lists["cifar_fs"] if name == "cifar-fs" else fc100)
    assert train == test
    assert sorted(chain(*split.values())) == sorted(train)
    superclasses = shipped()["superclasses"]
    assert {c: name for name, classes in superclasses.items() for c in classes} == lists["superclass_of"]


@needs_real_data
def test_mini_imagenet_is_split_as_published() -> None:
    named, lists = DATASETS["mini-imagenet"], published("miniimagenet_splits.json")["splits"]
    split = named.splits["ravi"]([name for file in named.files for name in names_of(file)], 0)
    assert ordered(split) == ordered(lists)


@needs_real_data
@pytest.mark.parametrize(("name", "side"), [("cifar-fs", 32), ("fc100", 32), ("mini-imagenet", 84)])
def test_the_first_pictures_of_each_file_can_be_decoded(name: str, side: int) -> None:
    for file in DATASETS[name].files:
        batch = next(pyarrow.parquet.ParquetFile(REAL / file).iter_batches(batch_size=3))
        for row in batch.to_pylist():
            pixels = DATASETS[name].preprocessing.decode(row["image"]["bytes"], file)
            assert pixels.shape == (3, side, side)
            assert pixels.std() > 5
