from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from glyphs import encoded, glyph, refused, write_table
from metavrf.config import DataSettings
from metavrf.errors import UserError
from metavrf.tasks import download
from metavrf.tasks.bank import Bank
from metavrf.tasks.datasets import NAMED_SETS, listing, named_set
from metavrf.tasks.images import Preprocessing
from metavrf.tasks.source import ClassTasks, open_tasks

REAL = Path(os.environ.get("METAVRF_DATA") or "no-data").resolve()
OMNIGLOT = ("omniglot-background.parquet", "omniglot-evaluation.parquet")
TURNS = ("", "@90", "@180", "@270")

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


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def write_omniglot(folder: Path, *, quiet: bool = False) -> list[Path]:
    """Two alphabets of two characters in each file, two drawings a character."""
    return [
        write_table(
            folder / file,
            [encoded(glyph(first + number, drawer, 28)) for number in range(4) for drawer in range(2)],
            [number for number in range(4) for _ in range(2)],
            [f"{alphabet}/character0{k}" for alphabet in alphabets for k in (1, 2)],
        )
        for file, first, alphabets in zip(OMNIGLOT, (0, 4), (("Latin", "Greek"), ("Tifinagh", "Tengwar")), strict=True)
    ]


def test_files_are_looked_for_in_data_then_the_environments_folder_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVRF_DATA", str(tmp_path / "environment"))
    for folder in (tmp_path / "cache" / "data", tmp_path / "environment", tmp_path / "given"):
        touch(folder, *OMNIGLOT)
        assert NAMED_SETS["omniglot"].find(str(tmp_path / "given")) == [folder / file for file in OMNIGLOT]
    assert NAMED_SETS["omniglot"].find("") == [tmp_path / "environment" / file for file in OMNIGLOT]


def test_each_file_may_be_in_another_folder(tmp_path: Path) -> None:
    touch(tmp_path / "given", OMNIGLOT[1])
    touch(tmp_path / "cache" / "data", OMNIGLOT[0])
    found = NAMED_SETS["omniglot"].find(str(tmp_path / "given"))
    assert found == [tmp_path / "cache" / "data" / OMNIGLOT[0], tmp_path / "given" / OMNIGLOT[1]]


def test_missing_files_are_downloaded_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fetch(folder: Path, *, quiet: bool = False) -> list[Path]:
        folders.append(folder)
        return write_omniglot(folder, quiet=quiet)

    monkeypatch.setattr(download, "DOWNLOADS", {"omniglot": fetch})
    for _ in range(2):
        found = NAMED_SETS["omniglot"].find("")
        assert found == [tmp_path / "cache" / "data" / file for file in OMNIGLOT]
        assert all(path.is_file() for path in found)
    assert folders == [tmp_path / "cache" / "data"]


def test_a_failed_download_says_which_files_to_put_where(tmp_path: Path) -> None:
    where = tmp_path / "cache" / "data"
    with refused("unreachable", f"put {', '.join(OMNIGLOT)} into {where}", "--data", "METAVRF_DATA"):
        NAMED_SETS["omniglot"].find("")
    touch(tmp_path / "given", OMNIGLOT[0])
    with refused("unreachable", f"put {OMNIGLOT[1]} into {where}"):
        NAMED_SETS["omniglot"].find(str(tmp_path / "given"))


def test_mini_imagenet_is_never_downloaded(tmp_path: Path) -> None:
    files = ", ".join(f"miniimagenet-{part}.parquet" for part in ("train", "val", "test"))
    with refused("mini-imagenet cannot be downloaded", "non-commercial", files, tmp_path / "cache" / "data"):
        open_tasks("mini-imagenet", DataSettings())


def test_a_data_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused(tmp_path / "nowhere", "does not exist"):
        NAMED_SETS["cifar-fs"].find(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", NAMED_SETS)
def test_a_split_that_is_not_known_is_refused_before_anything_is_read(name: str) -> None:
    with refused("'lunar'", name, ", ".join(NAMED_SETS[name].splits)):
        open_tasks(name, DataSettings(split="lunar"))


def test_a_data_set_that_is_not_known_is_refused_with_the_names_there_are() -> None:
    with refused("'mnist'", "omniglot, cifar-fs, fc100, mini-imagenet"):
        named_set("mnist")
    assert named_set("fc100") is NAMED_SETS["fc100"]


def test_omniglot_is_bright_ink_in_four_rotations_grouped_by_alphabet(
    tmp_path: Path, generator: torch.Generator
) -> None:
    write_omniglot(tmp_path)
    bank, _ = NAMED_SETS["omniglot"].read(str(tmp_path))
    alphabets = ("Latin", "Greek", "Tifinagh", "Tengwar")
    names = [f"{alphabet}/character0{k}" for alphabet in alphabets for k in (1, 2)]
    assert bank.names == [name + turn for turn in TURNS for name in names]
    assert bank.inputs.shape == (4 * 16, 1, 28, 28)
    assert torch.equal(bank.inputs[3, 0], torch.from_numpy(255 - glyph(1, 1, 28)))
    episodes = bank.sample(200, 2, 1, 1, generator, within_group=True)
    tasks = {frozenset(bank.names[row // 2] for row in task) for task in episodes.support_x.tolist()}
    pairs = [frozenset(f"{alphabet}/character0{k}{turn}" for k in (1, 2)) for turn in TURNS for alphabet in alphabets]
    assert tasks == set(pairs)


def test_a_listing_tells_what_is_missing_and_counts_nothing(tmp_path: Path) -> None:
    touch(tmp_path / "given", OMNIGLOT[0])
    entry = listing(NAMED_SETS["omniglot"], str(tmp_path / "given"))
    assert entry["files"] == {OMNIGLOT[0]: str(tmp_path / "given" / OMNIGLOT[0]), OMNIGLOT[1]: None}
    assert entry["complete"] is False
    assert entry["splits"] == ["vinyals", "random", "lake"]
    assert (entry["name"], entry["licence"]) == ("omniglot", "MIT")
    assert "classes" not in entry
    assert json.loads(json.dumps(entry)) == entry


def lists(file: str) -> dict[str, Any]:
    return dict(json.loads((REAL / file).read_text()))


def turned(names: list[str]) -> list[str]:
    return [name + turn for turn in TURNS for name in names]


def names_of(file: str) -> list[str]:
    metadata = pyarrow.parquet.read_schema(REAL / file).metadata[b"huggingface"]
    return list(json.loads(metadata)["info"]["features"]["label"]["names"])


def first_rows(file: str) -> list[dict[str, Any]]:
    batch = next(pyarrow.parquet.ParquetFile(REAL / file).iter_batches(batch_size=3))
    return list(batch.to_pylist())


Open = Callable[..., ClassTasks]


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache in which Omniglot is decoded once for all tests."""
    cache = tmp_path_factory.mktemp("omniglot")
    yield cache
    for file in (cache / "banks").glob("*"):
        file.unlink()  # 100 MB that pytest would keep


@pytest.fixture
def omniglot(decoded: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the real Omniglot."""
    monkeypatch.setenv("METAVRF_CACHE", str(decoded))

    def opened(split: str = "", seed: int = 0) -> ClassTasks:
        tasks = open_tasks("omniglot", DataSettings(data=str(REAL), split=split, split_seed=seed), quiet=True)
        assert isinstance(tasks, ClassTasks)
        return tasks

    return opened


def disjoint(banks: dict[str, Bank]) -> bool:
    """No character of one part is in another, in whatever rotation."""
    characters = [{name.split("@")[0] for name in bank.names} for bank in banks.values()]
    return len(set().union(*characters)) == sum(map(len, characters))


@needs_real_data
def test_omniglot_is_split_as_published(omniglot: Open) -> None:
    tasks, published = omniglot(), lists("omniglot_vinyals_splits.json")["splits"]
    assert tasks.description.split == "vinyals"
    assert [len(tasks.banks[part].names) for part in ("train", "val", "test")] == [4112, 688, 1692]
    assert disjoint(tasks.banks)
    for part, bank in tasks.banks.items():
        assert sorted(bank.names) == sorted(turned(published[part]))
        assert (bank.counts == 20).all()
    assert tasks.bank.inputs.shape == (4 * 1623 * 20, 1, 28, 28)
    assert 10 < tasks.bank.inputs[::1000].float().mean() < 60  # little ink on black


@needs_real_data
def test_lakes_split_of_omniglot_is_by_alphabet(omniglot: Open) -> None:
    banks = omniglot("lake").banks
    background, evaluation = (names_of(file) for file in OMNIGLOT)
    assert (len(background), len(evaluation)) == (964, 659)
    assert sorted(banks["test"].names) == sorted(turned(evaluation))
    assert sorted([*banks["train"].names, *banks["val"].names]) == sorted(turned(background))
    alphabets = {part: {name.split("/")[0] for name in bank.names} for part, bank in banks.items()}
    assert {part: len(names) for part, names in alphabets.items()} == {"train": 25, "val": 5, "test": 20}
    assert disjoint(banks)
    assert len(set().union(*alphabets.values())) == 50


@needs_real_data
def test_a_random_split_of_omniglot_is_of_characters_by_seed(omniglot: Open) -> None:
    first, again, other = (omniglot("random", seed) for seed in (0, 0, 1))
    assert {part: len(bank.names) for part, bank in first.banks.items()} == {"train": 4400, "val": 400, "test": 1692}
    assert disjoint(first.banks)
    assert first.description == again.description
    assert first.description.classes != other.description.classes
    for bank in first.banks.values():
        assert sorted(bank.names) == sorted(turned([name for name in bank.names if "@" not in name]))


@needs_real_data
def test_tasks_within_an_alphabet_of_the_real_omniglot_stay_there(omniglot: Open, generator: torch.Generator) -> None:
    tasks = omniglot("lake")
    episodes = tasks.banks["test"].sample(200, 20, 1, 1, generator, within_group=True)
    name_at = {int(start): name for name, start in zip(tasks.bank.names, tasks.bank.starts, strict=True)}
    for task in episodes.support_x.tolist():
        names = [name_at[row - row % 20] for row in task]
        assert len(set(names)) == 20
        assert len({(name.split("/")[0], name.partition("@")[2]) for name in names}) == 1


@needs_real_data
@pytest.mark.usefixtures("omniglot")
def test_a_listing_counts_classes_and_images() -> None:
    entry = listing(NAMED_SETS["omniglot"], str(REAL))
    assert entry["complete"] is True
    assert entry["classes"] == {"train": 4112, "val": 688, "test": 1692}
    assert entry["images"] == {part: 20 * classes for part, classes in entry["classes"].items()}


@needs_real_data
@pytest.mark.parametrize(("name", "split"), [("cifar-fs", "bertinetto"), ("fc100", "oreshkin")])
def test_the_splits_of_cifar_are_as_published(name: str, split: str) -> None:
    published = lists("cifar_fs_splits.json")
    expected = published["cifar_fs"] if name == "cifar-fs" else {k: v["classes"] for k, v in published["fc100"].items()}
    names = names_of("cifar100-train.parquet")
    given = NAMED_SETS[name].splits[split](names, 0)
    assert {part: sorted(classes) for part, classes in given.items()} == {k: sorted(v) for k, v in expected.items()}
    assert sorted(chain(*given.values())) == sorted(names)
    if name == "fc100":
        groups = [{published["superclass_of"][c] for c in classes} for classes in given.values()]
        assert [len(group) for group in groups] == [12, 4, 4]
        assert len(set().union(*groups)) == 20


@needs_real_data
def test_the_two_files_of_cifar_name_the_same_classes() -> None:
    assert NAMED_SETS["cifar-fs"].files == NAMED_SETS["fc100"].files
    train, test = NAMED_SETS["cifar-fs"].files
    assert names_of(train) == names_of(test)
    assert len(names_of(train)) == 100


@needs_real_data
def test_mini_imagenet_is_split_as_published() -> None:
    named, published = NAMED_SETS["mini-imagenet"], lists("miniimagenet_splits.json")["splits"]
    given = named.splits["ravi"]([name for file in named.files for name in names_of(file)], 0)
    assert {part: len(classes) for part, classes in given.items()} == {"train": 64, "val": 16, "test": 20}
    assert {part: set(classes) for part, classes in given.items()} == {k: set(v) for k, v in published.items()}
    for file, images in zip(named.files, (300, 100, 600), strict=True):
        labels = pyarrow.parquet.read_table(REAL / file, columns=["label"])["label"].to_pylist()
        assert Counter(labels) == dict.fromkeys(range(len(names_of(file))), images)


@needs_real_data
@pytest.mark.parametrize("name", ["cifar-fs", "mini-imagenet"])
def test_the_first_pictures_of_each_file_can_be_decoded(name: str) -> None:
    named = NAMED_SETS[name]
    assert named.preprocessing == Preprocessing(32 if name == "cifar-fs" else 84)
    for file in named.files:
        for row in first_rows(file):
            pixels = named.preprocessing.decode(row["image"]["bytes"], file)
            assert pixels.shape == named.preprocessing.shape
            assert pixels.std() > 5
