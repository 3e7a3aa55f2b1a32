"""Federated learning where every client has a vector that says what its data looks like, and the training uses it."""

from fedatlas.aggregation import ServerRule
from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import (
    ALGORITHMS,
    afl,
    build_algorithm,
    clustered,
    fedavg,
    fedavgm,
    fedbn,
    feddisco,
    feddyn,
    fediir,
    fedlc,
    fedmix,
    fedpce,
    fedper,
    fedprox,
    fedsam,
    harmofl,
    moon,
    qffl,
    scaffold,
    term,
)
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.atlas import Atlas, make_atlas
from fedatlas.checking import check_algorithm
from fedatlas.client import LocalWork
from fedatlas.config import Config
from fedatlas.data import (
    ByDomain,
    Client,
    Dataset,
    Dirichlet,
    DomainImbalance,
    Federation,
    GaussianNoise,
    Iid,
    NaturalId,
    Pathological,
    Quantity,
    Shard,
    federate,
    from_arrays,
    from_image_folder,
    from_npz,
    from_table,
    load_dataset,
)
from fedatlas.errors import AlgorithmCheckError, DataError, FedatlasError, RunFolderError, TrainingError, UsageError
from fedatlas.models import build_model
from fedatlas.objectives import Batch, CrossEntropy, Output, Term
from fedatlas.optimizers import SGD, Adam, LocalOptimizer
from fedatlas.runs import Run
from fedatlas.sampling import Sampler, Uniform
from fedatlas.seeds import Seeds
from fedatlas.simulate import Simulator
from fedatlas.splits import ShareAll, Split
from fedatlas.training import train
from fedatlas.weighting import ByExamples, Equal, Weighting

__all__ = [
    "ALGORITHMS",
    "SGD",
    "Adam",
    "Algorithm",
    "AlgorithmCheckError",
    "Atlas",
    "Batch",
    "ByDomain",
    "ByExamples",
    "Client",
    "Config",
    "CrossEntropy",
    "DataError",
    "Dataset",
    "Dirichlet",
    "DomainImbalance",
    "Equal",
    "FedatlasError",
    "Federation",
    "GaussianNoise",
    "Iid",
    "LocalOptimizer",
    "LocalWork",
    "NaturalId",
    "Output",
    "Pathological",
    "Quantity",
    "Run",
    "RunFolderError",
    "Sampler",
    "Seeds",
    "ServerRule",
    "Shard",
    "ShareAll",
    "Simulator",
    "Split",
    "Term",
    "TrainingError",
    "Uniform",
    "UsageError",
    "Weighting",
    "afl",
    "build_algorithm",
    "build_model",
    "check_algorithm",
    "client2vec",
    "clustered",
    "fedavg",
    "fedavgm",
    "fedbn",
    "feddisco",
    "feddyn",
    "federate",
    "fediir",
    "fedlc",
    "fedmix",
    "fedpce",
    "fedper",
    "fedprox",
    "fedsam",
    "from_arrays",
    "from_image_folder",
    "from_npz",
    "from_table",
    "harmofl",
    "load_dataset",
    "make_atlas",
    "moon",
    "qffl",
    "scaffold",
    "term",
    "train",
]
