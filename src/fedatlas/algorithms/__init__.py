"""One file a paper: its parts and its recipe. ``ALGORITHMS`` names the recipes.

A recipe's file is imported when the recipe is first used.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedatlas.algorithms.registry import ALGORITHMS as ALGORITHMS
from fedatlas.algorithms.registry import build_algorithm as build_algorithm
from fedatlas.algorithms.registry import recipe as recipe
from fedatlas.algorithms.registry import standalone as standalone
from fedatlas.registry import exported, lazy_exports

if TYPE_CHECKING:
    from fedatlas.algorithms.accountant import noise_for as noise_for
    from fedatlas.algorithms.afl import afl as afl
    from fedatlas.algorithms.capped import Cap as Cap
    from fedatlas.algorithms.capped import capped as capped
    from fedatlas.algorithms.cfl import cfl as cfl
    from fedatlas.algorithms.client2vec import client2vec as client2vec
    from fedatlas.algorithms.client2vec_objective import Projected as Projected
    from fedatlas.algorithms.client2vec_sampling import SimilarityWeights as SimilarityWeights
    from fedatlas.algorithms.client2vec_sampling import SimilarToLast as SimilarToLast
    from fedatlas.algorithms.clipped import clipped as clipped
    from fedatlas.algorithms.clustered import clustered as clustered
    from fedatlas.algorithms.dp_fedavg import dp_fedavg as dp_fedavg
    from fedatlas.algorithms.fedavg import fedavg as fedavg
    from fedatlas.algorithms.fedavgm import Momentum as Momentum
    from fedatlas.algorithms.fedavgm import fedavgm as fedavgm
    from fedatlas.algorithms.fedbn import KeepNorms as KeepNorms
    from fedatlas.algorithms.fedbn import fedbn as fedbn
    from fedatlas.algorithms.feddisco import feddisco as feddisco
    from fedatlas.algorithms.feddyn import DynamicDrift as DynamicDrift
    from fedatlas.algorithms.feddyn import feddyn as feddyn
    from fedatlas.algorithms.fedgc import ADAMW as ADAMW
    from fedatlas.algorithms.fedgc import fedgc as fedgc
    from fedatlas.algorithms.fedgcr import fedgcr as fedgcr
    from fedatlas.algorithms.fedgr import TYPE_VECTOR as TYPE_VECTOR
    from fedatlas.algorithms.fedgr import fedgr as fedgr
    from fedatlas.algorithms.fediir import MeanHeadGradient as MeanHeadGradient
    from fedatlas.algorithms.fediir import fediir as fediir
    from fedatlas.algorithms.fedlc import fedlc as fedlc
    from fedatlas.algorithms.fedmix import MixedCrossEntropy as MixedCrossEntropy
    from fedatlas.algorithms.fedmix import fedmix as fedmix
    from fedatlas.algorithms.fedpce import ConditionedNorms as ConditionedNorms
    from fedatlas.algorithms.fedpce import Group as Group
    from fedatlas.algorithms.fedpce import Grouped as Grouped
    from fedatlas.algorithms.fedpce import fedpce as fedpce
    from fedatlas.algorithms.fedper import KeepHead as KeepHead
    from fedatlas.algorithms.fedper import fedper as fedper
    from fedatlas.algorithms.fedprox import Proximal as Proximal
    from fedatlas.algorithms.fedprox import fedprox as fedprox
    from fedatlas.algorithms.fedsam import SharpnessAware as SharpnessAware
    from fedatlas.algorithms.fedsam import fedsam as fedsam
    from fedatlas.algorithms.grouped import grouped as grouped
    from fedatlas.algorithms.harmofl import AmplitudeNormalised as AmplitudeNormalised
    from fedatlas.algorithms.harmofl import harmofl as harmofl
    from fedatlas.algorithms.ifca import ByLoss as ByLoss
    from fedatlas.algorithms.ifca import ifca as ifca
    from fedatlas.algorithms.krum import krum as krum
    from fedatlas.algorithms.local import local as local
    from fedatlas.algorithms.median import median as median
    from fedatlas.algorithms.moon import moon as moon
    from fedatlas.algorithms.multi_krum import multi_krum as multi_krum
    from fedatlas.algorithms.qffl import FairStep as FairStep
    from fedatlas.algorithms.qffl import qffl as qffl
    from fedatlas.algorithms.scaffold import scaffold as scaffold
    from fedatlas.algorithms.term import term as term
    from fedatlas.algorithms.trimmed_mean import trimmed_mean as trimmed_mean


class _Recipes(ModuleType):
    """This package, where a name such as ``fedprox`` is the recipe and not the file that holds it."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets a submodule here after its import.
        super().__setattr__(name, getattr(value, name, value) if isinstance(value, ModuleType) else value)

    def __getattr__(self, name: str) -> Any:
        return ALGORITHMS[name] if not name.startswith("_") and name in ALGORITHMS else _part(name)

    def __dir__(self) -> list[str]:
        return sorted({"ALGORITHMS", "build_algorithm", "recipe", "standalone", *ALGORITHMS, *exported(__name__)})


sys.modules[__name__].__class__ = _Recipes
_part, _ = lazy_exports(__name__)
