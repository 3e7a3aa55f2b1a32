"""Who holds which example: ways to cut a data set into clients."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.federation import Shift, Transform
from fedatlas.data.partitions.registry import partition
from fedatlas.data.task import class_labels
from fedatlas.errors import DataError, UsageError

Indices = NDArray[np.int64]
MAX_TRIES = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """One client's examples, as a partition hands them out."""

    name: str
    indices: Indices
    """Its examples; only those for training where ``test`` is given."""
    test: Indices | None = None
    """Its own test examples, where the partition sets them apart itself."""
    domain: str | None = None
    type: str | None = None
    """What makes its data differ, where the partition knows it."""
    transform: Transform | None = None
    """A lasting change of its images, in training and in test."""
    shift: Shift | None = None
    """A change of its examples, labels too, that ``federate`` makes in the data set, for training and for test."""


class Partition(Protocol):
    """A rule that gives every client its examples; all randomness must come from ``rng``."""

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        ...


@partition("iid")
@dataclass(frozen=True, kw_only=True)
class Iid:
    """Every client gets the same number of examples, drawn at random."""

    num_clients: int

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("iid", self.num_clients, data)
        return _unnamed(np.array_split(rng.permutation(len(data)), self.num_clients))


@partition("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Each class is divided among the clients by a Dirichlet draw: the smaller alpha, the fewer classes a client has.

    A client that holds its fair share (examples / clients) gets nothing of later classes, and the draw is repeated
    until every client has ``min_samples``: the procedure of FL-bench and of the FedPCE code.
    """

    num_clients: int
    alpha: float
    min_samples: int = 10

    def __post_init__(self) -> None:
        check_alpha("dirichlet", self.alpha)

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("dirichlet", self.num_clients, data, self.min_samples)
        by_class = _by_class(data)
        for _ in range(MAX_TRIES):
            counts = self._draw([len(members) for members in by_class], rng)
            if counts.sum(0).min() >= self.min_samples:
                break
        else:
            raise DataError(
                f"dirichlet: in {MAX_TRIES:,} draws some client always had fewer than {self.min_samples} examples "
                f"({len(data)} examples, {self.num_clients} clients, alpha={self.alpha}). "
                "Use a larger alpha, fewer clients or a smaller min_samples.",
                code="too-few-examples",
                wanted=self.min_samples,
            )
        return _unnamed(_deal(by_class, counts, rng))

    def _draw(self, class_sizes: Sequence[int], rng: np.random.Generator) -> Indices:
        """Return how many examples of each class each client gets, (classes, clients)."""
        fair = sum(class_sizes) / self.num_clients
        held = np.zeros(self.num_clients, np.int64)
        counts = np.zeros((len(class_sizes), self.num_clients), np.int64)
        for label, size in enumerate(class_sizes):
            # Drawing over the open clients only is the same law as zeroing the others' shares and dividing by the sum.
            open_clients = np.flatnonzero(held < fair)
            if size == 0 or len(open_clients) == 0:
                continue
            shares = rng.dirichlet(np.full(len(open_clients), self.alpha))
            ends = np.round(shares.cumsum() * size).astype(np.int64)
            ends[-1] = size
            counts[label, open_clients] = np.diff(ends, prepend=0)
            held += counts[label]
        return counts


@partition("pathological")
@dataclass(frozen=True, kw_only=True)
class Pathological:
    """Every client has ``classes_per_client`` classes, and a class is divided equally among those who have it.

    The classes are drawn at random, as FL-bench does; then, while no client holds some class, it takes the place of one
    that several clients hold.
    """

    num_clients: int
    classes_per_client: int = 2

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("pathological", self.num_clients, data)
        by_class = _by_class(data)
        present = np.flatnonzero([len(members) for members in by_class])
        if not 1 <= self.classes_per_client <= len(present):
            raise UsageError(
                f"pathological: classes_per_client must be in [1, {len(present)}], the classes that {data.name} has; "
                f"got {self.classes_per_client}.",
                code="out-of-range",
                got=self.classes_per_client,
                setting="classes_per_client",
                most=len(present),
            )
        holds = np.zeros((len(by_class), self.num_clients), bool)
        for client in range(self.num_clients):
            holds[rng.choice(present, self.classes_per_client, replace=False), client] = True
        for label in rng.permutation(present[~holds[present].any(1)]):
            common = np.flatnonzero(holds.sum(1) > 1)
            if len(common) == 0:
                break
            given = rng.choice(common)
            client = rng.choice(np.flatnonzero(holds[given]))
            holds[given, client], holds[label, client] = False, True
        counts = np.zeros(holds.shape, np.int64)
        for label, members in enumerate(by_class):
            holders = rng.permutation(np.flatnonzero(holds[label]))
            if len(holders):
                counts[label, holders] = [len(part) for part in np.array_split(members, len(holders))]
        return _unnamed(_deal(by_class, counts, rng))


@partition("shard")
@dataclass(frozen=True, kw_only=True)
class Shard:
    """Examples sorted by class are cut into equal shards, and every client is dealt a few of them."""

    num_clients: int
    shards_per_client: int = 2

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        if self.shards_per_client < 1:
            raise UsageError(
                f"shard: shards_per_client must be at least 1, got {self.shards_per_client}.",
                code="out-of-range",
                got=self.shards_per_client,
                setting="shards_per_client",
            )
        check_num_clients("shard", self.num_clients, data, self.shards_per_client)
        in_order = np.concatenate([rng.permutation(members) for members in _by_class(data)])
        shards = np.array_split(in_order, self.num_clients * self.shards_per_client)
        dealt = rng.permutation(len(shards)).reshape(self.num_clients, self.shards_per_client)
        return _unnamed([np.concatenate([shards[i] for i in hand]) for hand in dealt])


@partition("quantity")
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Clients have the same mix of classes but different numbers of examples, drawn from a Dirichlet."""

    num_clients: int
    alpha: float = 1.0
    min_samples: int = 10

    def __post_init__(self) -> None:
        check_alpha("quantity", self.alpha)

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("quantity", self.num_clients, data, self.min_samples)
        for _ in range(MAX_TRIES):
            weights = rng.dirichlet(np.full(self.num_clients, self.alpha))
            if int(weights.min() * len(data)) >= self.min_samples:
                return _by_weight("quantity", data, weights, rng)
        raise DataError(
            f"quantity: in {MAX_TRIES:,} draws some client always had fewer than {self.min_samples} of {len(data)} "
            f"examples (alpha={self.alpha}). Use a larger alpha, fewer clients or a smaller min_samples.",
            code="too-few-examples",
            wanted=self.min_samples,
        )


@partition("linear")
@dataclass(frozen=True, kw_only=True)
class Linear:
    """Client i has a number of examples proportional to i + 1, drawn at random."""

    num_clients: int

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("linear", self.num_clients, data)
        return _by_weight("linear", data, np.arange(1.0, self.num_clients + 1), rng)


@partition("square")
@dataclass(frozen=True, kw_only=True)
class Square:
    """Client i has a number of examples proportional to (i + 1) squared, drawn at random."""

    num_clients: int

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("square", self.num_clients, data)
        return _by_weight("square", data, np.arange(1.0, self.num_clients + 1) ** 2, rng)


@partition("exponential")
@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Client i has a number of examples proportional to exp(i), drawn at random."""

    num_clients: int

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        check_num_clients("exponential", self.num_clients, data)
        return _by_weight("exponential", data, np.exp(np.arange(self.num_clients) - self.num_clients + 1.0), rng)


@partition("by-domain")
@dataclass(frozen=True, kw_only=True)
class ByDomain:
    """Every domain has the same number of clients, and its examples are divided equally among them."""

    clients_per_domain: int = 1

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        if self.clients_per_domain < 1:
            raise UsageError(
                f"by-domain: clients_per_domain must be at least 1, got {self.clients_per_domain}.",
                code="out-of-range",
                got=self.clients_per_domain,
                setting="clients_per_domain",
            )
        shares = []
        for domain, members in examples_by_domain("by-domain", data).items():
            if len(members) < self.clients_per_domain:
                raise UsageError(
                    f"by-domain: domain {domain} has {len(members)} examples for {self.clients_per_domain} clients. "
                    "Use fewer clients_per_domain.",
                    code="too-few-examples",
                    domain=domain,
                    got=len(members),
                    clients=self.clients_per_domain,
                )
            parts = np.array_split(rng.permutation(members), self.clients_per_domain)
            names = numbered(domain, len(parts))
            shares += [Share(name=n, indices=part, domain=domain) for n, part in zip(names, parts, strict=True)]
        return shares


@partition("natural-id")
@dataclass(frozen=True, kw_only=True)
class NaturalId:
    """Every owner in the data (a writer, a speaker, a hospital) is a client, if it has ``min_samples`` examples."""

    min_samples: int = 2
    num_clients: int | None = None
    """Draw this many of the owners; None takes all."""

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client."""
        if data.owner is None:
            raise UsageError(
                f"natural-id: {data.name} does not say who owns its examples. Use another partition.",
                code="owners-missing",
                data=data.name,
            )
        owner = data.owner.cpu().numpy()
        held = np.bincount(owner, minlength=len(data.owners))
        kept = np.flatnonzero(held >= max(1, self.min_samples))
        if len(kept) == 0 or (self.num_clients is not None and not 1 <= self.num_clients <= len(kept)):
            asked = "" if self.num_clients is None else f", and {self.num_clients} were asked for"
            raise UsageError(
                f"natural-id: {len(kept)} of {len(held)} owners in {data.name} have {self.min_samples} examples or "
                f"more{asked}. Name another column as the client (--set data.client=NAME), or use less of either.",
                code="too-few-examples",
                got=len(kept),
                clients=self.num_clients,
            )
        # Whoever sets another least number knows that it leaves some out.
        short = [data.owners[i] for i in np.flatnonzero((held > 0) & (held < self.min_samples))]
        if short and self.min_samples == NaturalId.min_samples:
            warnings.warn(
                f"natural-id: {len(short)} of {len(held)} owners in {data.name} have fewer than {self.min_samples} "
                f"examples and are left out: {first_few(short)}. Set min_samples=1 to keep them.",
                stacklevel=3,
            )
        if self.num_clients is not None:
            kept = np.sort(rng.choice(kept, self.num_clients, replace=False))
        order = np.argsort(owner, kind="stable")
        ends = held.cumsum()
        return [Share(name=data.owners[i], indices=order[ends[i] - held[i] : ends[i]]) for i in kept]


def check_num_clients(title: str, num_clients: int, data: Dataset, least: int = 1) -> None:
    """Raise UsageError if the data is too small for this number of clients."""
    if num_clients < 1:
        raise UsageError(
            f"{title}: num_clients must be at least 1, got {num_clients}.",
            code="out-of-range",
            got=num_clients,
            setting="num_clients",
        )
    if num_clients * max(1, least) > len(data):
        raise UsageError(
            f"{title}: {data.name} has {len(data)} examples, too few for {num_clients} clients with "
            f"{max(1, least)} each. Use fewer clients.",
            code="too-few-examples",
            got=len(data),
            clients=num_clients,
        )


def check_alpha(title: str, alpha: float) -> None:
    """Raise UsageError if a Dirichlet parameter is not above 0."""
    if not 0 < alpha < float("inf"):
        raise UsageError(
            f"{title}: alpha must be above 0 and finite, got {alpha}.", code="out-of-range", got=alpha, setting="alpha"
        )


def examples_by_domain(title: str, data: Dataset) -> dict[str, Indices]:
    """Return the examples of each domain that has any, in the data set's order."""
    if data.domain is None:
        raise UsageError(
            f"{title}: {data.name} has no domains. Use another partition, e.g. dirichlet.",
            code="domains-missing",
            data=data.name,
        )
    domain = data.domain.cpu().numpy()
    members = {name: np.flatnonzero(domain == i) for i, name in enumerate(data.domains)}
    return {name: found for name, found in members.items() if len(found)}


def numbered(prefix: str, count: int, width: int = 1) -> list[str]:
    """Return ``prefix-0``, ``prefix-1``, ..., padded with zeros to one width."""
    width = max(width, len(str(count - 1)))
    return [f"{prefix}-{i:0{width}d}" for i in range(count)]


def _unnamed(parts: Sequence[Indices]) -> list[Share]:
    names = numbered("client", len(parts), width=2)
    return [Share(name=name, indices=part) for name, part in zip(names, parts, strict=True)]


def _by_class(data: Dataset) -> list[Indices]:
    labels = class_labels(data.task, data.labels, f"a partition by labels of {data.name}")
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.bincount(labels, minlength=len(data.classes)).cumsum()[:-1])


def _deal(by_class: Sequence[Indices], counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Return each client's examples when it gets ``counts[label, client]`` of each class, at random."""
    cut = [np.split(rng.permutation(members), row.cumsum()[:-1]) for members, row in zip(by_class, counts, strict=True)]
    # Where no client holds a class, its examples are left over behind the last cut.
    return [
        np.concatenate([parts[client][: counts[label, client]] for label, parts in enumerate(cut)])
        for client in range(counts.shape[1])
    ]


def _by_weight(title: str, data: Dataset, weights: NDArray[np.float64], rng: np.random.Generator) -> list[Share]:
    sizes = (weights / weights.sum() * len(data)).astype(np.int64)
    sizes[weights.argmax()] += len(data) - sizes.sum()
    if sizes.min() < 1:
        raise UsageError(
            f"{title}: the smallest of {len(sizes)} clients would get none of {len(data)} examples. Use fewer clients.",
            code="too-few-examples",
            got=len(data),
            clients=len(sizes),
        )
    return _unnamed(np.split(rng.permutation(len(data)), sizes.cumsum()[:-1]))
