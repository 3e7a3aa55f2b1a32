"""The sources of an atlas: Client2Vec's index, and plain ones without a network.

The plain ones are the alternatives that Client2Vec is compared with (Table 2: "Feature Average", "Class Prototypes",
"Local Model Weights", "Only Label Index"). All look at a client's training examples only; a client that has none gets
zeros, which have cosine 0 with everything.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.settings import STRATEGIES, IndexSettings
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.noise import clip_rows
from fedatlas.atlas.provenance import made_of
from fedatlas.atlas.registry import SOURCES, source
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.atlas.summary import summarise, summary_disclosures
from fedatlas.data.federation import Federation
from fedatlas.data.task import Task, require_classes
from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.models.head import head_parameters
from fedatlas.parts.disclosure import Disclosure, Each, UpTo
from fedatlas.parts.types import Tensors

FEATURE, LABEL = "feature", "label"


WITHOUT_LABELS = ("feature-average", "principal-angles")
"""The sources that look at inputs alone, and so serve any task."""


def check_task(source: str, task: Task) -> None:
    """Raise UsageError if a source looks at classes, and the task has none."""
    if source not in WITHOUT_LABELS:
        do = f"Use one that looks at inputs alone: {' or '.join(WITHOUT_LABELS)} (in a config, atlas.make.source)."
        require_classes(task, f"the source {source} of an atlas", do)


def make_atlas(
    federation: Federation,
    how: AtlasSettings | None = None,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: bool | None = None,
    **changes: Any,
) -> Atlas:
    """Return an atlas of a federation; ``changes`` are fields of ``AtlasSettings``, such as ``source`` and ``seed``.

    >>> from fedatlas import federate, load_dataset
    >>> from fedatlas.data import Iid
    >>> federation = federate(load_dataset("digits"), Iid(num_clients=4))
    >>> make_atlas(federation, source="label-histogram").half("label").shape
    torch.Size([4, 10])
    """
    how = (how or AtlasSettings()).changed(changes)
    make = SOURCES[how.source]
    check_task(how.source, federation.data.task)
    wanted = inspect.signature(make).parameters
    offered: dict[str, Any] = {"how": how, "device": device, "workers": workers, "progress": progress}
    if "embeddings" in wanted:
        encoder = make_encoder(how.encoder, **how.encoder_options or {})
        offered["embeddings"] = encoder.encode(federation, progress=progress)
    made: Atlas = make(federation, **{title: value for title, value in offered.items() if title in wanted})
    return made


def atlas_disclosures(
    source: str = "client2vec", strategy: str = "global", settings: IndexSettings | None = None
) -> list[Disclosure]:
    """Return what leaves a client while an atlas is made, before any training.

    >>> [disclosure.why for disclosure in atlas_disclosures("label-histogram")]
    ["the client's vector: the share of each class among its examples"]
    """
    vector = Disclosure("vector", f"the client's vector: {SOURCES.facts(source)['discloses']}", "atlas", (None,))
    if source != "client2vec":
        labelled = summary_by_class(source)
        return [vector, *([] if labelled is None else summary_disclosures(labelled))]
    if strategy not in STRATEGIES:
        raise unknown_name("strategy", strategy, STRATEGIES)
    if strategy == "federated":
        why = "the change of the index network, in each round that the client takes part in"
        return [Disclosure(Each.SHARED, why, "atlas"), vector]
    upload = UpTo((settings or IndexSettings()).upload)
    why = f"{upload} of its examples, each as the pair of the example's embedding and its label"
    inputs = Disclosure("inputs", why, "atlas", (upload, None))
    return [inputs, Disclosure("labels", why, "atlas", (upload,), torch.int64), vector]


def disclosures_by_source() -> dict[str, list[Disclosure]]:
    """Return what leaves a client for each source of an atlas; ``SOURCE STRATEGY`` where it depends on the strategy.

    >>> [name for name in disclosures_by_source() if name.startswith("client2vec")]
    ['client2vec federated', 'client2vec global']
    """
    found: dict[str, list[Disclosure]] = {}
    for name in SOURCES:
        said = {strategy: atlas_disclosures(name, strategy) for strategy in STRATEGIES}
        first, *others = said.values()
        alike = all(other == first for other in others)
        found |= {name: first} if alike else {f"{name} {strategy}": own for strategy, own in said.items()}
    return found


def summary_by_class(source: str) -> bool | None:
    """Return whether atlases of a source have a summary by class (True), of inputs alone (False), or none (None)."""
    kind = SOURCES.facts(source).get("summary")
    return None if kind is None else kind == "classes"


def kept_atlas(file: Path, make: Callable[[], Atlas], *, resume: bool) -> Atlas:
    """Return the atlas that a run's folder keeps; one that is not there, or not to be resumed, is made and kept."""
    if resume and file.exists():
        return Atlas.load(file)
    atlas = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    atlas.save(file)
    return atlas


@source("class-prototypes", discloses="the mean embedding of its examples of each class", summary="classes")
def class_prototypes(federation: Federation, embeddings: Embeddings) -> Atlas:
    """The mean embedding of a client's examples of each class, side by side, as half ``feature``.

    The width is classes x embedding; a class that a client does not have is zeros. The atlas has a summary by class.
    """
    examples = checked_examples(federation, embeddings)
    num_classes, width = federation.num_classes, examples.shape[1]

    def prototypes(own: Tensor, labels: Tensor) -> Tensor:
        sums = torch.zeros(num_classes, width).index_add_(0, labels, examples[own].float())
        counts = torch.bincount(labels, minlength=num_classes)
        return (sums / counts.clamp(min=1)[:, None]).flatten()

    provenance = {"source": "class_prototypes", "encoder": embeddings.encoder}
    return replace(
        atlas_of_rows(federation, FEATURE, num_classes * width, prototypes, provenance),
        summary=summarise(federation, examples),
    )


@source("feature-average", discloses="the mean embedding of its examples", summary="inputs")
def feature_average(federation: Federation, embeddings: Embeddings, *, clip: float | None = None) -> Atlas:
    """The mean embedding of a client's examples, as half ``feature``.

    Without a clip the atlas has a summary, for which labels are not looked at.

    Args:
        federation: the clients.
        embeddings: one vector per example.
        clip: scales longer embeddings down to this norm before the mean, so that one example can move it by at most
            2 clip / n; ``Atlas.with_noise(protects="example")`` needs that.
    """
    if clip is not None and not clip > 0:
        raise UsageError(
            f"feature_average(clip) must be positive, got {clip}.", code="out-of-range", got=clip, setting="clip"
        )
    examples = checked_examples(federation, embeddings)

    def mean(own: Tensor, labels: Tensor) -> Tensor:
        rows = examples[own].float()
        return (rows if clip is None else clip_rows(rows, clip)).mean(0)

    known: dict[str, Any] = {} if clip is None else {"example_clip": {FEATURE: float(clip)}}
    provenance = {"source": "feature_average", "encoder": embeddings.encoder, **known}
    made = atlas_of_rows(federation, FEATURE, examples.shape[1], mean, provenance)
    # A clip is there to bound what one example shows, which scatter would tell.
    return made if clip is not None else replace(made, summary=summarise(federation, examples, labelled=False))


@source("label-histogram", discloses="the share of each class among its examples")
def label_histogram(federation: Federation) -> Atlas:
    """The share of each class among a client's examples, as half ``label``; needs no encoder.

    >>> label_histogram(federation).half("label")  # doctest: +SKIP
    tensor([[0.7500, 0.2500], [0.0000, 1.0000]])
    """

    def shares(own: Tensor, labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=federation.num_classes) / len(labels)

    # The mean of one-hot rows, each of norm 1.
    provenance = {"source": "label_histogram", "example_clip": {LABEL: 1.0}}
    return atlas_of_rows(federation, LABEL, federation.num_classes, shares, provenance)


def head_weights(federation: Federation, states: Mapping[str, Tensors], model: nn.Module) -> Atlas:
    """Return the classifier's parameters after each client's training, as half ``feature``.

    The paper takes them after every local epoch, so that they change as training goes on; an atlas does not change, and
    holds one moment: that of the given states. A client without a state (one that has not trained yet) gets zeros.

    Args:
        federation: the clients.
        states: a client's name to its parameters by name, such as a state dict; only the classifier's are read.
        model: its ``head`` shows which parameters are the classifier's.
    """
    unknown = sorted(states.keys() - {client.name for client in federation})
    if unknown or not states:
        raise UsageError(
            f"head_weights takes the states of clients of {federation.name}, by name; got "
            f"{f'one of {unknown[0]!r}, which is not a client of it' if unknown else 'none'}.",
            code="client-states",
            got=unknown,
        )
    shapes = {name: model.get_parameter(name).shape for name in head_parameters(model)}
    for client, state in states.items():
        wrong = next((name for name in shapes if name not in state or state[name].shape != shapes[name]), None)
        if wrong is not None:
            got = tuple(state[wrong].shape) if wrong in state else "none"
            raise UsageError(
                f"client {client!r}: its state must hold {wrong!r} of {tuple(shapes[wrong])}, got {got}.",
                code="shape-mismatch",
                client=client,
                got=got,
                what=wrong,
            )
    rows = torch.zeros(len(federation), sum(shape.numel() for shape in shapes.values()))
    for i, member in enumerate(federation):
        if member.name in states:
            rows[i] = torch.cat([states[member.name][name].detach().flatten().float().cpu() for name in shapes])
    return _collect(federation, FEATURE, rows, {"source": "head_weights", "parameters": list(shapes)})


def checked_examples(federation: Federation, embeddings: Embeddings) -> Tensor:
    """Return the embeddings of a federation's examples; raise DataError if they are of other data."""
    if len(embeddings.examples) != len(federation.data):
        raise DataError(
            f"{len(embeddings.examples)} embeddings for the {len(federation.data)} examples of {federation.name}; "
            "encode the same federation.",
            code="embeddings-mismatch",
            got=len(embeddings.examples),
            wanted=len(federation.data),
        )
    return embeddings.examples.cpu()


def atlas_of_rows(
    federation: Federation,
    half: str,
    width: int,
    summary: Callable[[Tensor, Tensor], Tensor],
    provenance: Mapping[str, Any],
) -> Atlas:
    """Return the atlas of one row per client, made from the positions and labels of its training examples."""
    rows = torch.zeros(len(federation), width)
    labels = federation.data.labels.cpu()
    for i, client in enumerate(federation):
        own = client.train.cpu()
        if len(own):
            rows[i] = summary(own, labels[own])
    return _collect(federation, half, rows, provenance)


def _collect(federation: Federation, half: str, rows: Tensor, provenance: Mapping[str, Any]) -> Atlas:
    return Atlas(
        names=tuple(client.name for client in federation),
        halves={half: rows},
        sizes=torch.tensor([len(client.train) for client in federation]),
        domains=tuple(client.domain for client in federation),
        provenance={**provenance, **made_of(federation)},
    )
