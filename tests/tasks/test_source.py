from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glyphs import encoded, glyph, name_of, refused, write_glyph_folder, write_glyph_table, write_table
from metavrf.episodes import Episodes
from metavrf.files import write_tensors
from metavrf.randomness import stream
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.bank import Bank
from metavrf.tasks.source import ClassTasks, FunctionTasks, open_tasks

SETTINGS = DataSettings(image_size=16, grey=True)
SPLIT = {"train": ["a", "c", "e", "g"], "val": ["b", "h"], "test": ["d", "f"]}
SHAPE = EpisodeSettings(way=2, shot=1, query=3, batch=60, train_way=3, train_shot=2, test_query=4)

Write = Callable[..., Path]
BOTH = pytest.mark.parametrize(("write", "ending"), [(write_glyph_table, ".parquet"), (write_glyph_folder, "")])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))


def opened(path: Path, settings: DataSettings = SETTINGS, drawers: int = 6) -> ClassTasks:
    """The tasks on glyphs, each class of which holds the drawings of its name."""
    tasks = open_tasks(str(path), settings, quiet=True)
    assert isinstance(tasks, ClassTasks)
    for part, bank in tasks.banks.items():
        assert list(bank.names) == list(tasks.spec.classes[part])
        for name, start, count in zip(bank.names, bank.starts, bank.counts, strict=True):
            expected = [glyph(int(name.removeprefix("glyph")), drawer).tolist() for drawer in range(drawers)]
            assert bank.inputs[:][start : start + count, 0].tolist() == expected
    return tasks


def of(*numbers: int) -> list[str]:
    return [name_of(number) for number in numbers]


@BOTH
def test_own_pictures_are_split_at_random_by_seed(write: Write, ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"own{ending}", range(10))
    first, again, other = (opened(path, replace(SETTINGS, split_seed=seed)).spec for seed in (0, 0, 1))
    assert {part: len(names) for part, names in first.classes.items()} == {"train": 6, "val": 2, "test": 2}
    assert sorted(name for names in first.classes.values() for name in names) == of(*range(10))
    assert (first.inputs, first.targets, first.split) == ((1, 16, 16), None, "random, seed 0")
    assert first == again
    assert other.split == "random, seed 1"
    assert other.classes != first.classes


def test_colour_and_size_are_as_asked_for_and_six_classes_are_enough(tmp_path: Path) -> None:
    path = write_glyph_table(tmp_path / "own.parquet", range(6))
    tasks = open_tasks(str(path), DataSettings(image_size=9), quiet=True)
    assert tasks.spec.inputs == (3, 9, 9)
    assert isinstance(tasks, ClassTasks)
    assert tasks.bank.inputs.shape == (36, 3, 9, 9)
    few = write_glyph_table(tmp_path / "few.parquet", range(5))
    with refused(few, "5 classes", "at least 6"):
        opened(few)


@BOTH
@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_data_in_three_parts_is_split_so(write: Write, ending: str, val: str, tmp_path: Path) -> None:
    for part, numbers in (("train", (3, 5, 7)), (val, (1, 2)), ("test", (0, 9))):
        write(tmp_path / "set" / f"{part}{ending}", numbers)
    (tmp_path / "set" / ".git").mkdir()
    description = opened(tmp_path / "set").spec
    assert description.classes == {"train": of(3, 5, 7), "val": of(1, 2), "test": of(0, 9)}
    assert description.split == "given"


@pytest.mark.parametrize(("names", "split"), [(("train-0", "train-1", "val", "test"), "given"), ("abcd", "random")])
def test_tables_of_a_part_are_read_together(names: tuple[str, ...], split: str, tmp_path: Path) -> None:
    for number, name in enumerate(names):
        write_glyph_table(tmp_path / "set" / f"{name}.parquet", [2 * number, 2 * number + 1])
    description = opened(tmp_path / "set").spec
    assert {part: len(classes) for part, classes in description.classes.items()} == {"train": 4, "val": 2, "test": 2}
    assert description.split.startswith(split)


@BOTH
def test_a_class_in_two_parts_is_refused(write: Write, ending: str, tmp_path: Path) -> None:
    for part, numbers in (("train", (3, 5)), ("val", (1, 2)), ("test", (0, 5))):
        write(tmp_path / "set" / f"{part}{ending}", numbers)
    with refused("'glyph05'", "more than one"):
        opened(tmp_path / "set")


def test_tables_of_parts_may_share_one_list_of_names(tmp_path: Path) -> None:
    for part, numbers in (("train", (0, 1)), ("val", (2, 3)), ("test", (4, 5))):
        pictures = [encoded(glyph(number, 0)) for number in numbers]
        write_table(tmp_path / "set" / f"{part}.parquet", pictures, numbers, of(*range(6)))
    opened(tmp_path / "set", drawers=1)


def write_features(path: Path, **changed: Any) -> Path:
    """A feature file as ``metavrf embed`` writes it: a class's features are its number; None leaves an entry out."""
    tensors = {
        "inputs": torch.arange(8.0).repeat_interleave(10).unsqueeze(1).expand(-1, 3),
        "starts": torch.arange(8) * 10,
        "counts": torch.full((8,), 10),
        "groups": torch.tensor([0, 0, 0, 1, 1, 1, 0, 1]),
    }
    description = TaskSpec((3,), None, "given", "00", "ImageNet-1k", SPLIT).to_dict()
    entries = tensors | {"names": list("abcdefgh"), "description": description} | changed
    kept = {name: value for name, value in entries.items() if value is not None}
    write_tensors(
        path,
        {name: value for name, value in kept.items() if name in tensors},
        {name: value for name, value in kept.items() if name not in tensors},
    )
    return path


def test_a_feature_file_is_read_as_it_was_written(tmp_path: Path, generator: torch.Generator) -> None:
    path = write_features(tmp_path / "own.safetensors")
    tasks = open_tasks(str(path), DataSettings(augment="affine"))
    assert tasks.spec == TaskSpec((3,), None, "given", "00", "ImageNet-1k", SPLIT)
    assert shown(tasks.training(SHAPE, generator)) == [0, 2, 4, 6]
    assert shown(tasks.held_out("test", 60, SHAPE, generator, within_group=True)) == [3, 5]


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": None},
        {"starts": None},
        {"names": None},
        {"description": None},
        {"description": {}},
        {"description": TaskSpec().to_dict()},
        {"description": TaskSpec(classes=SPLIT).to_dict() | {"more": 1}},
        {"inputs": torch.full((80, 3), torch.nan)},
        {"inputs": torch.zeros(80, 3, 1)},
        {"starts": torch.arange(8) * 11},
        {"counts": torch.full((7,), 10)},
        {"names": list("abcdefg")},
    ],
)
def test_a_feature_file_that_does_not_fit_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = write_features(tmp_path / "own.safetensors", **changed)
    with refused(path):
        open_tasks(str(path), SETTINGS).held_out("val", 99, SHAPE, torch.Generator().manual_seed(0)).looked_up()


@pytest.mark.parametrize("keep", [0, 5, 300, -7])
def test_a_cut_feature_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = write_features(tmp_path / "own.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with refused(path, "damaged"):
        open_tasks(str(path), SETTINGS)


EMBEDDED = TaskSpec((3,), None, "given", "00", "ImageNet", SPLIT, "efficientnet-lite0@160", "cifar-fs")


def test_a_feature_file_is_found_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def shades(task: str, data: object = "") -> float:
        tasks = open_tasks(task, DataSettings(data=str(data)))
        assert isinstance(tasks, ClassTasks)
        return float(tasks.bank.inputs[:][0, 0])

    for number, folder in enumerate(("here", "cache/data", "known", "given")):
        (tmp_path / folder).mkdir(parents=True)
        write_features(tmp_path / folder / "z.safetensors", inputs=torch.full((80, 3), float(number)))
    assert shades("z.safetensors") == 1
    monkeypatch.setenv("METAVRF_DATA", str(tmp_path / "known"))
    assert shades("z.safetensors") == 2
    assert shades("here/z.safetensors") == 0
    assert shades("z.safetensors", tmp_path / "given") == 3
    assert shades("here/z.safetensors", tmp_path / "given") == 3
    assert shades("other.safetensors", tmp_path / "given" / "z.safetensors") == 3
    with refused("no.safetensors", "metavrf embed DATA --out no.safetensors", "--data"):
        shades("gone/no.safetensors")


def test_a_run_says_how_to_make_the_features_it_needs(tmp_path: Path) -> None:
    command = "metavrf embed cifar-fs --by efficientnet-lite0 --resolution 160 --out z.safetensors"
    with refused(f"'{command}'", "--data"):
        open_tasks("z.safetensors", SETTINGS, trained_on=EMBEDDED)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": SPLIT | {"test": ["d"]}}, "not those the run was split by"),
        ({"embedder": "efficientnet-lite0@224"}, "of another kind"),
        ({"inputs": (4,)}, "of another kind"),
    ],
)
def test_a_run_is_not_tested_on_other_features(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_features(tmp_path / "z.safetensors", description=EMBEDDED.to_dict())
    open_tasks(str(path), SETTINGS, trained_on=EMBEDDED)
    open_tasks(str(path), SETTINGS, trained_on=replace(EMBEDDED, embedder=""))  # not known: not refused
    with refused(path, message):
        open_tasks(str(path), SETTINGS, trained_on=replace(EMBEDDED, **changed))


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("sinus", "sine-maml"),
        ("omniglott", "omniglot, cifar-fs"),
        ("my/set.parquet", "does not exist"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(task: str, named: str) -> None:
    with refused(task, named):
        open_tasks(task, SETTINGS)


def test_functions_are_tasks_of_regression(generator: torch.Generator) -> None:
    tasks = open_tasks("sine", SETTINGS)
    assert tasks.spec == TaskSpec((1,), 1)
    assert tasks.spec.regression
    assert tasks.training(EpisodeSettings(shot=4, query=6, batch=3), generator).query_x.shape == (3, 6, 1)
    assert tasks.held_out("test", 9, EpisodeSettings(shot=4), generator).support_x.shape == (9, 4, 1)
    with refused("omniglot"):
        tasks.held_out("test", 9, EpisodeSettings(), generator, within_group=True)


def test_a_range_of_shots_is_drawn_anew_each_step_and_by_the_steps_own_numbers(generator: torch.Generator) -> None:
    functions, classes = open_tasks("sine", SETTINGS), shaded()
    for tasks, shape, way in (
        (functions, EpisodeSettings(shot=9, train_shot=2, most_shot=4, query=6, batch=3), 1),
        (classes, replace(SHAPE, most_shot=4), SHAPE.train_way),
    ):
        drawn = [tasks.training(shape, stream(0, "train", step)).support_x for step in range(40)]
        assert {x.shape[1] for x in drawn} == {2 * way, 3 * way, 4 * way}
        assert torch.equal(drawn[7], tasks.training(shape, stream(0, "train", 7)).support_x)
        assert tasks.held_out("val", 5, shape, generator).shot == shape.shot  # tests have the shots asked for


def shaded(groups: str = "", **options: Any) -> ClassTasks:
    """Images of one shade a class, ten of each; ``groups`` gives the number of each of the classes a to h."""
    shades = torch.arange(8).repeat_interleave(10)
    bank = Bank.of_labels(shades.view(-1, 1, 1, 1).repeat(1, 1, 8, 8).byte(), shades, list("abcdefgh"))
    bank = replace(bank, groups=torch.tensor([int(group) for group in groups])) if groups else bank
    return ClassTasks(bank, SPLIT, TaskSpec((1, 8, 8), None, "given", "", "", SPLIT), **options)


def shown(episodes: Episodes) -> list[int]:
    """The classes seen in any task, where inputs are class numbers."""
    x = episodes if episodes.bank is None else episodes.looked_up()
    return [int(number) for number in torch.cat([x.support_x, x.query_x], dim=1).unique()]


def test_training_tasks_have_their_own_way_and_shot_and_only_training_classes(generator: torch.Generator) -> None:
    episodes = shaded().training(SHAPE, generator)
    assert (episodes.way, episodes.support_x.shape, episodes.query_x.shape[1]) == (3, (60, 6, 1, 8, 8), 9)
    assert shown(episodes) == [0, 2, 4, 6]
    as_tested = shaded().training(replace(SHAPE, train_way=0, train_shot=0), generator)
    assert (as_tested.way, as_tested.shot) == (2, 1)
    assert shaded().training(replace(SHAPE, train_way=60), generator).way == 4
    with refused("way=5", "4 classes"):
        shaded().training(replace(SHAPE, train_way=0, way=5), generator)


@pytest.mark.parametrize(("part", "numbers"), [("val", [1, 7]), ("test", [3, 5])])
def test_held_out_tasks_have_the_shape_of_the_test_and_only_its_classes(
    part: str, numbers: list[int], generator: torch.Generator
) -> None:
    tasks = shaded()
    episodes = tasks.held_out(part, 50, SHAPE, generator)
    assert (episodes.way, episodes.support_x.shape, episodes.query_x.shape) == (2, (50, 2), (50, 8))
    assert episodes.bank is tasks.bank.inputs
    assert shown(episodes) == numbers


HALVES = "00001111"  # of a to h: the training classes are a, c and e, g; the others b, h and d, f


def shades_of(episodes: Episodes, stream: int) -> list[list[int]]:
    """The classes of each stream."""
    shades = episodes.looked_up().support_x[..., 0, 0, 0].reshape(-1, stream * episodes.support_x.shape[1])
    return [row.unique().tolist() for row in shades]


@pytest.mark.parametrize(("batch", "tasks", "trained", "held"), [(60, 60, 60, 60), (1, 2, 4, 4), (9, 11, 12, 8)])
def test_streams_are_whole_and_of_one_group_each(
    batch: int, tasks: int, trained: int, held: int, generator: torch.Generator
) -> None:
    shape = replace(SHAPE, batch=batch, train_way=2, stream=4)
    training = shaded(HALVES).training(shape, generator)
    assert (training.tasks, training.stream) == (trained, 4)
    assert all(shades in ([0, 2], [4, 6]) for shades in shades_of(training, 4))
    held_out = shaded("01000001").held_out("val", tasks, replace(shape, way=2), generator)
    assert (held_out.tasks, held_out.stream) == (held, 4)
    assert shades_of(held_out, 4) == [[1, 7]] * (held // 4)
    with refused("way=2", "1 classes of the largest group"):
        shaded(HALVES).held_out("val", tasks, shape, generator)
    for draw in (lambda: shaded().training(shape, generator), lambda: shaded().held_out("val", 4, shape, generator)):
        with refused("no groups"):
            draw()


def test_training_tasks_of_a_stream_have_as_many_classes_as_all_groups_have(generator: torch.Generator) -> None:
    groups, shape = "00101101", replace(SHAPE, stream=2)  # of the training classes, a and g; c and e
    assert shaded(groups).training(replace(shape, train_way=60), generator).way == 2
    three = "00000020"  # a, c and e; g alone
    assert shaded(three).training(replace(shape, train_way=3), generator).way == 3
    assert shaded(three).training(replace(shape, train_way=60), generator).way == 3
    with refused("way=4", "3 classes of the largest group"):
        shaded(three).training(replace(shape, train_way=60, way=4), generator)


def test_a_view_of_a_group_is_a_group_of_its_own(generator: torch.Generator) -> None:
    shape = replace(SHAPE, train_way=2, stream=3)
    for options, views in (({"mirror": True}, 2), ({"rotate": True}, 4), ({"mirror": True, "rotate": True}, 8)):
        tasks = shaded(HALVES, **options)
        assert tasks.banks["train"].group_sizes().tolist() == [2] * (2 * views)
        assert all(shades in ([0, 2], [4, 6]) for shades in shades_of(tasks.training(shape, generator), 3))


def test_tasks_of_equal_size_are_one_group(generator: torch.Generator) -> None:
    for tasks in (shaded(), open_tasks("sine", SETTINGS)):
        (episodes,) = tasks.groups("val", 7, SHAPE, torch.Generator().manual_seed(3), fixed_shot=True)
        same = tasks.held_out("val", 7, SHAPE, torch.Generator().manual_seed(3))
        assert torch.equal(episodes.support_x, same.support_x)


def test_tasks_of_unequal_size_are_several_groups_unless_the_shot_is_fixed(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    tasks = open_tasks("sine", SETTINGS)
    assert isinstance(tasks, FunctionTasks)
    monkeypatch.setattr(type(tasks.family), "unequal", True)
    groups = tasks.groups("val", 120, SHAPE, generator)
    assert sum(episodes.tasks for episodes in groups) == 120
    assert len({episodes.support_x.shape[1] for episodes in groups}) > 1
    (fixed,) = tasks.groups("val", 120, SHAPE, generator, fixed_shot=True)
    assert fixed.support_x.shape == (120, SHAPE.shot, 1)


def test_tasks_on_mixed_data_sets_are_of_one_set_each(generator: torch.Generator) -> None:
    tasks = shaded("01011010", mixed=True)  # of the training classes, a and c; e and g; then b; h, and d; f
    training = tasks.training(replace(SHAPE, train_way=60), generator)
    assert training.way == 2
    assert {tuple(shades) for shades in shades_of(training, 1)} == {(0, 2), (4, 6)}
    with refused("way=2", "1 val classes of the smallest"):
        tasks.held_out("val", 5, SHAPE, generator)
    with refused("way=3", "2 train classes of the smallest"):
        tasks.training(replace(SHAPE, train_way=0, way=3), generator)
    with refused("--within-alphabet", "one set"):
        tasks.held_out("val", 5, SHAPE, generator, within_group=True)


def test_features_of_mixed_pictures_are_drawn_as_the_pictures_are(tmp_path: Path, generator: torch.Generator) -> None:
    mixed = replace(EMBEDDED, pictures="mixed-images")
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
    path = write_features(tmp_path / "z.safetensors", description=mixed.to_dict(), groups=groups)
    drawn = open_tasks(str(path), SETTINGS).training(replace(SHAPE, train_way=2), generator).support_x[..., 0]
    assert {tuple(task.unique().tolist()) for task in drawn} == {(0, 2), (4, 6)}


@pytest.mark.parametrize("augment", ["crop-flip", "affine"])
def test_training_images_are_augmented_by_seed_and_held_out_ones_never(augment: Any, tmp_path: Path) -> None:
    path = write_glyph_table(tmp_path / "own.parquet", range(6))
    plain, changed = (opened(path, replace(SETTINGS, augment=how)) for how in ("none", augment))
    shape = EpisodeSettings(way=2, shot=2, query=2, batch=4, test_query=3)

    def drawn(tasks: ClassTasks) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        held_out = tasks.held_out("val", 4, shape, generator).looked_up()
        return held_out.support_x, tasks.training(shape, generator).support_x

    (held_out, training), (same, augmented), (_, again) = map(drawn, (plain, changed, changed))
    assert torch.equal(held_out, same)
    assert torch.equal(augmented, again)
    assert (augmented.shape, augmented.dtype) == (training.shape, torch.uint8)
    assert not torch.equal(augmented, training)


def test_a_description_survives_json() -> None:
    for description in (TaskSpec(), TaskSpec((3, 8, 8), None, "given", "ab12", "ImageNet-1k", SPLIT)):
        assert TaskSpec.from_dict(json.loads(json.dumps(description.to_dict()))) == description


def test_rotations_are_trained_on_as_classes_and_never_tested_on(tmp_path: Path, generator: torch.Generator) -> None:
    folder = write_glyph_folder(tmp_path / "pictures", range(8), drawers=6)
    plain, turned = (
        open_tasks(str(folder), DataSettings(image_size=16, grey=True, rotate=rotate)) for rotate in (False, True)
    )
    assert isinstance(plain, ClassTasks)
    assert isinstance(turned, ClassTasks)
    assert len(turned.banks["train"].names) == 4 * len(plain.banks["train"].names)
    upright = plain.banks["train"].compact().inputs[:]
    four = torch.cat([upright.rot90(turn, (2, 3)) for turn in range(4)])
    assert torch.equal(turned.banks["train"].compact().inputs[:], four)
    for part in ("val", "test"):
        assert turned.banks[part].names == plain.banks[part].names
    shape = EpisodeSettings(way=12, shot=1, query=2)
    assert turned.training(shape, generator).way == 12


def test_mirror_images_are_trained_on_as_classes_and_never_tested_on(
    tmp_path: Path, generator: torch.Generator
) -> None:
    folder = write_glyph_folder(tmp_path / "pictures", range(8), drawers=6)
    plain, doubled, eightfold = (
        open_tasks(str(folder), DataSettings(image_size=16, grey=True, mirror=mirror, rotate=rotate))
        for mirror, rotate in ((False, False), (True, False), (True, True))
    )
    assert isinstance(plain, ClassTasks) and isinstance(doubled, ClassTasks) and isinstance(eightfold, ClassTasks)
    bank, upright = doubled.banks["train"].compact(), plain.banks["train"].compact()
    assert torch.equal(bank.inputs[:], torch.cat([upright.inputs[:], upright.inputs[:].flip(3)]))
    assert len(bank.names) == len(set(bank.names)) == 2 * len(upright.names)
    assert torch.equal(bank.starts[len(upright.names) :], upright.starts + len(upright.inputs))
    assert len(eightfold.banks["train"].names) == 8 * len(upright.names)
    for part in ("val", "test"):
        assert doubled.banks[part].names == plain.banks[part].names
    assert doubled.training(EpisodeSettings(way=2, shot=1, query=2), generator).way == 2
