"""A linear probe of the frozen backbone, domain by domain; ``ceiling.py`` prints it."""

import json
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedatlas.models import PromptedClassifier, build_model
from fedatlas.seeds import numpy_generator
from papers.fedgcr.data import load_images
from papers.tables import Numbers, Task

BATCH = 256
STRENGTH = 0.01
"""Of the regression, the inverse of its penalty; features are scaled to variance 1."""


def probe(features: np.ndarray, labels: np.ndarray, tests: np.ndarray, expected: np.ndarray) -> float:
    """Return how often a linear classifier of features is right on others."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=1000))
    return float(model.fit(features, labels).score(tests, expected))


@torch.no_grad()
def class_tokens(model: PromptedClassifier, images: Tensor) -> np.ndarray:
    """Return the frozen encoder's class tokens of images of 0 to 255, without prompts."""
    encoder = model.encoder
    found = [
        encoder.encode(encoder.embed(encoder.fit(part.float() / 127.5 - 1)))
        for part in images.to(next(model.parameters()).device).split(BATCH)
    ]
    return torch.cat(found).cpu().numpy()


class Tokens(NamedTuple):
    """The class tokens and labels of a domain's training and test images."""

    features: np.ndarray
    labels: np.ndarray
    tests: np.ndarray
    expected: np.ndarray


@lru_cache(maxsize=1)
def tokens(words: str, folder: str | None, device: str) -> dict[str, Tokens]:
    """Return a data set's class tokens by domain, for all seeds; ``words`` are the settings as JSON."""
    settings = json.loads(words)
    data = load_images(settings["data"], folder)
    shape = (int(data.inputs.shape[1]), *data.inputs.shape[2:])
    classes = len(data.classes)
    model = build_model("prompted_vit", num_classes=classes, input_shape=shape, seed=0, **settings["model"]).to(device)
    assert isinstance(model, PromptedClassifier)
    assert data.domain is not None
    assert data.is_test is not None
    found = {}
    for number, domain in enumerate(data.domains):
        train, test = ((data.domain == number) & (data.is_test == tested) for tested in (False, True))
        features, tests = (class_tokens(model, data.inputs[own]) for own in (train, test))
        found[domain] = Tokens(features, data.labels[train].numpy(), tests, data.labels[test].numpy())
    return found


def measured(task: Task) -> Numbers:
    """Return the accuracies by domain and number of training images."""
    words = json.dumps({name: task.settings[name] for name in ("data", "model")})
    by_domain = tokens(words, task.options.data_folder, task.options.device)
    numbers: Numbers = {}
    for domain, (features, labels, tests, expected) in by_domain.items():
        order = numpy_generator(task.seed, "probe", domain).permutation(len(labels))
        for count in task.settings["counts"]:
            chosen = order[:count]
            numbers[f"{domain} {count}"] = probe(features[chosen], labels[chosen], tests, expected)
    for count in task.settings["counts"]:
        numbers[f"mean {count}"] = float(np.mean([numbers[f"{domain} {count}"] for domain in by_domain]))
    return numbers
