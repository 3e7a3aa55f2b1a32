"""Data sets, partitions and the federation they make."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.data.dataset import Dataset
    from fedatlas.data.federation import Client, Federation, Transform
    from fedatlas.data.loading.arrays import from_arrays
    from fedatlas.data.loading.catalogue import DATASETS, is_named
    from fedatlas.data.loading.digits import load_digits_domains
    from fedatlas.data.loading.image_folder import from_image_folder
    from fedatlas.data.loading.load import load_dataset
    from fedatlas.data.loading.npz import from_npz
    from fedatlas.data.loading.table import from_table
    from fedatlas.data.loading.texts import from_texts
    from fedatlas.data.partitions.basic import (
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
    from fedatlas.data.partitions.degradations import Degraded
    from fedatlas.data.partitions.domain_imbalance import DomainImbalance
    from fedatlas.data.partitions.federate import federate
    from fedatlas.data.partitions.registry import PARTITIONS
    from fedatlas.data.partitions.shifts import ColourShifted, ConditionalShift, PermutedLabels, Rotated
    from fedatlas.data.transforms import Augment, Blur, ColorShift, GaussianNoise, Rotate

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Augment",
    "Blur",
    "ByDomain",
    "Client",
    "ColorShift",
    "ColourShifted",
    "ConditionalShift",
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
    "PermutedLabels",
    "Quantity",
    "Rotate",
    "Rotated",
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

__getattr__, __dir__ = lazy_exports(__name__)
