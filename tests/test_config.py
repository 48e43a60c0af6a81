from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import metavrf
from metavrf.config import PRESETS, Config
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.tasks.functions import FAMILIES

# One kernel of random features, as the paper has it, but with a free number of bases.
ONE_KERNEL: dict[str, Any] = {"components": 1, "guards": 0, "train_kernel": "features", "train_shot": 0, "most_shot": 0}


def sine(**options: Any) -> Config[Any]:
    """A configuration of one kernel."""
    return Config.of("sine", **ONE_KERNEL | options)


def refused(**options: Any) -> str:
    """The message with which these settings are refused."""
    with pytest.raises(UserError) as caught:
        sine(**options).validate()
    return str(caught.value)


def test_defaults_are_valid() -> None:
    config = Config.of("sine")
    assert config.validate() is config


def test_toml_round_trip_keeps_every_setting() -> None:
    config = Config.of("sine-maml", "rff", "paper").with_options(shot=3, orthogonal=True, lr=3e-3, seed=11, threads=2)
    assert Config.from_toml(config.to_toml(), "there") == config
    assert config != Config.of("sine-maml", "rff", "paper")


def test_options_find_their_group() -> None:
    config = Config.of("sine").with_options(shot=3, context="lstm", iterations=7)
    assert (config.episode.shot, config.model.context, config.training.iterations) == (3, "lstm", 7)
    assert Config.of("sine").episode.shot == 5  # the original is unchanged


def test_preset_of_functions_is_many_exact_kernels_for_any_number_of_points() -> None:
    config = Config.of("sine").validate()
    assert config.model.components >= 16
    assert (config.model.train_kernel, config.model.context) == ("exact", "none")
    assert (config.episode.train_shot, config.episode.most_shot) == (2, 20)


def test_one_kernel_of_random_features_is_the_papers_and_that_of_pictures() -> None:
    for config in (Config.of("sine", preset="paper"), Config.of("omniglot")):
        assert (config.model.components, config.model.train_kernel) == (1, "features")


def test_preset_paper_is_the_papers_settings() -> None:
    config = Config.of("sine", preset="paper").validate()
    assert (config.training.lr, config.model.kl_weight, config.model.feature_map) == (1e-4, 1.0, "cosine")
    assert (config.training.schedule, config.episode.batch, config.preset) == ("constant", 25, "paper")
    assert (config.embedding.embedding, config.model.context_inputs) == ("mlp", "x")


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("task", [*FAMILIES, "omniglot", "mini-imagenet", "own.safetensors", "./pictures"])
def test_every_preset_of_every_learner_is_valid(task: str, name: str) -> None:
    for learner in LEARNERS:
        Config.of(task, learner, name).validate()


def test_preset_of_plain_features_has_the_papers_2048_and_no_context() -> None:
    config = Config.of("sine", "rff").validate()
    assert (config.learner, config.model.bases) == ("rff", 2048)
    assert not hasattr(config.model, "context")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(UserError, match="'shots'"):
        Config.of("sine", shots=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", "gru"),
        ("context_inputs", "y"),
        ("feature_map", "sine"),
        ("draw", "twice"),
        ("schedule", "linear"),
    ],
)
def test_an_unknown_choice_is_named_with_the_choices(name: str, value: str) -> None:
    message = refused(**{name: value})
    assert f"{name} = {value!r}" in message
    assert "give one of" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shot", 2.5),
        ("shot", "5"),
        ("bases", True),
        ("lr", "fast"),
        ("iterations", 1e4),
        ("seed", 0.5),
        ("orthogonal", "no"),
        ("tensorboard", 1),
    ],
)
def test_a_wrong_type_is_named_and_quoted(name: str, value: object) -> None:
    assert f"{name} = {value!r}" in refused(**{name: value})


@pytest.mark.parametrize(
    "name", ["shot", "query", "batch", "bases", "samples", "iterations", "validate_every", "validate_tasks", "devices"]
)
@pytest.mark.parametrize("value", [0, -2])
def test_counts_must_be_at_least_one(name: str, value: int) -> None:
    assert f"{name} = {value}" in refused(**{name: value})


@pytest.mark.parametrize("name", ["ridge", "gamma", "lr"])
@pytest.mark.parametrize("value", [0.0, -0.1, math.nan])
def test_scales_must_be_positive(name: str, value: float) -> None:
    assert f"{name} = {value!r}" in refused(**{name: value})


@pytest.mark.parametrize("name", ["kl_weight", "train_bases", "clip", "patience", "threads", "warmup", "seed"])
def test_negative_values_are_named_and_refused(name: str) -> None:
    assert f"{name} = -1" in refused(**{name: -1})


@pytest.mark.parametrize("name", ["ridge", "gamma", "distance", "lr", "kl_weight"])
def test_infinite_values_are_named_and_refused(name: str) -> None:
    assert f"{name} = inf" in refused(**{name: math.inf})


@pytest.mark.parametrize("name", ["kl_weight", "train_bases", "clip", "patience", "threads", "warmup", "seed"])
def test_zero_is_allowed_where_it_has_a_meaning(name: str) -> None:
    assert sine(**{name: 0}).validate().to_toml().count(f"\n{name} = 0") == 1


def test_pairs_need_an_even_number_of_bases_and_phases_do_not() -> None:
    assert "bases = 65" in refused(bases=65, feature_map="sincos")
    assert "train_bases = 33" in refused(train_bases=33, feature_map="sincos")
    odd = sine(bases=65, train_bases=33, feature_map="cosine").validate()
    assert (odd.model.bases, odd.model.train_bases) == (65, 33)


def test_more_devices_than_tasks_are_refused() -> None:
    assert "devices = 3" in refused(devices=3, batch=2)
    assert refused(devices=3, batch=8, stream=4) == "devices = 3 exceeds the 2 streams of a batch"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("shot = 5", "shots = 5", "shots"),
        ("shot = 5", 'shot = "five"', "shot = 'five'"),
        ("shot = 5", "shot = -5", "shot = -5"),
        ('context = "bilstm"', 'context = "gru"', "context = 'gru'"),
        ("orthogonal = false", 'orthogonal = "no"', "orthogonal = 'no'"),
        ('task = "sine"', "", "task"),
        ('task = "sine"', "task = 5", "task = 5"),
        ('task = "sine"', 'task = "sine"\ncolour = "red"', "colour"),
        ("shot = 5", "shot = ", "there/config.toml"),
    ],
)
def test_a_file_that_was_edited_wrongly_is_refused_with_its_name(old: str, new: str, named: str) -> None:
    text = sine(context="bilstm").to_toml()
    assert old in text
    with pytest.raises(UserError) as caught:
        Config.from_toml(text.replace(old, new, 1), "there/config.toml")
    assert named in str(caught.value)
    assert "there/config.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("task", "iterations", "batch", "dropout"),
    [("omniglot", 100_000, 6, 0.1), ("cifar-fs", 200_000, 8, 0.5), ("mini-imagenet", 150_000, 8, 0.5)],
)
def test_the_papers_preset_has_the_numbers_of_its_tables(
    task: str, iterations: int, batch: int, dropout: float
) -> None:
    config = Config.of(task, preset="paper").validate()
    assert (config.training.iterations, config.episode.batch, config.embedding.dropout) == (iterations, batch, dropout)
    assert (config.training.lr, config.training.schedule, config.model.kl_weight) == (1e-4, "constant", 1.0)
    assert (config.model.bases, config.model.draw, config.model.feature_map) == (780, "resampled", "cosine")
    assert (config.episode.train_way, config.episode.train_shot, config.episode.query) == (0, 0, 15)
    assert config.embedding.embedding == ("conv5" if task == "mini-imagenet" else "conv4")


def test_tasks_of_classes_start_from_other_defaults_than_functions() -> None:
    assert Config.of("omniglot").episode.shot == 1
    assert Config.of("sine").episode.shot == 5
    assert Config.of("photos/").embedding.embedding == "conv5"
    assert Config.of("my.parquet").data.augment == "crop-flip"


def test_a_folder_with_the_name_of_a_family_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sine").mkdir()
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Config.of("sine").episode.shot == 5
    assert Config.of("photos").episode.shot == 1


def test_a_family_of_ones_own_goes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sawtooth").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Config.of("sawtooth").kind == "classes"
    try:
        metavrf.register_family("sawtooth")(type("Sawtooth", (metavrf.FunctionFamily,), {"preset": {"shot": 7}}))
        config = Config.of("sawtooth")
        assert (config.kind, config.episode.shot, config.model.train_kernel) == ("functions", 7, "exact")
    finally:
        FAMILIES.remove("sawtooth")


def test_functions_take_one_thread_unless_told_otherwise() -> None:
    assert {Config.of("sine", learner).training.threads for learner in ("metavrf", "rff", "maml")} == {1}
    assert Config.of("sine", threads=3).training.threads == 3
    assert Config.of("omniglot").training.threads == 0


def test_the_papers_preset_is_all_of_the_papers_settings() -> None:
    features = Config.of("own.safetensors", preset="paper")
    assert (features.model.bases, features.model.orthogonal, features.model.unit_features) == (780, False, False)
    assert (features.embedding.project, features.embedding.embedding) == (0, "ready")
    assert not Config.of("sine", preset="paper").model.aligned
    assert Config.of("sine", "rff", "paper").model.draw == "fixed"


def test_a_recurrent_context_of_classes_has_several_tasks_per_step() -> None:
    alone, recurrent = Config.of("omniglot"), Config.of("omniglot", context="bilstm")
    assert (alone.episode.batch, recurrent.episode.batch) == (1, 4)
    assert recurrent.episode.train_way == alone.episode.train_way // 4
    assert Config.of("omniglot", context="bilstm", batch=2).episode.batch == 2


def test_each_learner_has_its_own_settings() -> None:
    assert Config.of("omniglot", "maml").model.inner_steps == 1
    for learner, setting in (("maml", "context"), ("prototypical", "bases"), ("metavrf", "inner_lr")):
        with pytest.raises(UserError, match=f"no setting '{setting}' of omniglot with {learner}"):
            Config.of("omniglot", learner).with_options(**{setting: 1})


def test_a_range_of_shots_must_not_end_before_it_starts() -> None:
    Config.of("sine").with_options(shot=5, train_shot=2, most_shot=2).validate()
    with pytest.raises(UserError, match="most_shot = 4 is less than the 5 shots to start from"):
        Config.of("sine").with_options(shot=5, train_shot=0, most_shot=4).validate()
    with pytest.raises(UserError, match="most_shot = 4 is less than the 6 shots to start from"):
        Config.of("sine").with_options(train_shot=6, most_shot=4).validate()


def test_combs_must_leave_another_kernel() -> None:
    assert sine(components=4, combs=3).validate().model.combs == 3
    assert refused(components=4, combs=4) == "combs = 4, guards = 0 and rough = 0 leave no other of the 4 kernels"
    assert "combs = 1, guards = 3 and rough = 0" in refused(components=4, combs=1, guards=3)
    one = sine(components=1, combs=2, guards=3)
    assert one.validate() == one  # a single kernel has neither
