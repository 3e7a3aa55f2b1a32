"""FedGCR. Cheng, Yeh, Chen, Pastor, Chen: FedGCR: Achieving Performance and Fairness for Federated Learning with
Distinct Client Types via Group Customization and Reweighting, AAAI 2024.

model and client loss  FedGC's (``fedgc.py``, Eq. 6-8)
weights                FedGR's (``fedgr.py``, Eq. 3-5), with the groups of the type-specific prompts
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.algorithms.fedgc import ADAMW, Customized, GroupCustomization, Similarity, customizing
from fedatlas.algorithms.fedgr import Grouped, GroupLoss, TypeGroups, TypeVector, grouping_by, reweight
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import unknown_name
from fedatlas.models.prompted import GC_NET_LAYERS
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import Adam


class Preset(NamedTuple):
    """The parts of FedGCR with their settings."""

    groups: TypeGroups = TypeGroups()
    term: GroupCustomization = GroupCustomization()
    weighting: GroupLoss = GroupLoss()
    model: Customized = Customized()
    optimizer: Adam = ADAMW


PRESETS = {
    "paper": Preset(),
    "as_published_code": Preset(
        # A mixture with full covariances, fewer clients than widths and one start is k-means with one start.
        groups=TypeGroups(method="kmeans", n_init=1),
        term=GroupCustomization(lambda1=0.1, ramp=True, lambda2=0.05, tau_alignment=1.0),
        weighting=GroupLoss(gamma=0.9, delay=0, by_examples=True),
        model=Customized(mix_in_batch=True),
        optimizer=replace(ADAMW, keep_state=True),
    ),
}


@recipe(changes="model, objective, server, weighting, optimizer", model="prompted_vit", paper="FedGCR")
def fedgcr(
    num_groups: int = 5,
    method: str | None = None,
    lambda1: float | None = None,
    lambda2: float | None = None,
    tau: float | None = None,
    q: float | None = None,
    delta: float | None = None,
    gamma: float | None = None,
    preset: str = "paper",
    atlas: Grouped | str | Path | None = None,
    similarity: Similarity = "cosine",
    covariance: str = "diag",
    after_training: bool = False,
    by_run: bool = False,
    gc_layers: int = GC_NET_LAYERS,
) -> Algorithm:
    """A frozen ViT whose prompts are customized to each image's type, and groups with a high loss count more.

    What is not set is the preset's: ``paper`` or ``as_published_code``. Groups are found in each round from the
    clients' type-specific prompts, or once from an ``atlas``.
    """
    if preset not in PRESETS:
        raise unknown_name("preset of fedgcr", preset, PRESETS)
    parts = PRESETS[preset]
    found = replace(parts.groups, covariance=covariance, by_run=by_run, **_given(num_groups=num_groups, method=method))
    groups = grouping_by(atlas, found)
    given = _given(lambda1=lambda1, lambda2=lambda2, tau=tau, tau_alignment=tau)
    term = replace(parts.term, similarity=similarity, **given)
    weighting = replace(parts.weighting, groups=groups, **_given(q=q, delta=delta, gamma=gamma))
    vector = TypeVector(after_training=after_training)
    model = replace(parts.model, layers=gc_layers)
    customized = replace(customizing(groups, term, vector), optimizer=parts.optimizer, extensions=(model,))
    return replace(reweight(customized, weighting, vector), name="fedgcr")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
