"""Data sets, partitions and the federation they make."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.data.cache import CACHE_VARIABLE, DEFAULT_FOLDER
    from fedatlas.data.dataset import Dataset
    from fedatlas.data.federation import Client, Federation, Origin, Transform
    from fedatlas.data.images import resize_images
    from fedatlas.data.loading.arrays import from_arrays
    from fedatlas.data.loading.catalogue import DATASETS, is_named
    from fedatlas.data.loading.cells import Cells, CellTable
    from fedatlas.data.loading.digits import DOMAINS, digits_originals, load_digits_domains
    from fedatlas.data.loading.image_folder import from_image_folder
    from fedatlas.data.loading.load import EMBEDDED, load_dataset
    from fedatlas.data.loading.measurements import from_cells
    from fedatlas.data.loading.npz import from_npz
    from fedatlas.data.loading.published_files import read_idx_folder
    from fedatlas.data.loading.table import from_table
    from fedatlas.data.loading.texts import from_texts
    from fedatlas.data.memory import physical_memory
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
    from fedatlas.data.table import ColumnSums, Table
    from fedatlas.data.task import TASKS, Regression, find_task
    from fedatlas.data.transforms import Augment, Blur, ColorShift, GaussianNoise, Rotate

__all__ = [
    "CACHE_VARIABLE",
    "DATASETS",
    "DEFAULT_FOLDER",
    "DOMAINS",
    "EMBEDDED",
    "PARTITIONS",
    "TASKS",
    "Augment",
    "Blur",
    "ByDomain",
    "CellTable",
    "Cells",
    "Client",
    "ColorShift",
    "ColourShifted",
    "ColumnSums",
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
    "Origin",
    "Partition",
    "Pathological",
    "PermutedLabels",
    "Quantity",
    "Regression",
    "Rotate",
    "Rotated",
    "Shard",
    "Share",
    "Square",
    "Table",
    "Transform",
    "digits_originals",
    "federate",
    "find_task",
    "from_arrays",
    "from_cells",
    "from_image_folder",
    "from_npz",
    "from_table",
    "from_texts",
    "is_named",
    "load_dataset",
    "load_digits_domains",
    "physical_memory",
    "read_idx_folder",
    "resize_images",
]

__getattr__, __dir__ = lazy_exports(__name__)
