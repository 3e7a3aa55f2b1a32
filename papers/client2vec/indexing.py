"""The atlases of Client2Vec's experiments: made once, kept, and measured for what they tell of the clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas import (
    Atlas,
    Embeddings,
    IndexSettings,
    class_prototypes,
    feature_average,
    head_weights,
    index_clients,
    label_histogram,
    make_encoder,
    read_tensors,
    sample_indices,
    train_index_network,
    write_tensors,
)
from fedatlas.client import PERSONAL
from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.seeds import generator, numpy_generator
from fedatlas.training import make_model
from papers.client2vec.quality import quality, sample_quality
from papers.client2vec.settings import SAMPLES, sections
from papers.options import Options
from papers.tables import Numbers, Task, Variant, measure, train_sections

FILE = "atlas.safetensors"
RANDOM_WIDTH = 512
PAPER_WIDTH = 2048
"""Of the feed-forward layers of DSA-IGN."""
WITHOUT_ENCODER = ("label-histogram", "random-vectors")
Spec = Mapping[str, Any]


def index_spec(data: str, strategy: str, options: Options, **changes: Any) -> Spec:
    """Return what one of the paper's indices depends on; ``changes`` are epochs, or fields of ``IndexSettings``."""
    epochs = options.pick(changes.pop("epochs", options.extra["index_epochs"]), 3)
    width = options.extra.get("feed_forward", PAPER_WIDTH)
    own: dict[str, Any] = {} if width == PAPER_WIDTH else {"feed_forward": width}
    if options.quick:
        own = {"feed_forward": 64, "upload": 32, "local_epochs": 2}
    own |= changes
    return {**source_spec(data, "client2vec", options), "strategy": strategy, "epochs": epochs, "settings": own}


def source_spec(data: str, source: str, options: Options) -> Spec:
    """Return what a plain atlas depends on."""
    chosen = sections(data, options)["data"]
    return {"setting": data, "data": chosen, "source": source, "encoder": encoder_name(options), "samples": SAMPLES}


def head_weights_spec(data: str, options: Options) -> Spec:
    """Return what the atlas of classifier weights depends on: the setting's model, an epoch on every client."""
    chosen = sections(data, options)
    training = {**chosen["training"], "rounds": 1, "epochs": 1, "cohort": None, "evaluate_every": 1}
    parts = {**chosen, "training": training, "algorithm": {"name": "fedper"}}
    return {"setting": data, "data": chosen["data"], "source": "head-weights", "encoder": "none", "sections": parts}


def encoder_name(options: Options) -> str:
    """Return the encoder's name: with ``--quick`` the one that needs nothing."""
    return str(options.pick(options.extra["encoder"], "builtin"))


def atlas_variant(name: str, spec: Spec) -> Variant:
    """Return the making of an atlas as a variant, so that it is made once and its figures are kept."""
    return Variant(name=name, measure=made_atlas, settings=spec)


def atlas_file(spec: Spec, options: Options) -> Path:
    """Return the file of a spec's atlas."""
    return atlas_folder(options.out / "runs" / f"{atlas_variant('', spec).key}-0") / FILE


def atlas_folder(folder: Path) -> Path:
    """Return the file of a task's atlas, in or beside its folder; the folder itself may hold a run."""
    return folder.with_name(f"{folder.name}-atlas")


def make_atlases(specs: Mapping[str, Spec], options: Options) -> dict[str, list[Numbers]]:
    """Make the atlases that are not there yet; return what is known of each."""
    variants = [atlas_variant(f"atlas of {name}", spec) for name, spec in specs.items()]
    found = measure(variants, replace(options, seeds=(0,), only=None))
    return {name: found[f"atlas of {name}"] for name in specs}


def index_seconds(spec: Spec, options: Options) -> float | None:
    """Return how long an index took, None if it was not made."""
    variant = atlas_variant("index", spec)
    found = measure([variant], replace(options, seeds=(0,), only="^$"))[variant.name]
    return float(found[0]["seconds"]) if found else None


def made_atlas(task: Task) -> Numbers:
    """Make an atlas, save it in the task's folder, and return its cost and quality."""
    spec, options = task.settings, task.options
    if spec["source"] == "head-weights":
        return made_head_weights(task)
    whole = whole_federation(spec["data"], options)
    federation = limited(whole, spec["samples"])
    begun = time.perf_counter()
    embeddings = None if spec["source"] in WITHOUT_ENCODER else embed(spec, federation, options)
    encoded = time.perf_counter() - begun
    # A GPU's libraries are loaded at first use; that time does not count for the index.
    torch.ones(32, 32, device=options.device).matmul(torch.ones(32, 32, device=options.device)).sum().item()
    begun = time.perf_counter()
    extra: Numbers = {}
    if spec["source"] == "client2vec":
        assert embeddings is not None
        settings = IndexSettings(**spec["settings"])
        network = train_index_network(
            federation,
            embeddings,
            strategy=spec["strategy"],
            epochs=spec["epochs"],
            seed=task.seed,
            settings=settings,
            device=options.device,
            workers=options.workers,
        )
        atlas = index_clients(network, federation, embeddings)
        made = time.perf_counter() - begun
        rows = torch.cat([client.train for client in federation])
        known = sample_indices(network, embeddings.examples[rows])
        extra = {"last_loss": network.provenance["last_loss"]}
        extra |= sample_quality(known, embeddings.examples[rows], federation.data.labels[rows])
    else:
        atlas = plain_atlas(spec["source"], federation, embeddings)
        made = time.perf_counter() - begun
    # The vector is the mean over the encoded examples; how much a client counts is another matter.
    atlas = replace(atlas, sizes=torch.tensor([len(client.train) for client in whole]))
    save_atlas(atlas, task)
    return {"encode_seconds": encoded, "seconds": made, **quality(atlas, whole), **extra}


def made_head_weights(task: Task) -> Numbers:
    """Let every client train an epoch with its own head (Table 2), and keep the heads as an atlas.

    The paper takes them again after every epoch of the training. An atlas does not change, so it holds the first heads.
    """
    parts = task.settings["sections"]
    run = train_sections(task, parts)
    place = {} if task.options.data_folder is None else {"folder": task.options.data_folder}
    config = Config.load(None, (), **{**parts, "data": {**parts["data"], **place}, "seed": task.seed})
    federation, (name, own) = config.federation(), config.model()
    model = make_model(name, own, federation, config.algorithm(), config.seeds().model)
    kept = run.checkpoint().clients
    states = {federation.clients[i].name: memory[PERSONAL] for i, memory in kept.items()}
    atlas = head_weights(federation, states, model)
    save_atlas(atlas, task)
    return {"encode_seconds": 0.0, "seconds": run.seconds, **quality(atlas, federation)}


def save_atlas(atlas: Atlas, task: Task) -> None:
    """Save a task's atlas where ``atlas_file`` says."""
    folder = atlas_folder(task.folder)
    folder.mkdir(parents=True, exist_ok=True)
    atlas.save(folder / FILE)


def plain_atlas(source: str, federation: Federation, embeddings: Embeddings | None) -> Atlas:
    """Return an atlas that needs no network."""
    if source == "random-vectors":
        return random_vectors(federation)
    if embeddings is None:
        return label_histogram(federation)
    make = {"feature-average": feature_average, "class-prototypes": class_prototypes}
    return make[source](federation, embeddings)


def random_vectors(federation: Federation) -> Atlas:
    """Return an atlas that knows nothing of its clients: what it does, any vectors do."""
    rng = generator(0, "papers", "random vectors")
    return Atlas(
        names=tuple(client.name for client in federation),
        halves={half: torch.randn(len(federation), RANDOM_WIDTH, generator=rng) for half in ("feature", "label")},
        sizes=torch.tensor([len(client.train) for client in federation]),
        domains=tuple(client.domain for client in federation),
        provenance={"source": "random vectors"},
    )


def whole_federation(data: Mapping[str, Any], options: Options) -> Federation:
    """Return the federation of an atlas, with all examples."""
    place = {} if options.data_folder is None else {"folder": options.data_folder}
    return Config.load(None, (), data={**data, **place}, seed=0).federation()


def limited(federation: Federation, count: int) -> Federation:
    """Return a federation whose clients have at most ``count`` training examples, drawn the same each time."""
    clients = []
    for client in federation:
        train = client.train
        if len(train) > count:
            drawn = numpy_generator(0, "papers", "encoded", client.name).choice(len(train), count, replace=False)
            train = train[torch.from_numpy(np.sort(drawn))]
        clients.append(replace(client, train=train))
    return replace(federation, clients=tuple(clients))


def embed(spec: Spec, federation: Federation, options: Options) -> Embeddings:
    """Return the vectors of a limited federation: from the folder of embeddings if they are there, else encoded now."""
    file = Path(options.extra["embeddings"]) / f"{spec['setting']}-{spec['encoder']}-{spec['samples']}.safetensors"
    rows = torch.cat([client.train for client in federation]).unique()
    if file.exists() and not options.quick:
        found = read_embeddings(file, len(federation.data))
        if bool(found.examples[rows].any(1).all()):
            return found
    encoder = make_encoder(spec["encoder"], **({} if options.quick else {"device": options.device}))
    made = encoder.encode(federation, progress=None)
    if not options.quick:
        write_embeddings(file, made, rows)
        return read_embeddings(file, len(federation.data))  # the same numbers now and later
    return made


def write_embeddings(file: Path, embeddings: Embeddings, rows: Tensor) -> None:
    """Write the vectors of some examples in half precision: a file small enough to be carried about."""
    kept = {"rows": rows, "examples": embeddings.examples[rows].half(), "classes": embeddings.classes}
    write_tensors(file, kept, {"encoder": embeddings.encoder})


def read_embeddings(file: Path, num_examples: int) -> Embeddings:
    """Return what ``write_embeddings`` wrote, with zeros for the other examples."""
    tensors, words = read_tensors(file)
    examples = torch.zeros(num_examples, tensors["examples"].shape[1])
    examples[tensors["rows"]] = tensors["examples"].float()
    return Embeddings(encoder=words["encoder"], examples=examples, classes=tensors["classes"])
