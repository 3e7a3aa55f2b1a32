"""Federated learning where every client has a vector that says what its data looks like, and the training uses it.

This is the door: what most programs need. Recipes are in ``fedatlas.algorithms``, partitions in ``fedatlas.data``,
models in ``fedatlas.models``. A name is imported when it is first used, so that ``import fedatlas`` takes no time.
"""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas import adapting, algorithms, atlas, data, models, report, testing
    from fedatlas.adapting.adapter import adapt
    from fedatlas.algorithms.user_function import allow_code
    from fedatlas.atlas.atlas import Atlas
    from fedatlas.atlas.doctor.check import check
    from fedatlas.atlas.sources import make_atlas
    from fedatlas.atlas.verdict import Verdict
    from fedatlas.config.config import Config
    from fedatlas.data.dataset import Dataset
    from fedatlas.data.federation import Client, Federation
    from fedatlas.data.loading.arrays import from_arrays
    from fedatlas.data.loading.image_folder import from_image_folder
    from fedatlas.data.loading.load import load_dataset
    from fedatlas.data.loading.npz import from_npz
    from fedatlas.data.loading.own_sets import from_huggingface, from_torch
    from fedatlas.data.loading.table import from_table
    from fedatlas.data.partitions.federate import federate
    from fedatlas.engines.simulator import Simulator
    from fedatlas.errors import AlgorithmCheckError, DataError, FedatlasError, RunFolderError, TrainingError, UsageError
    from fedatlas.parts.algorithm import Algorithm
    from fedatlas.parts.combination import Combination, Gathered
    from fedatlas.parts.context import ClientContext, ClientData
    from fedatlas.parts.disclosure import Disclosure
    from fedatlas.parts.metric import Metric, metric_function
    from fedatlas.parts.objective import Term
    from fedatlas.parts.optimizer import SGD, Adam, LocalOptimizer
    from fedatlas.parts.sampler import Sampler
    from fedatlas.parts.server_rule import ServerRule
    from fedatlas.parts.sharing import ByGroup, Sharing
    from fedatlas.parts.split import Split
    from fedatlas.parts.types import Batch, ClientInfo, Cohort, Output, Roster, Tensors
    from fedatlas.parts.weighting import Weighting
    from fedatlas.runs.run import Run
    from fedatlas.seeds import Seeds
    from fedatlas.testing.check_algorithm import check_algorithm
    from fedatlas.training.callbacks import Callback, CsvLog, EarlyStopping, MlflowLog, TensorBoardLog, WandbLog
    from fedatlas.training.compare import compare
    from fedatlas.training.rounds import play
    from fedatlas.training.settings import Settings
    from fedatlas.training.train import train

__all__ = [
    "SGD",
    "Adam",
    "Algorithm",
    "AlgorithmCheckError",
    "Atlas",
    "Batch",
    "ByGroup",
    "Callback",
    "Client",
    "ClientContext",
    "ClientData",
    "ClientInfo",
    "Cohort",
    "Combination",
    "Config",
    "CsvLog",
    "DataError",
    "Dataset",
    "Disclosure",
    "EarlyStopping",
    "FedatlasError",
    "Federation",
    "Gathered",
    "LocalOptimizer",
    "Metric",
    "MlflowLog",
    "Output",
    "Roster",
    "Run",
    "RunFolderError",
    "Sampler",
    "Seeds",
    "ServerRule",
    "Settings",
    "Sharing",
    "Simulator",
    "Split",
    "TensorBoardLog",
    "Tensors",
    "Term",
    "TrainingError",
    "UsageError",
    "Verdict",
    "WandbLog",
    "Weighting",
    "adapt",
    "adapting",
    "algorithms",
    "allow_code",
    "atlas",
    "check",
    "check_algorithm",
    "compare",
    "data",
    "federate",
    "from_arrays",
    "from_huggingface",
    "from_image_folder",
    "from_npz",
    "from_table",
    "from_torch",
    "load_dataset",
    "make_atlas",
    "metric_function",
    "models",
    "play",
    "report",
    "testing",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__)
