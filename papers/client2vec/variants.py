"""Trainings with and without an atlas, as variants that are trained once whatever table shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedatlas.atlas import Atlas
from fedatlas.data import Federation
from fedatlas.parts import Algorithm, Batch, ClientContext, Output, Term
from papers.client2vec.indexing import Spec, atlas_file, index_spec, make_atlases, whole_federation
from papers.client2vec.settings import BASES, WEIGHTS, Sections, sections
from papers.options import Options
from papers.tables import Numbers, Task, Variant, measure, run_figures, train_sections

USES = {"i": "sample", "ii": "aggregate", "iii": "train"}
"""The paper's three case studies."""


@dataclass(frozen=True)
class AtlasUse:
    """How a training uses an atlas."""

    spec: Spec
    """What the atlas depends on."""
    cases: str
    """The case studies, such as ``i+ii``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``client2vec``."""
    label_free: bool = False
    """Take out of the vectors what a linear function of the clients' label shares explains."""


def training(
    name: str,
    options: Options,
    *,
    data: str = "cifar10",
    base: str = "FedAvg",
    use: AtlasUse | None = None,
    changes: Sections | None = None,
    unscaled: bool = False,
    confidence_penalty: float | None = None,
) -> Variant:
    """Return a training of a base algorithm, with the use of an atlas if there is one.

    Args:
        name: the variant's name.
        options: what the command line said.
        data: one of the settings' names.
        base: one of the paper's base algorithms.
        use: the atlas and its use.
        changes: sections of the config that differ from the setting's.
        unscaled: feed pixels of 0 to 255 where 0 to 1 are meant, as FL-bench did when the paper was written.
        confidence_penalty: the weight of a plain penalty on sure answers, in place of what an atlas would add.
    """
    chosen = sections(data, options)
    for title, change in (changes or {}).items():
        plain = title == "model" or not isinstance(change, Mapping)
        chosen = {**chosen, title: change if plain else {**chosen.get(title, {}), **change}}
    settings: Sections = {**chosen, "algorithm": BASES[base]}
    if use is not None:
        settings["index"] = use.spec
        settings["use"] = [USES[case] for case in use.cases.split("+")]
        settings["uses"] = dict(use.options)
        if use.label_free:
            settings["label_free"] = True
    if unscaled:
        settings["unscaled"] = True
    if confidence_penalty is not None:
        settings["confidence_penalty"] = confidence_penalty
    return Variant(name=name, measure=indexed, settings=settings)


def with_index(
    name: str,
    options: Options,
    *,
    strategy: str,
    cases: str,
    index: Mapping[str, Any] | None = None,
    uses: Mapping[str, Any] | None = None,
    label_free: bool = False,
    **others: Any,
) -> Variant:
    """Return a training with Client2Vec's index, at the paper's weights for its strategy."""
    spec = index_spec(others.get("data", "cifar10"), strategy, options, **(index or {}))
    weights = dict.fromkeys(("lambda_o", "lambda_d"), WEIGHTS[strategy]) if "iii" in cases.split("+") else {}
    return training(name, options, use=AtlasUse(spec, cases, {**weights, **(uses or {})}, label_free), **others)


def measure_all(variants: Sequence[Variant], options: Options) -> dict[str, list[Numbers]]:
    """Make the atlases that the variants use, then train the variants."""
    wanted: dict[str, Spec] = {}
    for variant in variants:
        if "index" in variant.settings and (options.only is None or re.search(options.only, variant.name)):
            spec = variant.settings["index"]
            wanted.setdefault(spec_name(spec), spec)
    make_atlases(wanted, options)
    return measure(variants, options)


def spec_name(spec: Spec) -> str:
    """Return a short name for an atlas that no other of these experiments has."""
    words = [spec["setting"], spec["source"], spec.get("strategy"), spec.get("epochs"), spec["encoder"]]
    own = [f"{key}={value}" for key, value in spec.get("settings", {}).items()]
    return " ".join(str(word) for word in [*words, *own] if word is not None)


def indexed(task: Task) -> Numbers:
    """Train a variant and return its figures."""
    settings, change, adjust = planned(task)
    return run_figures(train_sections(task, settings, change, adjust))


Change = Callable[[Federation], Federation]
Adjust = Callable[[Algorithm], Algorithm]


def planned(task: Task) -> tuple[Sections, Change | None, Adjust | None]:
    """Return a variant's sections, and what becomes of its federation and of its algorithm."""
    settings = dict(task.settings)
    spec, use = settings.pop("index", None), settings.pop("use", [])
    uses, unscaled = settings.pop("uses", {}), settings.pop("unscaled", False)
    label_free = settings.pop("label_free", False)
    change = without_scale if unscaled else None
    if spec is not None:
        file = atlas_file(spec, task.options)
        if label_free:
            free = file.with_name("label-free.safetensors")
            without_labels(Atlas.load(file), spec, task.options).save(free)
            file = free
        settings["atlas"] = {"file": str(file), "use": use, **uses}
    penalty = settings.pop("confidence_penalty", None)
    adjust = None if penalty is None else lambda base: base.with_terms(ConfidencePenalty(weight=penalty))
    return settings, change, adjust


@dataclass(frozen=True, kw_only=True)
class ConfidencePenalty(Term):
    """Rewards unsure answers: minus the entropy of the softmax (Pereyra et al. 2017). A control for Eq. 4's KL."""

    name: ClassVar[str] = "confidence_penalty"
    needs_classes: ClassVar[bool] = True
    weight: float = 1.0
    """Of the penalty."""

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        """Return the weight times the batch's mean of sum p log p."""
        logs = output.logits.log_softmax(1)
        return self.weight * (logs.exp() * logs).sum(1).mean()


def without_scale(federation: Federation) -> Federation:
    """Return a federation whose images are normalised as if pixels of 0 to 255 were in [0, 1], as FL-bench's are.

    The deviations stay ours, 0.25; FL-bench's are 0.20.
    """
    data = federation.data
    mean, std = ([value / 255 for value in values] for values in (data.mean, data.std))
    return replace(federation, data=replace(data, mean=tuple(mean), std=tuple(std)))


def without_labels(atlas: Atlas, spec: Spec, options: Options) -> Atlas:
    """Return an atlas whose feature half has no part that is linear in the clients' label shares."""
    federation = whole_federation(spec["data"], options)
    counts = torch.stack([federation.label_counts(i) for i in range(len(federation))]).double()
    shares = counts / counts.sum(1, keepdim=True)
    rows = atlas.halves["feature"].double()
    explained = shares @ torch.linalg.lstsq(shares, rows).solution
    # The mean says nothing of labels: what is left are the clients' differences around it.
    left = rows - explained + rows.mean(0)
    return replace(
        atlas,
        halves={**atlas.halves, "feature": left.float()},
        provenance={**atlas.provenance, "label_free": True},
    )
