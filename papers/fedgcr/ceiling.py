"""What the frozen backbone lets any method reach: a linear probe on its features, for each domain by itself.

    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr
    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr --weights runs/vit/mixed-vit.safetensors

For each domain the class tokens of some training images, without prompts, are the inputs of a logistic regression,
which is tested on the domain's test images, at most 2,000. Seeds draw the training images. A processor is enough.
"""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedatlas.data import Dataset
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


def measured(task: Task) -> Numbers:
    """Return the accuracies by domain and number of training images."""
    data = load_images(task.settings["data"], task.options.data_folder)
    shape = (int(data.inputs.shape[1]), *data.inputs.shape[2:])
    model = build_model(
        "prompted_vit", num_classes=len(data.classes), input_shape=shape, seed=task.seed, **task.settings["model"]
    ).to(task.options.device)
    assert isinstance(model, PromptedClassifier)
    counts: Sequence[int] = task.settings["counts"]
    numbers: Numbers = {}
    for number, domain in enumerate(data.domains):
        train, test = (_members(data, number, tested) for tested in (False, True))
        order = numpy_generator(task.seed, "probe", domain).permutation(len(train))
        chosen = train[torch.from_numpy(order[: max(counts)])]
        features, tests = class_tokens(model, data.inputs[chosen]), class_tokens(model, data.inputs[test])
        labels, expected = data.labels[chosen].numpy(), data.labels[test].numpy()
        for count in counts:
            numbers[f"{domain} {count}"] = probe(features[:count], labels[:count], tests, expected)
    for count in counts:
        numbers[f"mean {count}"] = float(np.mean([numbers[f"{domain} {count}"] for domain in data.domains]))
    return numbers


def _members(data: Dataset, domain: int, tested: bool) -> Tensor:
    assert data.domain is not None
    assert data.is_test is not None
    return torch.nonzero((data.domain == domain) & (data.is_test == tested)).flatten()


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
