"""Domains with unequal numbers of clients and clients with unequal numbers of examples: the setting of FedGCR.

The domains stand in an order. The one of rank i = 0, 1, ..., T - 1 has round(r^(T - 1 - i)) clients, r about
factor^(1 / (T - 1)), so the first has about ``factor`` times as many as the last. The first may use ``quota`` training
examples, each further one r times fewer; of these a ``fraction`` is dealt out, and inside a domain each client gets r
times as many as the one before. Factor 1 is two clients a domain, with one and three quarters of its examples.

``preset`` gives the paper's numbers, client by client, for its three data sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedatlas.data.dataset import Dataset
from fedatlas.data.partitions.basic import Share, examples_by_domain, numbered
from fedatlas.data.partitions.registry import partition
from fedatlas.errors import DataError, UsageError, unknown_name

RATIOS = MappingProxyType(
    {(5, 5): 1.5, (10, 5): 1.8, (5, 6): 1.4, (10, 6): 1.6, (5, 4): 1.7, (10, 4): 2.16},
)
"""The paper's r for (factor, number of domains)."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The paper's numbers for one data set."""

    order: tuple[str, ...]
    other_order: tuple[str, ...]
    """The order of the paper's Table 7."""
    quota: int
    fraction: float
    fraction_at_one: float
    """The fraction at factor 1."""
    spread: bool = False
    """Inside a domain the last client gets ``factor`` times as many as the first (PACS)."""


PRESETS = MappingProxyType(
    {
        "digit-five": Preset(
            order=("mnist", "usps", "generated", "mnistm", "svhn"),
            other_order=("usps", "mnist", "generated", "svhn", "mnistm"),
            quota=3719,
            fraction=0.8,
            fraction_at_one=0.4,
        ),
        "domainnet": Preset(
            order=("clipart", "real", "painting", "sketch", "quickdraw", "infograph"),
            other_order=("real", "clipart", "painting", "sketch", "infograph", "quickdraw"),
            quota=2103,
            fraction=0.6,
            fraction_at_one=0.3,
        ),
        "pacs": Preset(
            order=("photo", "art_painting", "cartoon", "sketch"),
            other_order=("art_painting", "photo", "sketch", "cartoon"),
            quota=1000,
            fraction=0.6,
            fraction_at_one=0.6,
            spread=True,
        ),
    }
)


@partition("domain-imbalance")
@dataclass(frozen=True, kw_only=True)
class DomainImbalance:
    """The first domain has about ``factor`` times as many clients as the last, and client sizes grow geometrically.

        >>> DomainImbalance(factor=5, preset="pacs").sizes(4)
        [[45, 68, 102, 153, 229], [42, 95, 213], [34, 172], [121]]

    The sizes are numbers of training examples, so it is used with ``federate(..., test="domain")``. What is not given
    comes from ``preset``, and without one: the data set's order, the smallest domain's number of examples as quota, a
    fraction of 0.8.
    """

    factor: float = 10
    order: Sequence[str] | None = None
    """The domains, most clients first; ``"other"`` with a preset is the paper's second order (Table 7)."""
    quota: int | None = None
    """How many training examples the first domain may use."""
    fraction: float | None = None
    """How much of its quota a domain deals out."""
    ratio: float | None = None
    """r; by default the paper's for this factor and number of domains, else factor^(1 / (T - 1)) to two digits."""
    preset: str | None = None
    spread: bool | None = None
    """Let the last client of a domain have ``factor`` times as many examples as its first, however many there are."""

    def __post_init__(self) -> None:
        if not 1 <= self.factor < float("inf"):
            raise UsageError(
                f"domain-imbalance: factor must be at least 1, got {self.factor}.",
                code="out-of-range",
                got=self.factor,
                setting="factor",
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise unknown_name("preset", self.preset, PRESETS)
        if self.order == "other" and self.preset is None:
            raise UsageError(
                'domain-imbalance: order="other" needs a preset; without one, list the domains.',
                code="missing-option",
                option="preset",
            )
        if isinstance(self.order, str) and self.order != "other":
            raise UsageError(
                f"domain-imbalance: order must be a list of domains, got {self.order!r}.",
                code="wrong-type",
                got=self.order,
                setting="order",
            )
        if self.ratio is not None and not 1 <= self.ratio < float("inf"):
            raise UsageError(
                f"domain-imbalance: ratio must be at least 1, got {self.ratio}.",
                code="out-of-range",
                got=self.ratio,
                setting="ratio",
            )
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UsageError(
                f"domain-imbalance: fraction must be in (0, 1], got {self.fraction}.",
                code="out-of-range",
                got=self.fraction,
                setting="fraction",
            )
        if self.quota is not None and self.quota < 1:
            raise UsageError(
                f"domain-imbalance: quota must be at least 1, got {self.quota}.",
                code="out-of-range",
                got=self.quota,
                setting="quota",
            )

    def sizes(self, num_domains: int, quota: int | None = None) -> list[list[int]]:
        """Return every client's number of examples, a list for each domain; ``quota`` where none is set."""
        preset = None if self.preset is None else PRESETS[self.preset]
        left = self.quota or (preset.quota if preset else quota)
        if left is None:
            raise UsageError("domain-imbalance: sizes need a quota or a preset.", code="missing-option", option="quota")
        fraction = self.fraction
        if fraction is None and preset is not None:
            fraction = preset.fraction_at_one if self.factor == 1 else preset.fraction
        spread = self.spread if self.spread is not None else preset is not None and preset.spread
        ratio = self._ratio(num_domains)
        sizes = []
        for rank in range(num_domains):
            num_clients = 2 if self.factor == 1 else round(ratio ** (num_domains - 1 - rank))
            growth = self._growth(num_clients, ratio, spread)
            # The authors round down three times: the quota, the part of it that is dealt out, each client's size.
            dealt = int((0.8 if fraction is None else fraction) * left)
            weights = [growth**j for j in range(num_clients)]
            sizes.append([int(dealt * weight / sum(weights)) for weight in weights])
            left = int(left / ratio)
        return sizes

    def _ratio(self, num_domains: int) -> float:
        if self.ratio is not None:
            return self.ratio
        if self.factor == 1 or num_domains == 1:
            return 1.0
        known = RATIOS.get((int(self.factor), num_domains)) if self.factor == int(self.factor) else None
        return known or round(self.factor ** (1 / (num_domains - 1)), 2)

    def _growth(self, num_clients: int, ratio: float, spread: bool) -> float:
        if self.factor == 1:
            return 3.0
        if spread:
            return float(self.factor ** (1 / max(1, num_clients - 1)))
        return ratio

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        members = examples_by_domain("domain-imbalance", data)
        order = self._order(tuple(members))
        sizes = self.sizes(len(order), quota=min(len(found) for found in members.values()))
        shares = []
        for domain, wanted in zip(order, sizes, strict=True):
            names = numbered(domain, len(wanted))
            if min(wanted) < 2:
                raise DataError(
                    f"domain-imbalance: client {names[wanted.index(min(wanted))]} would get {min(wanted)} examples "
                    f"(sizes {wanted}). Lower the factor, give a larger quota= or more data, or use the partition "
                    "by-domain (in a config, data.partition=by-domain).",
                    code="too-few-examples",
                    client=names[wanted.index(min(wanted))],
                    got=min(wanted),
                )
            if sum(wanted) > len(members[domain]):
                raise DataError(
                    f"domain-imbalance: {domain} needs {sum(wanted)} examples and has {len(members[domain])}. "
                    "Use a smaller quota= or fraction=, or put a larger domain first with order=.",
                    code="too-few-examples",
                    domain=domain,
                    got=len(members[domain]),
                    wanted=sum(wanted),
                )
            drawn = rng.permutation(members[domain])[: sum(wanted)]
            parts = np.split(drawn, np.cumsum(wanted)[:-1])
            shares += [Share(name=n, indices=part, domain=domain) for n, part in zip(names, parts, strict=True)]
        return shares

    def _order(self, domains: tuple[str, ...]) -> tuple[str, ...]:
        preset = None if self.preset is None else PRESETS[self.preset]
        if preset is not None and self.order in (None, "other"):
            order = preset.order if self.order is None else preset.other_order
        else:
            order = domains if self.order is None else tuple(self.order)
        if sorted(order) != sorted(domains):
            raise UsageError(
                f"domain-imbalance: the order must name every domain once; the data has {', '.join(domains)}, "
                f"the order is {', '.join(order)}.",
                code="names-unfit",
                setting="order",
                got=order,
                known=domains,
            )
        return order
