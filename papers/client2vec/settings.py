"""The federations, models and hyper-parameters of Client2Vec's experiments, as sections of a config.

Where the paper is silent these are the readings of docs/algorithms/client2vec.md. DomainNet was not to be had: PACS
(four domains, ten clients each) stands for it, and the five digit sets beside it. Nor were pretrained weights: all
start from scratch. Who has them uses them: pictures in ``domainnet/DOMAIN/CLASS/`` of the data folder are taken in
place of PACS, and ``--pretrained`` names a file or a model of the Hugging Face hub. The partition has one seed, 0, so
that one atlas serves the runs of every seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import unknown_name
from papers.options import Options, read_options

Sections = dict[str, Any]

QUICK = (
    "With `--quick` all images are the embedded digits, the network is a small CNN and an index has 3 epochs: it shows "
    "that the script works, not what the method does."
)
CIFAR = "CIFAR-10 (60,000 merged, 75/25 in each client), Dirichlet 0.1, 100 clients, 10 a round, 5 epochs, SGD 0.01."
PACS = (
    "PACS at 64 pixels in place of DomainNet, 4 domains of 10 clients, 4 a round, from scratch (no pretrained "
    "weights), pixels in [0, 1] without ImageNet's statistics."
)
DOMAINNET = "DomainNet at 64 pixels, the classes that the folder has, 10 clients a domain, a tenth of them a round."
DIGITS = "MNIST, USPS, generated, MNIST-M and SVHN in place of DomainNet, 10 clients each, 5 a round, ResNet-18."

BASES: dict[str, Sections] = {
    "FedAvg": {"name": "fedavg"},
    "FedAvgM": {"name": "fedavgm", "beta": 0.5},
    "FedDyn": {"name": "feddyn", "alpha": 0.1},
    "MOON": {"name": "moon", "mu": 0.1},
    "FedLC": {"name": "fedlc"},
    "FedIIR": {"name": "fediir"},
    "FedProx": {"name": "fedprox", "mu": 1.0},
    "FedDisco": {"name": "feddisco"},
    "Clustered Sampling": {"name": "clustered"},
}
"""The base algorithms with the paper's hyper-parameters (of a grid, its middle; FedIIR's its first, FL-bench's)."""
STRATEGIES = {"FEDERATED": "federated", "GLOBAL": "global"}
WEIGHTS = {"federated": 1.0, "global": 5.0}
"""lambda_o = lambda_d by strategy, as the caption of Table 1 says."""
SAMPLES = 128
"""How many examples of a client are encoded, at most: what GLOBAL uploads, and what FEDERATED trains on, where the
paper has all. A client's vector is their mean."""
MODELS: dict[str, Sections] = {
    "resnet18": {"name": "resnet18", "stem": "imagenet"},
    "resnet18-cifar": {"name": "resnet18", "stem": "cifar"},
    "mobilenet_v2": {"name": "mobilenet_v2"},
    "cct": {"name": "cct_7_3x1"},
    "cnn": {"name": "cnn"},
    "lstm": {"name": "char_lstm"},
}
PRETRAINED = ("mobilenet_v2", "resnet18")
"""The networks that the paper had pretrained."""
_SGD = {"name": "sgd", "lr": 0.01, "weight_decay": 5e-5}
_TRAINING = {"epochs": 5, "batch_size": 32, "evaluate_every": 1, "checkpoint_every": 25}
_DIRICHLET = {"name": "dirichlet", "num_clients": 100, "alpha": 0.1, "min_samples": 40}
_DOMAINS = {"name": "by-domain", "clients_per_domain": 10}

SETTINGS: dict[str, Sections] = {
    "cifar10": {
        "data": {"source": "cifar10", "partition": _DIRICHLET},
        "model": MODELS["resnet18"],
        "optimizer": _SGD,
        "training": {**_TRAINING, "cohort": 10},
    },
    "cifar10-two": {
        "data": {"source": "cifar10", "partition": {"name": "pathological", "num_clients": 100}},
        "model": MODELS["resnet18"],
        "optimizer": _SGD,
        "training": {**_TRAINING, "cohort": 10},
    },
    "digit_five": {
        "data": {"source": "digit_five", "partition": _DOMAINS},
        "model": MODELS["resnet18-cifar"],
        "optimizer": {**_SGD, "momentum": 0.9},
        "training": {**_TRAINING, "cohort": 5},
    },
    "digits": {
        "data": {"source": "digits", "partition": _DOMAINS},
        "model": MODELS["cnn"],
        "optimizer": _SGD,
        "training": {**_TRAINING, "cohort": 5},
    },
    "pacs": {
        "data": {"source": "pacs", "partition": _DOMAINS},
        "model": MODELS["mobilenet_v2"],
        "optimizer": {**_SGD, "momentum": 0.9},
        "training": {**_TRAINING, "cohort": 4},
    },
    "domainnet": {
        "data": {"source": "domainnet", "size": 64, "partition": _DOMAINS},
        "model": MODELS["mobilenet_v2"],
        "optimizer": {**_SGD, "momentum": 0.9},
        "training": {**_TRAINING, "cohort": 0.1},
    },
    "shakespeare": {
        "data": {
            "source": "shakespeare",
            "partition": {"name": "natural-id", "min_samples": 40},
            "test_fraction": 0.2,
        },
        "model": MODELS["lstm"],
        "optimizer": _SGD,
        "training": {**_TRAINING, "cohort": 0.1},
    },
}
"""The paper's federations by name, and what stands for those that were not to be had."""

_SMALL = {"name": "cnn", "width": 8, "norm": "batch"}
_SMALL_TRAINING = {"epochs": 1, "batch_size": 32, "cohort": 4, "evaluate_every": 1, "checkpoint_every": 25}
_QUICK: dict[str, Sections] = {
    "labels": {"name": "dirichlet", "num_clients": 20, "alpha": 0.1, "min_samples": 10},
    "two": {"name": "pathological", "num_clients": 20},
    "domains": {"name": "by-domain", "clients_per_domain": 4},
}


def read(description: str, *, rounds: int = 100, **extra: Any) -> Options:
    """Return the options of one of Client2Vec's scripts; after ``--minutes`` no training goes on."""
    index: dict[str, Any] = {"encoder": "conse", "embeddings": "runs/client2vec/embeddings"}
    index |= {"index_epochs": 500, "feed_forward": 2048, "pretrained": ""}
    return read_options(description, rounds=rounds, **{"minutes": 0.0, **index, **extra})


class Domains(NamedTuple):
    """The federation of domains of a table: DomainNet, or what stands for it."""

    data: str
    words: str
    setting: str


def domains_of(options: Options) -> Domains:
    """Return DomainNet where the data folder has it, else PACS."""
    if not options.quick and options.data_folder is not None and (Path(options.data_folder) / "domainnet").is_dir():
        return Domains("domainnet", "DomainNet", DOMAINNET)
    return Domains("pacs", "PACS for the paper's DomainNet", PACS)


def pretrained(model: Sections, options: Options) -> Sections:
    """Return a model's section with the weights that ``--pretrained`` names, where the model has such."""
    weights = options.extra.get("pretrained", "")
    return {**model, "pretrained": weights} if weights and model["name"] in PRETRAINED else model


def sections(name: str, options: Options) -> Sections:
    """Return a federation, its model and its training as sections of a config; small ones with ``--quick``."""
    if name not in SETTINGS:
        raise unknown_name("setting", name, SETTINGS)
    chosen = SETTINGS[name]
    if options.quick:
        kind = "two" if name.endswith("-two") else "labels" if name.startswith("cifar10") else "domains"
        chosen = {
            "data": {"source": "digits", "partition": _QUICK[kind]},
            "model": _SMALL,
            "optimizer": {**_SGD, "lr": 0.02},
            "training": _SMALL_TRAINING,
        }
    elif name == "domainnet":
        chosen = {**chosen, "data": {**chosen["data"], "source": str(Path(options.data_folder or ".") / name)}}
    if name in ("domainnet", "pacs") and not options.quick:
        chosen = {**chosen, "model": pretrained(chosen["model"], options)}
    training = {**chosen["training"], "rounds": options.rounds}
    return {**chosen, "training": training, "seeds": {"partition": 0}}
