"""Data sets, partitions and the federation they make."""

from fedatlas.data.dataset import Dataset
from fedatlas.data.degradations import Degraded
from fedatlas.data.digits import load_digits_domains
from fedatlas.data.domain_imbalance import DomainImbalance
from fedatlas.data.federating import PARTITIONS, federate
from fedatlas.data.federation import Client, Federation, Transform
from fedatlas.data.named import DATASETS, is_named, load_dataset
from fedatlas.data.npz import from_npz
from fedatlas.data.partitions import (
    ByDomain,
    Dirichlet,
    Exponential,
    Iid,
    Linear,
    NaturalId,
    Partition,
    Pathological,
    Quantity,
    Shard,
    Share,
    Square,
)
from fedatlas.data.sources import from_arrays, from_image_folder
from fedatlas.data.text import from_table, from_texts
from fedatlas.data.transforms import Augment, Blur, ColorShift, GaussianNoise, Rotate

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Augment",
    "Blur",
    "ByDomain",
    "Client",
    "ColorShift",
    "Dataset",
    "Degraded",
    "Dirichlet",
    "DomainImbalance",
    "Exponential",
    "Federation",
    "GaussianNoise",
    "Iid",
    "Linear",
    "NaturalId",
    "Partition",
    "Pathological",
    "Quantity",
    "Rotate",
    "Shard",
    "Share",
    "Square",
    "Transform",
    "federate",
    "from_arrays",
    "from_image_folder",
    "from_npz",
    "from_table",
    "from_texts",
    "is_named",
    "load_dataset",
    "load_digits_domains",
]
