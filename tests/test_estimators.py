"""The estimators keep scikit-learn's promises, and answer as the learners do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import metavrf
from glyphs import glyph, name_of, refused, write_glyph_folder
from metavrf import Episodes, MetaVRFClassifier, MetaVRFRegressor, estimators
from metavrf.files import read_tensors, write_tensors
from processes import TINY_OPTIONS

SIDE = 40
"""Of drawings that are resized by the model."""


@parametrize_with_checks([MetaVRFClassifier(), MetaVRFRegressor()])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def drawings(numbers: range, drawers: range) -> tuple[NDArray[Any], NDArray[Any]]:
    """Black on white, ``[N, side, side]``, and their names."""
    pairs = [(number, drawer) for number in numbers for drawer in drawers]
    return np.stack([glyph(*pair, SIDE) for pair in pairs]), np.array([name_of(number) for number, _ in pairs])


@pytest.fixture(scope="module")
def glyphs() -> MetaVRFClassifier:
    """The shipped model, not to be changed, fitted on five classes of three drawings."""
    return MetaVRFClassifier.from_pretrained("omniglot").fit(*drawings(range(5), range(3)))


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on sine curves."""
    path = tmp_path_factory.mktemp("curves") / "run"
    metavrf.train("sine", out=path, quiet=True, **TINY_OPTIONS | {"context": "none", "iterations": 4})
    return path


# Without a model


def test_plain_features_are_learned_about_as_well_as_by_other_kernel_methods() -> None:
    iris, diabetes = load_iris(return_X_y=True), load_diabetes(return_X_y=True)
    assert cross_val_score(MetaVRFClassifier(), *iris).mean() > 0.94  # a support vector machine: 0.967
    assert cross_val_score(MetaVRFRegressor(), *diabetes).mean() > 0.42  # linear regression: 0.482


def test_an_estimator_sits_in_a_pipeline_and_is_searched_over() -> None:
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), MetaVRFClassifier())
    search = GridSearchCV(pipeline, {"metavrfclassifier__ridge": [1e-3, 1e3], "metavrfclassifier__bases": [64]}, cv=3)
    search.fit(x, y)
    assert search.best_params_["metavrfclassifier__ridge"] == 1e-3
    assert search.best_score_ > 0.9


def test_the_random_state_decides_the_bases_and_nothing_else_does() -> None:
    x, y = load_iris(return_X_y=True)
    answers = [MetaVRFClassifier(bases=16, random_state=seed).fit(x, y).predict_proba(x) for seed in (0, 0, 1)]
    assert np.array_equal(answers[0], answers[1])
    assert np.abs(answers[0] - answers[2]).max() > 1e-3


@pytest.mark.parametrize("labels", [["ä", "b", "c"], [3, 1, 2], [True, False], [0.0, 2.0, 1.0]], ids=str)
def test_labels_are_of_any_kind(labels: list[Any], tmp_path: Path) -> None:
    y = np.repeat(labels, 4)
    x = np.arange(len(y))[:, None] // 4 * 3.0 + np.random.default_rng(0).normal(0, 0.1, (len(y), 2))
    fitted = MetaVRFClassifier().fit(x, y)
    again = MetaVRFClassifier.load(fitted.save(tmp_path / "saved"))
    for estimator in (fitted, again):
        assert estimator.classes_.tolist() == sorted(labels)
        assert estimator.predict(x).tolist() == y.tolist()
        assert estimator.predict(x).dtype == y.dtype


def test_targets_may_be_several_and_the_deviation_has_their_shape() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    y = np.column_stack([x[:, 0], 100 * x[:, 1] + 7])
    mean, std = MetaVRFRegressor().fit(x, y).predict(x[:4], return_std=True)
    assert mean.shape == std.shape == (4, 2)
    np.testing.assert_allclose(mean / [1, 100], y[:4] / [1, 100], atol=0.15)
    assert (std[:, 1] > 10 * std[:, 0]).all()  # in the units of each
    mean, std = MetaVRFRegressor().fit(x, y[:, 0]).predict(x[:4], return_std=True)
    assert mean.shape == std.shape == (4,)


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_adding_samples_is_fitting_them_all(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) // 4 if kind is MetaVRFClassifier else x[:, 0]
    whole = kind().fit(x, y)
    parts = kind().partial_fit(x[:5], y[:5]).partial_fit(x[5:9], y[5:9]).partial_fit(x[9:], y[9:])
    np.testing.assert_allclose(parts.predict(x), whole.predict(x), atol=1e-12)
    if kind is MetaVRFClassifier:
        assert parts.classes_.tolist() == [0, 1, 2]
        np.testing.assert_allclose(parts.predict_proba(x), whole.predict_proba(x), atol=1e-12)


def test_samples_of_another_kind_cannot_be_added() -> None:
    x = np.zeros((2, 2))
    with refused("y is", "<U1", "int64"):
        MetaVRFClassifier().fit(x, [1, 2]).partial_fit(x, ["a", "b"])
    with refused("y is", "(2,)"):
        MetaVRFRegressor().fit(x, [1, 2]).partial_fit(x, [[1, 2], [3, 4]])


def test_a_frame_gives_its_column_names_to_what_was_inferred(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not a dependency")
    x = np.random.default_rng(0).normal(size=(30, 2))
    frame = pandas.DataFrame(x, columns=["noise", "signal"])
    pipeline = make_pipeline(StandardScaler(), MetaVRFRegressor()).set_output(transform="pandas").fit(frame, x[:, 1])
    model = pipeline[-1]
    assert model.feature_names_in_.tolist() == ["noise", "signal"]
    again = MetaVRFRegressor.load(model.save(tmp_path / "model"))
    axis = again.plot_relevance()
    assert [label.get_text() for label in axis.get_yticklabels()] == ["signal", "noise"]


# With a model


def test_a_model_answers_as_its_learner_does(glyphs: MetaVRFClassifier) -> None:
    query, _ = drawings(range(5), range(3, 6))
    trained = metavrf.load("omniglot")
    support, asked = (trained.of_pictures(list(x)) for x in (drawings(range(5), range(3))[0], query))
    task = Episodes.of_support(support, torch.arange(5).repeat_interleave(3), 5).asking(asked.unsqueeze(0))
    expected = trained.learner.predict(task, embedded=True).mean[0].exp()
    np.testing.assert_allclose(glyphs.predict_proba(query), expected, atol=1e-5)


def test_a_model_tells_new_drawings_of_its_support(glyphs: MetaVRFClassifier) -> None:
    query, names = drawings(range(5), range(3, 12))
    assert glyphs.score(query, names) > 0.9
    expected = glyphs.leave_one_out()
    assert expected.accuracy is not None
    assert expected.accuracy > 80
    assert expected.tested == 15


def test_pictures_are_files_or_images_or_arrays_or_features(glyphs: MetaVRFClassifier, tmp_path: Path) -> None:
    arrays, _ = drawings(range(5), range(4, 5))
    files = []
    for number, array in enumerate(arrays):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(array).save(files[-1])
    expected = glyphs.predict_proba(arrays)
    colours = np.repeat(arrays[..., None], 3, axis=3)
    same: dict[str, Any] = {
        "files": files,
        "names": [str(file) for file in files],
        "an array of names": np.array([str(file) for file in files]),
        "images": [Image.fromarray(array) for array in arrays],
        "arrays of several sizes": [Image.open(file) for file in files],
        "a list of arrays": list(arrays),
        "floats": arrays / 255,
        "one channel": arrays[..., None],
        "colours": colours,
        "features": metavrf.load("omniglot").of_pictures(list(arrays)).numpy(),
    }
    for name, pictures in same.items():
        np.testing.assert_allclose(glyphs.predict_proba(pictures), expected, atol=1e-5, err_msg=name)


def test_pictures_are_read_as_the_models_bank_is(tmp_path: Path) -> None:
    write_glyph_folder(tmp_path / "pictures", range(3), drawers=2, side=SIDE)
    from metavrf.tasks.datasets import DATASETS
    from metavrf.tasks.images import FolderSource, read_bank

    how = DATASETS["omniglot"].preprocessing
    source = FolderSource(tmp_path / "pictures")
    bank, _ = read_bank(source, how, tmp_path / "cache", quiet=True)
    trained = metavrf.load("omniglot")
    ours = np.stack([trained.preprocessed(file) for file in source.files])
    assert np.array_equal(ours, bank.inputs[: len(ours)].numpy())
    assert ours.max() > 200
    assert np.median(ours) == 0  # ink is bright


def test_unequal_shots_do_not_drown_a_class_of_one() -> None:
    many, few = drawings(range(4), range(8)), drawings(range(4, 5), range(1))
    model = MetaVRFClassifier("omniglot").fit(np.concatenate([many[0], few[0]]), [*many[1], *few[1]])
    assert model.score(*drawings(range(4, 5), range(1, 9))) > 0.7
    assert model.score(*drawings(range(4), range(8, 12))) > 0.9


def test_adding_a_class_embeds_its_pictures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = drawings(range(4), range(2))
    whole = MetaVRFClassifier("omniglot").fit(x, y)
    model = MetaVRFClassifier("omniglot").fit(x[:6], y[:6])
    embedded: list[int] = []
    embedding = model.learner_.embedding
    hook = embedding.register_forward_hook(lambda module, inputs, output: embedded.append(inputs[0].shape[1]))
    try:
        model.partial_fit(x[6:], y[6:])
    finally:
        hook.remove()
    assert embedded == [2]
    np.testing.assert_allclose(model.predict_proba(x), whole.predict_proba(x), atol=1e-5)


def test_an_estimator_on_a_model_is_cloned_cross_validated_and_pickled(glyphs: MetaVRFClassifier) -> None:
    x, y = drawings(range(3), range(4))
    copy = clone(glyphs)
    assert copy.model == "omniglot"
    with pytest.raises(NotFittedError):
        copy.predict(x)
    pictures = [Image.fromarray(array) for array in x]
    for samples in (x, pictures):
        assert cross_val_score(copy, samples, y, cv=2).mean() > 0.8
    file = io.BytesIO()
    joblib.dump(glyphs, file)
    file.seek(0)
    assert np.array_equal(joblib.load(file).predict_proba(x), glyphs.predict_proba(x))


def test_a_curve_is_fitted_by_a_run_with_a_deviation(curves: Path) -> None:
    x = np.linspace(-4, 4, 6)[:, None]
    model = MetaVRFRegressor.from_pretrained(curves).fit(x, np.sin(x[:, 0]))
    grid = np.linspace(-5, 5, 50)[:, None]
    mean, std = model.predict(grid, return_std=True)
    fit = metavrf.load(curves).predict(Episodes.of_task(x, np.sin(x), grid))
    assert fit.std is not None
    np.testing.assert_allclose(mean, fit.mean[0, :, 0], atol=1e-4)
    np.testing.assert_allclose(std, fit.std[0, :, 0], atol=1e-4)
    assert isinstance(model.score(x, np.sin(x[:, 0])), float)


def test_what_a_model_cannot_take_is_one_sentence(glyphs: MetaVRFClassifier, curves: Path, tmp_path: Path) -> None:
    with refused("nowhere", "is not a run"):
        MetaVRFClassifier.from_pretrained(tmp_path / "nowhere")
    with refused("omniglot", "MetaVRFClassifier"):
        MetaVRFRegressor.from_pretrained("omniglot")
    with refused("run", "MetaVRFRegressor"):
        MetaVRFClassifier.from_pretrained(curves)
    with refused("X has 7 columns", "omniglot takes 256"):
        glyphs.predict(np.zeros((2, 7)))
    with refused("ridge"):
        MetaVRFClassifier("omniglot", ridge=0.1).fit(*drawings(range(2), range(1)))
    with refused("from 0 to 1"):
        glyphs.predict(np.full((1, 8, 8), 16.0))
    with refused("[8, 8, 2]"):
        glyphs.predict(np.zeros((1, 8, 8, 2)))
    with refused("missing.png", "not a picture that can be read"):
        glyphs.predict(["missing.png"])
    with refused("not pictures"):
        MetaVRFRegressor(curves).fit(drawings(range(2), range(1))[0], [1.0, 2.0])
    with refused("2 outputs"):
        MetaVRFRegressor(curves).fit([[0.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]])


# Saving


def test_a_saved_estimator_answers_the_same_without_the_run_it_was_made_on(
    glyphs: MetaVRFClassifier, tmp_path: Path
) -> None:
    glyphs.leave_one_out()
    query, _ = drawings(range(5), range(3, 5))
    again = MetaVRFClassifier.load(glyphs.save(tmp_path / "saved"))
    assert np.array_equal(again.predict_proba(query), glyphs.predict_proba(query))
    assert again.leave_one_out_ == glyphs.leave_one_out_
    twice = MetaVRFClassifier.load(again.save(tmp_path / "again"))
    assert np.array_equal(twice.predict_proba(query), glyphs.predict_proba(query))
    added = twice.partial_fit(*drawings(range(5, 6), range(2)))
    assert name_of(5) in added.classes_
    assert added.save(tmp_path / "again") == tmp_path / "again"  # its own folder may be written again
    kinds = {file.suffix for file in (tmp_path / "again").iterdir()}
    assert kinds == {".json", ".safetensors", ".toml"}


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_a_saved_estimator_without_a_model_has_its_own_bases(kind: Any, tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True)
    fitted = kind(bases=32, random_state=5).fit(x, y)
    again = estimators.load(fitted.save(tmp_path / "saved"))
    assert type(again) is kind
    assert again.get_params() == fitted.get_params()
    assert again.n_features_in_ == 4
    assert np.array_equal(again.predict(x), fitted.predict(x))
    with pytest.raises(ValueError, match="3 features"):
        again.predict(x[:, :3])


@pytest.mark.parametrize("model", [None, "omniglot"])
def test_a_saved_estimator_keeps_the_bases_that_chance_gave_it(model: str | None, tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True) if model is None else drawings(range(3), range(3))
    fitted = MetaVRFClassifier(model, bases=16, random_state=None).fit(x, y)
    expected = fitted.predict_proba(x)
    again = MetaVRFClassifier.load(fitted.save(tmp_path / "saved"))
    assert np.array_equal(again.predict_proba(x), expected)
    assert again.random_state is None
    twice = MetaVRFClassifier.load(again.save(tmp_path / "again"))
    assert np.array_equal(twice.predict_proba(x), expected)
    other = clone(fitted).fit(x, y).predict_proba(x)
    assert not np.array_equal(other, expected)  # each fit draws its own


def test_what_is_no_saved_estimator_is_one_sentence(glyphs: MetaVRFClassifier, curves: Path, tmp_path: Path) -> None:
    with refused("is not a fitted model", "estimator.json"):
        estimators.load(curves)
    with refused("holds a run"):
        glyphs.save(curves)
    with pytest.raises(NotFittedError):
        MetaVRFClassifier().save(tmp_path)
    saved = MetaVRFRegressor().fit([[0.0], [1.0]], [0.0, 1.0]).save(tmp_path / "saved")
    with refused("is a regressor, not a classifier"):
        MetaVRFClassifier.load(saved)
    values = json.loads((saved / "estimator.json").read_text())
    for damage in (
        "{",
        json.dumps(values | {"kind": "dog"}),
        json.dumps({k: v for k, v in values.items() if k != "fitted"}),
    ):
        (saved / "estimator.json").write_text(damage)
        with refused("damaged"):
            estimators.load(saved)


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_a_saved_mixture_of_kernels_answers_the_same_to_the_bit(kind: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = x[:, 0] > 0 if kind is MetaVRFClassifier else np.sin(x[:, 0])
    fitted = kind(random_state=None).fit(x[:30], y[:30])
    fitted.save(tmp_path / "model")
    again = kind.load(tmp_path / "model")
    ask = "predict_proba" if kind is MetaVRFClassifier else "predict"
    assert np.array_equal(getattr(fitted, ask)(x[30:]), getattr(again, ask)(x[30:]))


def test_an_estimator_saved_while_random_features_were_the_default_still_loads(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    fitted = MetaVRFClassifier(bases=64).fit(x, x[:, 0] > 0)
    file = fitted.save(tmp_path / "model") / "estimator.json"
    values = json.loads(file.read_text())
    values["parameters"]["bases"] = None
    file.write_text(json.dumps(values))
    file.with_name("manifest.json").unlink()  # there was none then
    tensors, metadata = read_tensors(tmp_path / "model" / "support.safetensors")
    tensors["epsilon"] = tensors.pop("learner.epsilon")
    write_tensors(tmp_path / "model" / "support.safetensors", tensors, metadata)
    assert np.array_equal(MetaVRFClassifier.load(tmp_path / "model").predict_proba(x), fitted.predict_proba(x))
