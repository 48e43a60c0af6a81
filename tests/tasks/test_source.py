from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glyphs import encoded, glyph, name_of, refused, write_glyph_folder, write_glyph_table, write_table
from metavrf.config import DataSettings, EpisodeSettings
from metavrf.run import write_tensors
from metavrf.tasks.bank import Bank
from metavrf.tasks.source import ClassTasks, Description, FunctionTasks, open_tasks

SETTINGS = DataSettings(image_size=16, grey=True)
SPLIT = {"train": ["a", "c", "e", "g"], "val": ["b", "h"], "test": ["d", "f"]}
SHAPE = EpisodeSettings(way=2, shot=1, query=3, batch=7, train_way=3, train_shot=2, test_query=4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))


def opened(path: Path | str, settings: DataSettings = SETTINGS) -> ClassTasks:
    tasks = open_tasks(str(path), settings, quiet=True)
    assert isinstance(tasks, ClassTasks)
    return tasks


def assert_glyphs(tasks: ClassTasks, drawers: int = 6) -> None:
    """Each class of each part holds the drawings of its name."""
    for part, bank in tasks.banks.items():
        assert list(bank.names) == list(tasks.description.classes[part])
        for name, start, count in zip(bank.names, bank.starts.tolist(), bank.counts.tolist(), strict=True):
            expected = [glyph(int(name.removeprefix("glyph")), drawer) for drawer in range(drawers)]
            assert bank.inputs[start : start + count, 0].numpy().tolist() == [pixels.tolist() for pixels in expected]


def numbered(augment: str = "none") -> ClassTasks:
    """Images of one shade a class, ten of each."""
    names = list("abcdefgh")
    shades = torch.arange(8, dtype=torch.uint8).repeat_interleave(10)
    bank = Bank.of_labels(shades.view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous(), shades.long(), names)
    return ClassTasks(bank, SPLIT, Description((1, 8, 8), None, "given", "", "", SPLIT), augment=augment)


def numbers(part: str) -> list[int]:
    return ["abcdefgh".index(name) for name in SPLIT[part]]


@pytest.mark.parametrize("write", [write_glyph_table, write_glyph_folder])
def test_own_pictures_are_split_at_random_by_seed(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(tmp_path / "own.parquet", range(10))
    tasks = opened(path)
    assert_glyphs(tasks)
    parts = tasks.description.classes
    assert [len(parts[part]) for part in ("train", "val", "test")] == [6, 2, 2]
    assert sorted(name for part in parts.values() for name in part) == [name_of(number) for number in range(10)]
    assert (tasks.description.inputs, tasks.description.targets) == ((1, 16, 16), None)
    assert tasks.description.split == "random, seed 0"
    assert opened(path).description == tasks.description
    other = opened(path, DataSettings(image_size=16, grey=True, split_seed=1)).description
    assert other.split == "random, seed 1"
    assert other.classes != parts


def test_colour_and_size_are_as_asked_for(tmp_path: Path) -> None:
    tasks = opened(write_glyph_table(tmp_path / "own.parquet", range(6)), DataSettings(image_size=9))
    assert tasks.description.inputs == (3, 9, 9)
    assert tasks.bank.inputs.shape == (36, 3, 9, 9)


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_folders_of_parts_are_the_split(val: str, tmp_path: Path) -> None:
    for part, classes in (("train", (3, 5, 7)), (val, (1, 2)), ("test", (0, 9))):
        write_glyph_folder(tmp_path / "set" / part, classes)
    (tmp_path / "set" / ".git").mkdir()
    tasks = opened(tmp_path / "set")
    assert_glyphs(tasks)
    expected = {"train": (3, 5, 7), "val": (1, 2), "test": (0, 9)}
    assert tasks.description.classes == {part: [name_of(n) for n in classes] for part, classes in expected.items()}
    assert tasks.description.split == "given"


def test_class_folders_that_include_one_named_train_are_no_parts(tmp_path: Path) -> None:
    write_glyph_folder(tmp_path, range(4))
    for number, name in enumerate(("train", "val", "test")):
        (tmp_path / name_of(number)).rename(tmp_path / name)
    (tmp_path / "bus").mkdir()
    for file in (tmp_path / "train").iterdir():
        (tmp_path / "bus" / file.name).write_bytes(file.read_bytes())
    with refused(tmp_path, "5 classes"):
        opened(tmp_path)


def test_tables_of_parts_are_the_split(tmp_path: Path) -> None:
    files = {"train-0": (3, 5), "train-1": (7, 8), "my-validation": (1, 2), "test": (0, 9)}
    for name, classes in files.items():
        write_glyph_table(tmp_path / "set" / f"{name}.parquet", classes)
    tasks = opened(tmp_path / "set")
    assert_glyphs(tasks)
    assert [len(tasks.description.classes[part]) for part in ("train", "val", "test")] == [4, 2, 2]
    assert tasks.description.split == "given"


def test_tables_without_parts_are_read_together(tmp_path: Path) -> None:
    for name, classes in (("one", (0, 1, 2)), ("two", (3, 4, 5))):
        write_glyph_table(tmp_path / "set" / f"{name}.parquet", classes)
    tasks = opened(tmp_path / "set")
    assert_glyphs(tasks)
    assert len(tasks.bank.names) == 6


@pytest.mark.parametrize(("write", "ending"), [(write_glyph_table, ".parquet"), (write_glyph_folder, "")])
def test_a_class_in_two_parts_is_refused(write: Callable[..., Path], ending: str, tmp_path: Path) -> None:
    for part, classes in (("train", (3, 5)), ("val", (1, 2)), ("test", (0, 5))):
        write(tmp_path / "set" / f"{part}{ending}", classes)
    with refused("'glyph05'", "more than one"):
        opened(tmp_path / "set")


@pytest.mark.xfail(strict=True, reason="the hub lists all class names in every file: those without pictures count too")
def test_tables_of_parts_may_share_one_list_of_names(tmp_path: Path) -> None:
    names = [name_of(number) for number in range(6)]
    for part, classes in (("train", (0, 1)), ("val", (2, 3)), ("test", (4, 5))):
        write_table(tmp_path / "set" / f"{part}.parquet", [encoded(glyph(n, 0)) for n in classes], classes, names)
    assert_glyphs(opened(tmp_path / "set"), drawers=1)


def test_fewer_than_six_classes_are_refused(tmp_path: Path) -> None:
    path = write_glyph_table(tmp_path / "own.parquet", range(5))
    with refused(path, "5 classes", "at least 6"):
        opened(path)
    assert len(opened(write_glyph_table(tmp_path / "more.parquet", range(6))).banks["train"].names) == 2


def write_features(path: Path, **changed: Any) -> Path:
    """A feature file as ``metavrf embed`` writes it: a class's features are its number; None leaves an entry out."""
    names = list("abcdefgh")
    description = Description((3,), None, "given", "00", "ImageNet-1k", SPLIT)
    tensors: dict[str, Any] = {
        "inputs": torch.arange(8.0).repeat_interleave(10).unsqueeze(1).expand(-1, 3),
        "starts": torch.arange(8) * 10,
        "counts": torch.full((8,), 10),
        "groups": torch.tensor([0, 0, 0, 1, 1, 1, 0, 1]),
    }
    metadata: dict[str, Any] = {"names": names, "description": description.to_dict(), "by": "efficientnet-lite0"}
    for name, value in changed.items():
        (tensors if name in tensors else metadata)[name] = value
    kept = [{name: value for name, value in entries.items() if value is not None} for entries in (tensors, metadata)]
    write_tensors(path, *kept)
    return path


def test_a_feature_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    tasks = opened(write_features(tmp_path / "own.safetensors"), DataSettings(augment="affine"))
    assert tasks.description == Description((3,), None, "given", "00", "ImageNet-1k", SPLIT)
    assert tasks.bank.groups is not None
    generator = torch.Generator().manual_seed(0)
    shown = tasks.training(SHAPE, generator).support_x
    assert shown.shape == (7, 6, 3)
    assert set(shown.unique().tolist()) <= set(numbers("train"))
    held_out = tasks.held_out("test", 5, SHAPE, generator, within_group=True).looked_up()
    assert set(held_out.query_x.unique().tolist()) == set(numbers("test"))


UNCHECKED = pytest.mark.xfail(strict=True, reason="rows, starts, counts and names are not checked against each other")


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": None},
        {"starts": None},
        {"inputs": torch.full((80, 3), torch.nan)},
        {"inputs": torch.zeros(80, 3, 1)},
        {"names": None},
        {"description": {}},
        {"description": None},
        {"description": Description().to_dict()},
        {"description": Description(classes=SPLIT).to_dict() | {"more": 1}},
        pytest.param({"starts": torch.arange(8) * 11}, marks=UNCHECKED),
        pytest.param({"counts": torch.full((7,), 10)}, marks=UNCHECKED),
        pytest.param({"names": list("abcdefg")}, marks=UNCHECKED),
    ],
)
def test_a_feature_file_that_does_not_fit_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = write_features(tmp_path / "own.safetensors", **changed)
    with refused(path):
        opened(path).held_out("test", 200, SHAPE, torch.Generator().manual_seed(0)).looked_up()


@pytest.mark.parametrize("keep", [0, 5, 300, -7])
def test_a_cut_feature_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = write_features(tmp_path / "own.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with refused(path, "damaged"):
        opened(path)


def test_a_task_that_is_not_known_is_refused_with_the_names_there_are() -> None:
    with refused("'sinus'", "sine, sine-maml"):
        open_tasks("sinus", SETTINGS)


@pytest.mark.xfail(strict=True, reason="only the families of functions are named")
def test_the_names_there_are_include_the_image_sets() -> None:
    with refused("'omniglott'", "omniglot, cifar-fs, fc100, mini-imagenet"):
        open_tasks("omniglott", SETTINGS)


@pytest.mark.xfail(strict=True, reason="a path that is not there is called an unknown task")
def test_a_path_that_is_not_there_is_called_that(tmp_path: Path) -> None:
    with refused(tmp_path / "own.parquet", "does not exist"):
        open_tasks(str(tmp_path / "own.parquet"), SETTINGS)


def test_functions_are_tasks_of_regression(generator: torch.Generator) -> None:
    tasks = open_tasks("sine", SETTINGS)
    assert isinstance(tasks, FunctionTasks)
    assert tasks.description == Description((1,), 1)
    assert tasks.training(EpisodeSettings(shot=4, query=6, batch=3), generator).query_x.shape == (3, 6, 1)
    assert tasks.held_out("test", 9, EpisodeSettings(shot=4), generator).support_x.shape == (9, 4, 1)
    with refused("omniglot"):
        tasks.held_out("test", 9, EpisodeSettings(), generator, within_group=True)


def test_training_tasks_have_their_own_way_and_shot(generator: torch.Generator) -> None:
    episodes = numbered().training(SHAPE, generator)
    assert (episodes.tasks, episodes.way, episodes.shot, episodes.query_x.shape[1]) == (7, 3, 2, 9)
    assert episodes.bank is None
    assert episodes.support_x.shape == (7, 6, 1, 8, 8)
    plain = numbered().training(EpisodeSettings(way=2, shot=4, query=1, batch=2), generator)
    assert (plain.tasks, plain.way, plain.shot, plain.query_x.shape[1]) == (2, 2, 4, 2)


@pytest.mark.parametrize("part", ["val", "test"])
def test_held_out_tasks_have_the_way_shot_and_query_of_the_test(part: str, generator: torch.Generator) -> None:
    tasks = numbered()
    episodes = tasks.held_out(part, 6, SHAPE, generator)
    assert (episodes.tasks, episodes.way, episodes.shot, episodes.query_x.shape[1]) == (6, 2, 1, 8)
    assert episodes.bank is tasks.bank.inputs


def test_more_training_classes_than_there_are_means_all_but_a_way_beyond_them_is_refused(
    generator: torch.Generator,
) -> None:
    assert numbered().training(EpisodeSettings(way=2, query=1, train_way=60), generator).way == 4
    with refused("way=5", "4 classes"):
        numbered().training(EpisodeSettings(way=5, query=1), generator)


def test_each_part_shows_its_own_classes_and_all_of_them(generator: torch.Generator) -> None:
    tasks = numbered()
    training = tasks.training(EpisodeSettings(way=2, shot=1, query=2, batch=100), generator)
    val, test = (tasks.held_out(part, 100, SHAPE, generator).looked_up() for part in ("val", "test"))
    for part, episodes in (("train", training), ("val", val), ("test", test)):
        shown = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        assert shown.unique().tolist() == sorted(numbers(part))


@pytest.mark.parametrize("augment", ["crop-flip", "affine"])
def test_training_images_are_augmented_by_seed_and_held_out_ones_never(augment: str, tmp_path: Path) -> None:
    path = write_glyph_table(tmp_path / "own.parquet", range(6), 8)
    plain = opened(path)
    changed = opened(path, DataSettings(image_size=16, grey=True, augment=augment))  # type: ignore[arg-type]
    shape = EpisodeSettings(way=2, shot=2, query=2, batch=4, test_query=3)

    def drawn(tasks: ClassTasks, seed: int = 0) -> torch.Tensor:
        return tasks.training(shape, torch.Generator().manual_seed(seed)).support_x

    assert drawn(changed).shape == drawn(plain).shape
    assert drawn(changed).dtype == torch.uint8
    assert torch.equal(drawn(changed), drawn(changed))
    assert not torch.equal(drawn(changed), drawn(plain))
    first, second = (t.held_out("val", 4, shape, torch.Generator().manual_seed(0)) for t in (plain, changed))
    assert torch.equal(first.looked_up().support_x, second.looked_up().support_x)


def test_a_description_survives_json() -> None:
    for description in (Description(), Description((3, 8, 8), None, "given", "ab12", "ImageNet-1k", SPLIT)):
        assert Description.from_dict(json.loads(json.dumps(description.to_dict()))) == description
