"""The parts of an algorithm: what users write, and what flows between server and clients."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.parts.algorithm import Algorithm
    from fedatlas.parts.checks import field_kinds
    from fedatlas.parts.combination import Combination, Gathered
    from fedatlas.parts.context import ClientContext, ClientData
    from fedatlas.parts.disclosure import Declared, Disclosure, Shape, UpTo, words
    from fedatlas.parts.extension import Extension
    from fedatlas.parts.metric import Accuracy, always, make_metrics
    from fedatlas.parts.objective import CrossEntropy, ReceivedLoss, Term, received_losses
    from fedatlas.parts.optimizer import SGD, Adam, LocalOptimizer
    from fedatlas.parts.registry import OPTIMIZERS
    from fedatlas.parts.sampler import Poisson, Sampler, Uniform
    from fedatlas.parts.server_rule import ServerRule
    from fedatlas.parts.sharing import ByGroup, Level, One
    from fedatlas.parts.split import Buffers, Split
    from fedatlas.parts.table_sums import TABLE_SUMS
    from fedatlas.parts.tensor_math import add, weighted_sum
    from fedatlas.parts.trial import ByTrial
    from fedatlas.parts.types import (
        GROUP,
        Assignment,
        Batch,
        Candidate,
        ClientInfo,
        ClientLosses,
        ClientScore,
        Cohort,
        GroupState,
        Memory,
        Output,
        Roster,
        ServerState,
        Tensors,
        Upload,
    )
    from fedatlas.parts.weighting import ByExamples, Equal, Weighting

__all__ = [
    "GROUP",
    "OPTIMIZERS",
    "SGD",
    "TABLE_SUMS",
    "Accuracy",
    "Adam",
    "Algorithm",
    "Assignment",
    "Batch",
    "Buffers",
    "ByExamples",
    "ByGroup",
    "ByTrial",
    "Candidate",
    "ClientContext",
    "ClientData",
    "ClientInfo",
    "ClientLosses",
    "ClientScore",
    "Cohort",
    "Combination",
    "CrossEntropy",
    "Declared",
    "Disclosure",
    "Equal",
    "Extension",
    "Gathered",
    "GroupState",
    "Level",
    "LocalOptimizer",
    "Memory",
    "One",
    "Output",
    "Poisson",
    "ReceivedLoss",
    "Roster",
    "Sampler",
    "ServerRule",
    "ServerState",
    "Shape",
    "Split",
    "Tensors",
    "Term",
    "Uniform",
    "UpTo",
    "Upload",
    "Weighting",
    "add",
    "always",
    "field_kinds",
    "make_metrics",
    "received_losses",
    "weighted_sum",
    "words",
]

__getattr__, __dir__ = lazy_exports(__name__)
