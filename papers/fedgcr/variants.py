"""What FedGCR's tables have in common: their variants, their columns, their options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open

from fedatlas.errors import DataError
from fedatlas.models import HUB_PREFIX
from papers.fedgcr.data import TYPES
from papers.fedgcr.measuring import measured
from papers.options import Options, read_options
from papers.tables import Cell, Table, Variant, measure, write_table

ROUNDS = 50
SHAPE = ("patch", "width", "depth", "heads")
"""What a file of weights says of the network that it is of."""
METHODS: Mapping[str, str] = MappingProxyType(
    {
        "FedAvg": "fedavg",
        "AFL": "afl",
        "q-FFL": "qffl",
        "TERM": "term",
        "HarmoFL": "harmofl",
        "FedSAM": "fedsam",
        "FedMix": "fedmix",
        "FedGCR": "fedgcr",
    }
)
"""The methods of Tables 1, 2, 6 and 7."""
ABLATION: Mapping[str, str] = MappingProxyType(
    {"neither": "fedavg", "FedGR": "fedgr", "FedGC": "fedgc", "both (FedGCR)": "fedgcr"}
)
"""The rows of Tables 5, 12 and 13."""
TITLES: Mapping[str, str] = MappingProxyType(
    {"digit-five": "Digit-Five", "pacs": "PACS", "domainnet": "DomainNet", "digits": "the embedded digits"}
)
METRICS = ("domain_mean", "sigma_type", "sigma_client")
FACTORS = (1, 5, 10)
SETTING = (
    "A frozen ViT (the one that ships, 32x32 images; the paper has ViT-B/16 at 224x224), 4 prompts, AdamW 1e-3 "
    "(prompts 1e-2), decay 1e-2, batch 64, one local epoch, no augmentation, all clients in every round: the same "
    "for all methods. Test sets are the official ones, at most 2,000 images a domain. Avg is the mean over domains "
    "after the last round; sigma_type and sigma_client are over domains and over clients, which are tested on their "
    "domain's test set."
)
QUICK = (
    "With `--quick` all images are the embedded digits, five domains of them, and the network is a tiny ViT with "
    "random weights: it shows that the script works, not what the method does."
)
STANDS: Mapping[str, str] = MappingProxyType({"digit-five": "In Digit-Five generated digits stand in for SYN."})
"""What stands for what, by data set."""
TINY = MappingProxyType({"weights": "untrained", "width": 16, "depth": 1, "heads": 2})
"""The model of ``--quick``."""


def options_for(description: str, *, seeds: Sequence[int] = (0, 1, 2)) -> Options:
    """Return what a table's command line says."""
    return read_options(description, rounds=ROUNDS, quick_rounds=2, seeds=seeds, weights="", precision="float32")


def backbone(options: Options) -> dict[str, Any]:
    """Return the options of ``prompted_vit``: none for the backbone that ships, else a file and the shape in it."""
    file = options.extra.get("weights", "")
    if not file:
        return {}
    if file.startswith(HUB_PREFIX):
        return {"backbone": file}
    try:
        with safe_open(file, "pt") as opened:
            shape = {name: int(value) for name, value in (opened.metadata() or {}).items() if name in SHAPE}
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(
            f"--weights {file} cannot be read: {error}. Give a file that papers.fedgcr.pretrain_vit wrote.",
            code="file-unreadable",
            path=file,
        ) from None
    return {"weights": file, **shape}


def variant(
    options: Options,
    data: str,
    factor: int,
    method: str,
    /,
    *,
    other_order: bool = False,
    **settings: Any,
) -> Variant:
    """Return one training; ``settings`` are the method's own. With ``--quick``: the embedded digits, a tiny model."""
    words = [data, f"factor {factor}", *(["other order"] if other_order else []), method]
    words += [f"{name} {value}" for name, value in settings.items()]
    # The number of types need not be said: it is the default.
    if settings.get("num_groups") == TYPES[data]:
        del settings["num_groups"]
    return Variant(
        name=", ".join(words),
        measure=measured,
        settings={
            "data": options.pick(data, "digits"),
            "factor": factor,
            "other_order": options.pick(other_order, False),
            "method": method,
            "options": settings,
            "model": dict(TINY) if options.quick else backbone(options),
            "rounds": options.rounds,
            "batch_size": 64,
            "precision": options.extra.get("precision", "float32"),
            "evaluate_every": 10,
        },
    )


def cells(one: Variant, papers: Sequence[float | None], keys: Sequence[str] = METRICS) -> list[Cell]:
    """Return a variant's cells, one for each metric."""
    return [Cell(one.name, paper=paper, key=key) for key, paper in zip(keys, papers, strict=True)]


def columns(*titles: str) -> tuple[str, ...]:
    """Return three columns for each title."""
    return tuple(f"{title}{metric}" for title in titles for metric in ("Avg", "sigma_type", "sigma_client"))


def measure_and_write(
    title: str,
    heads: tuple[str, ...],
    rows: Mapping[str, Sequence[tuple[Variant, Sequence[float | None]]]],
    options: Options,
    *,
    keys: Sequence[str] = METRICS,
    note: str = "",
) -> None:
    """Measure the variants of a table and print it."""
    variants = {one.name: one for row in rows.values() for one, _ in row}
    results = measure(list(variants.values()), options)
    filled = {name: [cell for one, papers in row for cell in cells(one, papers, keys)] for name, row in rows.items()}
    setting = said(list(variants.values()), options, note)
    write_table(Table(title=title, setting=setting, columns=heads, rows=filled), results, options)


def said(variants: Sequence[Variant], options: Options, note: str = "") -> str:
    """Return how a table's numbers came about, and what stands for what."""
    factors = "The factor is the paper's domain imbalance factor, DIF."
    stands = [STANDS[data] for data in dict.fromkeys(one.settings["data"] for one in variants) if data in STANDS]
    return " ".join(filter(None, (options.pick(SETTING, QUICK), factors, *stands, note)))


def has_domainnet(options: Options) -> bool:
    """Return whether DomainNet's pictures are there; with ``--quick`` the embedded digits stand in for them."""
    return options.quick or (options.data_folder is not None and (Path(options.data_folder) / "domainnet").is_dir())


WITHOUT_DOMAINNET = "DomainNet is left out: there is no domainnet/DOMAIN/CLASS/ in the data folder."
