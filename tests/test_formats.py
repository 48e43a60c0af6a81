"""Runs of older formats are read as they were meant when they were written."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metavrf
from glyphs import refused
from metavrf import MetaVRFRegressor
from metavrf.config import Config, TrainingSettings
from metavrf.formats import FORMAT
from metavrf.learners import LEARNERS
from metavrf.learners.metavrf import MetaVRFSettings
from metavrf.nn.embeddings import EmbeddingSettings
from metavrf.runs.directory import SHIPPED, Run
from metavrf.settings import DataSettings, EpisodeSettings, added
from metavrf.spec import TaskSpec

# The models that come with the package, as they were written in format 1, each in a version of its own: none has all
# keys of the last one.
FORMAT_1: dict[str, str] = {}
FORMAT_1["omniglot"] = """
task = "omniglot"
learner = "metavrf"
preset = "default"

[episode]
way = 5
shot = 1
query = 5
batch = 1
train_way = 60
train_shot = 0
most_shot = 0
test_query = 15

[data]
data = ""
split = ""
split_seed = 0
augment = "affine"
rotate = false
mirror = true
image_size = 84
grey = false

[embedding]
embedding = "conv4"
channels = 64
dropout = 0.05
project = 0

[model]
context = "none"
context_inputs = "x"
context_skip = true
bases = 780
train_bases = 256
feature_map = "sincos"
orthogonal = false
draw = "fixed"
samples = 1
kl_weight = 0.001
prototype_weight = 1.0
ridge = 0.1
gamma = 10.0
unit_features = false
distance = 2.0

[inner]
inner_steps = 1
test_inner_steps = 0
inner_lr = 0.4
first_order = false

[training]
iterations = 11500
lr = 0.004
schedule = "cosine"
warmup = 100
clip = 1.0
seed = 0
validate_every = 500
validate_tasks = 600
patience = 0
devices = 1
threads = 2
tensorboard = false
"""
FORMAT_1["photos"] = """
task = "cifar-fs-lite0.safetensors"
learner = "metavrf"
preset = "default"

[episode]
way = 5
shot = 1
query = 5
batch = 1
train_way = 20
train_shot = 5
most_shot = 0
test_query = 15

[data]
data = ""
split = ""
split_seed = 0
augment = "none"
rotate = false
image_size = 84
grey = false

[embedding]
embedding = "conv5"
channels = 64
dropout = 0.0
project = 256

[model]
context = "none"
context_inputs = "x"
context_skip = true
bases = 4096
train_bases = 256
feature_map = "sincos"
orthogonal = true
draw = "fixed"
samples = 1
kl_weight = 0.001
ridge = 0.1
gamma = 10.0
unit_features = true
distance = 1.0

[inner]
inner_steps = 1
test_inner_steps = 0
inner_lr = 0.4
first_order = false

[training]
iterations = 300
lr = 0.001
schedule = "cosine"
warmup = 100
clip = 1.0
seed = 0
validate_every = 50
validate_tasks = 1000
patience = 0
devices = 1
threads = 1
tensorboard = false
"""
FORMAT_1["sine"] = """
task = "sine"
learner = "metavrf"
preset = "default"

[episode]
way = 5
shot = 5
query = 15
batch = 25
train_way = 0
train_shot = 2
most_shot = 20
test_query = 15
stream = 1

[data]
data = ""
split = ""
split_seed = 0
augment = "none"
rotate = false
mirror = false
image_size = 84
grey = false

[embedding]
embedding = "conv4"
channels = 64
dropout = 0.0
function_embedding = "raw"
project = 0

[model]
context = "none"
context_inputs = "xy"
context_skip = true
components = 64
combs = 0
guards = 9
moves = false
evidence = "marginal"
noise = 0.0001
train_kernel = "exact"
bases = 780
train_bases = 256
feature_map = "sincos"
orthogonal = false
draw = "resampled"
samples = 1
kl_weight = 0.0
prototype_weight = 0.0
ridge = 1e-06
gamma = 1.0
unit_features = false
distance = 0.0

[inner]
inner_steps = 1
test_inner_steps = 0
inner_lr = 0.4
first_order = false

[training]
iterations = 12000
lr = 0.004
schedule = "cosine"
warmup = 100
clip = 1.0
seed = 0
validate_every = 1000
validate_tasks = 1000
patience = 0
devices = 1
threads = 1
tensorboard = false
"""
FORMAT_1["sine-rff"] = """
task = "sine"
learner = "rff"
preset = "default"

[episode]
way = 5
shot = 5
query = 15
batch = 25
train_way = 0
train_shot = 2
most_shot = 20
test_query = 15

[data]
data = ""
split = ""
split_seed = 0
augment = "none"
rotate = false
image_size = 84
grey = false

[embedding]
embedding = "conv4"
channels = 64
dropout = 0.0
project = 0

[model]
context = "none"
context_inputs = "x"
context_skip = true
bases = 2048
train_bases = 256
feature_map = "sincos"
orthogonal = false
draw = "fixed"
samples = 1
kl_weight = 0.001
ridge = 1e-06
gamma = 1.0
unit_features = false
distance = 0.0

[inner]
inner_steps = 1
test_inner_steps = 0
inner_lr = 0.4
first_order = false

[training]
iterations = 5000
lr = 0.002
schedule = "cosine"
warmup = 100
clip = 1.0
seed = 0
validate_every = 1000
validate_tasks = 1000
patience = 0
devices = 1
threads = 1
tensorboard = false
"""


def read(text: str) -> Config[Any]:
    return Config.from_toml(text, "there/config.toml")


def without(text: str, *lines: str) -> str:
    """A text less some of its lines."""
    for line in lines:
        assert f"\n{line}\n" in text
        text = text.replace(f"\n{line}\n", "\n", 1)
    return text


@pytest.mark.parametrize("name", FORMAT_1)
def test_a_run_of_format_1_has_the_settings_it_was_trained_with(name: str) -> None:
    now = (SHIPPED / name / "config.toml").read_text()
    assert now.startswith(f"format = {FORMAT}\n")
    assert read(FORMAT_1[name]) == read(now) == Run.open(name).config()
    assert read(now).to_toml() == now


@pytest.mark.parametrize("name", FORMAT_1)
def test_a_run_of_format_1_answers_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / name, tmp_path / name)
    run = Run(tmp_path / name)
    (run.path / "manifest.json").unlink()  # there was none then
    run.config_file.write_text(FORMAT_1[name])
    if run.spec().regression:
        run.data_file.unlink()  # runs on functions had none
    old, now = metavrf.load(run.path), metavrf.load(name)
    assert (old.config, old.spec) == (now.config, now.spec)
    tensors, others = old.learner.state_dict(), now.learner.state_dict()
    assert tensors.keys() == others.keys()
    assert all(tensors[key].equal(others[key]) for key in tensors)


def test_a_key_that_format_1_left_out_has_the_default_of_its_time() -> None:
    text = FORMAT_1["sine"]
    whole = read(text)
    older = read(without(text, "kl_weight = 0.0", "threads = 1", 'function_embedding = "raw"', "most_shot = 20"))
    assert (older.model.kl_weight, older.training.threads) == (1e-3, 0)
    assert (older.embedding.embedding, older.episode.most_shot) == ("mlp", 0)
    today = Config.of("sine")
    assert (today.model.kl_weight, today.training.threads) == (0.0, 1)
    assert (today.embedding.embedding, today.episode.most_shot) == ("raw", 20)
    changed = {"kl_weight": 1e-3, "threads": 0, "embedding": "mlp", "most_shot": 0}
    assert older == whole.with_options(**changed)  # and nothing else


def test_a_group_that_format_1_left_out_has_the_defaults_of_its_time() -> None:
    before, _, after = FORMAT_1["sine"].partition("[inner]")
    maml = before.replace('learner = "metavrf"', 'learner = "maml"')
    older = read(maml + "[training]" + after.partition("[training]")[2])
    assert (older.model.inner_steps, older.model.test_inner_steps, older.model.inner_lr) == (1, 0, 0.4)
    assert older == read(maml + "[inner]" + after)


@pytest.mark.parametrize(
    ("learner", "kept"),
    [
        ("shared", {"bases": 780, "train_kernel": "exact", "distance": 0.0}),
        ("rff", {"bases": 780, "train_kernel": "exact", "distance": 0.0}),
        ("rbf", {"ridge": 1e-6, "gamma": 1.0}),
        ("maml", {"inner_steps": 7, "test_inner_steps": 0, "inner_lr": 0.4, "first_order": False}),
        ("meta-sgd", {"inner_steps": 7, "test_inner_steps": 0, "inner_lr": 0.4, "first_order": False}),
    ],
)
def test_each_learner_takes_what_it_had_a_use_for_from_the_settings_that_all_shared(
    learner: str, kept: dict[str, Any]
) -> None:
    text = FORMAT_1["sine"].replace("inner_steps = 1", "inner_steps = 7", 1)
    config = read(text.replace('learner = "metavrf"', f'learner = "{learner}"'))
    assert {name: getattr(config.model, name) for name in kept} == kept
    assert not hasattr(config.model, "components")
    assert read(config.to_toml()) == config


@pytest.mark.parametrize(
    ("task", "embedding"),
    [("omniglot", "conv4"), ("./pictures", "conv4"), ("own.parquet", "conv4"), ("z.safetensors", "ready")],
)
def test_the_embedding_of_format_1_is_that_of_the_kind_of_task(task: str, embedding: str) -> None:
    text = FORMAT_1["sine"].replace('task = "sine"', f'task = "{task}"')
    assert read(text).embedding.embedding == embedding
    assert read(FORMAT_1["sine"]).embedding.embedding == "raw"


@pytest.mark.parametrize("written", [str(FORMAT + 1), "0", '"2"'])
def test_a_format_that_is_not_known_is_refused_in_one_sentence(written: str) -> None:
    text = Config.of("sine").to_toml().replace(f"format = {FORMAT}", f"format = {written}", 1)
    with refused("there/config.toml", "format", "does not know"):
        read(text)


@pytest.mark.parametrize(("task", "side"), [("cifar-fs", 0), ("omniglot", 0), ("./pictures", 84)])
def test_in_format_2_the_size_of_pictures_was_for_ones_own(task: str, side: int) -> None:
    asked = Config.of(task, image_size=84)
    assert read(asked.to_toml()) == asked
    older = asked.to_toml().replace(f"format = {FORMAT}", "format = 2", 1)
    assert read(older) == asked.with_options(image_size=side)


@pytest.mark.parametrize("text", [f"spam = 1\n{FORMAT_1['sine']}", f"{FORMAT_1['sine']}spam = 1\n"])
def test_a_key_that_format_1_never_had_is_refused_by_name(text: str) -> None:
    with refused("there/config.toml", "spam"):
        read(text)
    with refused("there/config.toml", "learner"):
        read(without(FORMAT_1["sine"], 'learner = "metavrf"'))


def test_a_run_from_before_the_lstm_of_many_kernels_had_a_size_reads_summaries() -> None:
    now = Config.of("sine", context="lstm", stream=4)
    assert now.model.context_size == 32
    assert read(without(now.to_toml(), "context_size = 32")) == now.with_options(context_size=0)


def test_format_2_is_written_whole_so_a_missing_key_is_refused_by_name() -> None:
    text = Config.of("omniglot").to_toml()
    groups = (EpisodeSettings, DataSettings, EmbeddingSettings, MetaVRFSettings, TrainingSettings)
    later = {item.name for group in groups for item in fields(group) if "before" in item.metadata}  # read as of old
    named = [line for line in text.splitlines() if " = " in line and not line.startswith("format")]
    settings = [line for line in named if line.partition(" = ")[0] not in later]
    assert len(settings) > 50
    for line in settings:
        with refused("there/config.toml", line.partition(" = ")[0]):
            read(without(text, line))


@pytest.mark.parametrize("instead", ["", "data = 3\n", 'data = ""\n'])
def test_a_group_that_is_missing_in_format_2_is_refused_by_name(instead: str) -> None:
    before, _, after = Config.of("sine").to_toml().partition("[data]")
    with refused("there/config.toml", "data"):
        read(instead + before + "[" + after.partition("\n[")[2])


def test_a_run_on_functions_says_what_its_tasks_look_like() -> None:
    for name in ("sine", "sine-rff"):
        kept = json.loads((SHIPPED / name / "data.json").read_text())
        assert TaskSpec.from_dict(kept) == TaskSpec((1,), 1)


def test_an_estimator_that_was_saved_without_its_seed_has_the_bases_of_its_random_state(tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 6)[:, None]
    fitted = MetaVRFRegressor("sine-rff", bases=64, random_state=3).fit(x, np.sin(x[:, 0]))
    file = fitted.save(tmp_path / "saved") / "estimator.json"
    values = json.loads(file.read_text())
    del values["seed"]
    file.write_text(json.dumps(values))
    file.with_name("manifest.json").unlink()
    assert np.array_equal(MetaVRFRegressor.load(tmp_path / "saved").predict(x), fitted.predict(x))


def test_a_setting_that_is_newer_than_a_file_means_what_was_done_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Older:
        scale: float = 1.0

    @dataclass(frozen=True)
    class Newer(Older):
        wide: bool = added(True, before=False)

    method = type("Method", (metavrf.Learner,), {"Settings": Older, "solve": lambda *_: None})
    monkeypatch.setattr(LEARNERS, "_entries", LEARNERS._entries | {"growing": method})
    text = Config.of("sine", "growing").to_toml()
    method.Settings = Newer  # type: ignore[attr-defined]
    assert Config.from_toml(text, "there").model == Newer(1.0, wide=False)
    assert Config.of("sine", "growing").model == Newer(1.0, wide=True)
