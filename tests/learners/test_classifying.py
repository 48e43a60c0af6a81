"""A classifier of the training classes, alone and beside tasks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.classifier import Classifier, ClassifierSettings
from metavrf.learners.classifying import ClassHead
from metavrf.learners.prototypical import Prototypical
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from metavrf.tasks.bank import Bank

FEATURES, CLASSES = 6, 9


def bank() -> Bank:
    """Nine classes of eight samples on ready features, each about a centre of its own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(8)
    centres = 3 * torch.randn(CLASSES, FEATURES, generator=generator)
    inputs = centres[labels] + torch.randn(len(labels), FEATURES, generator=generator)
    return Bank.of_labels(inputs, labels, [str(number) for number in range(CLASSES)])


def training_tasks(generator: torch.Generator) -> Episodes:
    return bank().sample(3, 4, 2, 3, generator).looked_up()


def test_tasks_know_the_numbers_of_their_classes_among_all(generator: torch.Generator) -> None:
    whole = bank()
    episodes = whole.sample(20, 4, 2, 3, generator)
    assert episodes.classes is not None and episodes.classes.shape == (20, 4)
    of_row = torch.arange(CLASSES).repeat_interleave(whole.counts)
    for rows, own in ((episodes.support_x, episodes.support_y), (episodes.query_x, episodes.query_y)):
        assert own is not None
        assert torch.equal(episodes.classes.gather(1, own), of_row[rows])
    assert torch.equal(episodes[3:5].classes, episodes.classes[3:5])  # type: ignore[arg-type]
    assert torch.equal(episodes.share(1, 2).classes, episodes.classes[1::2])  # type: ignore[arg-type]


@pytest.mark.parametrize("cosine", [True, False])
def test_the_loss_is_the_cross_entropy_of_every_sample_over_all_training_classes(
    cosine: bool, generator: torch.Generator
) -> None:
    episodes, head = training_tasks(generator), ClassHead(FEATURES, CLASSES, cosine=cosine)
    assert episodes.classes is not None and episodes.query_y is not None
    errors = []
    for task in range(episodes.tasks):
        for x, y in ((episodes.support_x, episodes.support_y), (episodes.query_x, episodes.query_y)):
            for sample, own in zip(x[task], y[task], strict=True):
                if cosine:
                    logits = torch.stack([10 * F.cosine_similarity(sample, weight, dim=0) for weight in head.weight])
                else:
                    logits = head.weight @ sample
                errors.append(-logits.log_softmax(0)[episodes.classes[task, own]])
    assert head.loss(episodes).item() == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)


def test_the_classifier_answers_by_the_nearest_mean_in_angle(generator: torch.Generator) -> None:
    episodes = training_tasks(generator)
    learner = Classifier(Raw(FEATURES), TaskSpec((FEATURES,), None, train_classes=CLASSES))
    answer = learner.predict(episodes).mean
    for task in range(episodes.tasks):
        unit = F.normalize(episodes.support_x[task], dim=-1)
        means = torch.stack([unit[episodes.support_y[task] == c].mean(0) for c in range(4)])
        cosines = F.cosine_similarity(episodes.query_x[task].unsqueeze(1), means.unsqueeze(0), dim=-1)
        assert torch.allclose(answer[task], (10 * cosines).log_softmax(-1), atol=1e-5)


def test_the_loss_of_the_classifier_alone_is_that_of_the_training_classes(generator: torch.Generator) -> None:
    learner = Classifier(Raw(FEATURES), TaskSpec((FEATURES,), None, train_classes=CLASSES), ClassifierSettings(False))
    episodes = training_tasks(generator)
    loss = learner(episodes, generator).loss
    assert learner.classifier is not None and loss is not None
    assert loss.item() == pytest.approx(learner.classifier.loss(episodes).item())


def test_any_learner_can_have_the_second_loss_and_answers_as_without_it(generator: torch.Generator) -> None:
    spec = TaskSpec((FEATURES,), None, train_classes=CLASSES)
    plain, beside = Prototypical(Raw(FEATURES), spec), Prototypical(Raw(FEATURES), spec)
    beside.classify(0.5)
    episodes = training_tasks(generator)
    first, second = plain(episodes), beside(episodes)
    assert beside.classifier is not None
    expected = first.loss.item() + 0.5 * beside.classifier.loss(episodes).item()
    assert second.loss.item() == pytest.approx(expected, rel=1e-6)
    assert math.isclose(second.terms["training_classes"].item(), beside.classifier.loss(episodes).item())
    assert torch.equal(plain.predict(episodes).mean, beside.predict(episodes).mean)


@pytest.mark.parametrize(("task", "learner"), [("sine", "metavrf"), ("omniglot", "maml")])
def test_a_second_loss_without_training_classes_or_on_a_changing_embedding_is_refused(task: str, learner: str) -> None:
    spec = TaskSpec() if task == "sine" else TaskSpec((1, 28, 28), None, train_classes=CLASSES)
    with pytest.raises(UserError, match="classify_weight"):
        Config.of(task, learner, classify_weight=0.5).build(spec)
