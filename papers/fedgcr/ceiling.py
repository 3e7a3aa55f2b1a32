"""What the frozen backbone lets any method reach: a linear probe on its features, for each domain by itself.

    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr
    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr --weights runs/vit/mixed-vit.safetensors

For each domain the class tokens of some training images, without prompts, are the inputs of a logistic regression,
which is tested on the domain's test images, at most 2,000. Seeds draw the training images. A processor is enough.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedatlas.models import build_model
from fedatlas.models.prompted import PromptedClassifier
from fedatlas.seeds import numpy_generator
from papers.fedgcr.data import load_images
from papers.fedgcr.variants import TINY, TITLES, backbone
from papers.options import Options, one_of, read_options, script
from papers.tables import Cell, Numbers, Table, Task, Variant, measure, write_table

COUNTS = (300, 1000)
"""Training images of a domain."""
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


def ceiling_variant(options: Options, data: str) -> Variant:
    """Return the probe of one data set; with ``--quick`` of the embedded digits, by a tiny network."""
    settings = {
        "data": options.pick(data, "digits"),
        "model": dict(TINY) if options.quick else backbone(options),
        "counts": list(options.pick(COUNTS, (60, 120))),
    }
    return Variant(name=f"{data}, linear probe", measure=measured, settings=settings)


def ceiling_table(one: Variant, options: Options, domains: Sequence[str]) -> Table:
    """Return the table of one data set."""
    rows = {
        f"{count} training images": [Cell(one.name, key=f"{domain} {count}") for domain in (*domains, "mean")]
        for count in one.settings["counts"]
    }
    setting = "A linear classifier on the frozen backbone's class token, for each domain by itself."
    title = f"Ceiling, {TITLES[one.settings['data']]}"
    return Table(title=title, setting=setting, columns=(*domains, "mean"), rows=rows)


@script
def main() -> None:
    """Probe the backbone on each data set."""
    options = read_options(
        "A linear probe of the backbone, by domain", rounds=1, seeds=(0, 1, 2), sets="digit-five,pacs", weights=""
    )
    for name in ("digits",) if options.quick else options.extra["sets"].split(","):
        one = ceiling_variant(options, one_of("sets", name, TITLES))
        results = measure([one], options)
        domains = [key.rpartition(" ")[0] for key in results[one.name][0]] if results[one.name] else []
        shown = [domain for domain in dict.fromkeys(domains) if domain != "mean"]
        write_table(ceiling_table(one, options, shown), results, options)


if __name__ == "__main__":
    main()
