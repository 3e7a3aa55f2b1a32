"""The paper's setting (Sections 4 and 5.1), as sections of a config.

``--stem`` chooses the network's first layers. Where ours differs: fewer aggregations and fewer steps of client training
unless ``--rounds 1000 --adapt-rounds 200``; of Digits, SYN is not to be had, and generated printed digits stand in for
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from papers.fedpce.measuring import personalised
from papers.options import Options, one_of, read_options
from papers.tables import Variant

ADAM = {
    "name": "adam",
    "lr": 1e-4,
    "min_lr": 1e-6,
    "beta1": 0.5,
    "beta2": 0.9,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "keep_state": True,
}
FEDPCE: dict[str, Any] = {"algorithm": {"name": "fedpce"}}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": {"name": "fedavg"}, "optimizer": ADAM},
    "FedProx": {"algorithm": {"name": "fedprox", "mu": 0.01}, "optimizer": ADAM},
    "FedPer": {"algorithm": {"name": "fedper"}, "optimizer": ADAM},
    "FedBN": {"algorithm": {"name": "fedbn"}, "optimizer": ADAM},
    "FedPCE": FEDPCE,
    "FedPCE(62)": {**FEDPCE, "model": {"width": 62}},
}
"""The six methods; all use the same optimizer, which FedPCE's recipe has built in."""
MODEL = {"name": "resnet18", "norm": "instance", "head_norm": True}
STEMS = {"cifar": "", "cifar-pool": " with max-pool"}
"""The network's first layers: a 3x3 convolution, alone or with the max-pool behind it. What a title says of them.

The paper does not say which. With the max-pool the last maps are 2x2, and instance norm there has four numbers to
normalise by; without it they are 4x4.
"""
AUGMENT = {"padding": 4, "flip": 0.25, "degrees": 15, "rotate": 0.25, "erase": 0.5, "erase_pixels": [16, 256]}
DIGITS = ["mnist", "usps", "svhn", "generated"]
FEW = (2, 5, 10, 25, 50, 100, 200, 400, 800, 1600)
"""The numbers of images of Figure 4."""
FOLDS = 5
KINDS = {"noise": "Gaussian noise", "jitter": "ColorJitter", "imbalance": "Class imbalance"}
"""The degradations, by our names and the paper's."""
SETS = ("CIFAR-10", "CIFAR-100", "Digits")


def options_of(description: str, **extra: Any) -> Options:
    """Return what the command line says.

    ``--seeds`` are the paper's folds, 0 to 4. ``--minutes M`` stops after so long and keeps what is done; the same
    command goes on with it, or with ``--finish`` takes the training as far as it is.
    """
    return read_options(
        description,
        rounds=200,
        quick_rounds=3,
        adapt_rounds=40,
        precision="float32",
        compile=False,
        minutes=0.0,
        finish=False,
        stem="cifar",
        **extra,
    )


def clients_of(title: str, options: Options, num_clients: int | None = None) -> dict[str, Any]:
    """Return the data section of one of the paper's three sets."""
    if options.quick:
        # The embedded digits stand in for all of them.
        if title == "Digits":
            return {"source": "digits", "partition": {"name": "by-domain", "clients_per_domain": 2}, "held_out": 4}
        count = max(6, 2 * (num_clients or 30) // 5)
        return {
            "source": "digits",
            "partition": {"name": "degraded", "num_clients": count},
            "held_out": max(3, count // 4),
        }
    if title == "Digits":
        partition = {"name": "by-domain", "clients_per_domain": 10}
        return {"source": "digit_five", "domains": DIGITS, "partition": partition, "held_out": 8}
    count = num_clients or 30
    # A fifth; of twelve clients, one of each degradation.
    held_out = max(3, count // 5)
    source = title.lower().replace("-", "")
    return {"source": source, "partition": {"name": "degraded", "num_clients": count}, "held_out": held_out}


def variant(
    title: str,
    method: str,
    options: Options,
    *,
    name: str | None = None,
    algorithm: Mapping[str, Any] | None = None,
    num_clients: int | None = None,
) -> Variant:
    """Return one method on one data set; ``algorithm`` changes its settings, for the ablations."""
    own = METHODS[method]
    width = own.get("model", {}).get("width", 64)
    size = {"width": options.pick(width, width // 8)}
    sections = {
        "data": {**clients_of(title, options, num_clients), "folds": FOLDS},
        "model": {**MODEL, "stem": one_of("stem", options.extra["stem"], STEMS), **size},
        "algorithm": {**own["algorithm"], **(algorithm or {})},
        "training": {
            "rounds": options.rounds,
            "steps": options.pick(50, 4),
            "batch_size": options.pick(64, 16),
            "precision": options.extra["precision"],
            "compile": options.extra["compile"],
            "augment": AUGMENT,
            "equal_weights": True,
            "evaluate_every": max(1, options.rounds // 20),
            "test_own": True,
            "checkpoint_every": options.rounds,
        },
        **({"optimizer": own["optimizer"]} if "optimizer" in own else {}),
    }
    settings: dict[str, Any] = {
        "sections": sections,
        "adapt": {
            "rounds": options.pick(options.extra["adapt_rounds"], 2),
            "steps": options.pick(50, 4),
            "compile": options.extra["compile"],
        },
    }
    if title == "CIFAR-10" and method in ("FedBN", "FedPCE") and not algorithm and num_clients is None:
        settings["few"] = list(options.pick(FEW, (2, 5, 20)))
    return Variant(name=name or f"{title} {method}", measure=personalised, settings=settings)


def all_methods(title: str, options: Options) -> list[Variant]:
    """Return the six methods on one data set."""
    return [variant(title, method, options) for method in METHODS]


def shown(title: str, options: Options) -> str:
    """Return a data set's name with what is said of the stem."""
    return f"{title}{STEMS[options.extra['stem']]}"


def said(options: Options, title: str = "") -> str:
    """Return how the numbers came about, and what stands in for a part of a data set."""
    if options.quick:
        return "With `--quick`: the embedded digits, fewer clients. It shows that the script works, no more."
    lengths = f"{options.rounds} aggregations of 50 steps (paper: 1000)"
    tuned = f"{options.extra['adapt_rounds']} x 50 steps of client training (paper: 200 x 50)"
    folds = f"{len(options.seeds)} of 5 folds, {options.extra['precision']}, stem {options.extra['stem']}"
    stands = " Generated printed digits stand in for SYN." if title == "Digits" else ""
    return (
        f"{lengths}, {tuned}, {folds}. Collaborative accuracy is that of clients' own models before averaging, "
        "weighted by test images, the best of 20 evaluated rounds, as in the paper; client training's the best of 10."
        f"{stands}"
    )
