"""From a data set and a partition to a federation."""

import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.federation import Client, Federation, Origin, Shift
from fedatlas.data.loading.catalogue import is_named
from fedatlas.data.partitions.basic import ByDomain, Dirichlet, Iid, Indices, NaturalId, Partition, Share
from fedatlas.data.partitions.domain_imbalance import DomainImbalance
from fedatlas.data.partitions.registry import PARTITIONS
from fedatlas.errors import DataError, UsageError, expect, unknown_name
from fedatlas.seeds import numpy_generator

TESTS = ("all", "client", "domain")
HeldOut = int | float | str | Sequence[str]


def federate(
    data: Dataset,
    partition: Partition | None = None,
    *,
    test: str | None = None,
    test_fraction: float = 0.25,
    held_out: HeldOut = 0,
    leave_out: str | Sequence[str] = (),
    seed: int = 0,
) -> Federation:
    """Return the federation that a partition makes of a data set.

    Without a ``partition``, each owner of examples is a client; where there are no owners, domains are shared out among
    clients, or a Dirichlet draw over the labels makes up to ten (``usual_partition``).

    ``test`` chooses a client's test examples. ``"client"``: its own examples; a given test part (``is_test``) is mixed
    in, so clients train on most of it: all examples are partitioned together, and ``test_fraction`` of each client's
    are set apart. ``"domain"``: the given test part of its domain; only the training part is partitioned. ``"all"``:
    the whole given test part, and none of it is trained on. Data without a test part are split here for these two,
    ``test_fraction`` of each class of each domain. Without a ``partition`` and a ``test``, a test part of your
    data stays one (``"all"``); else ``"client"`` is the default.

    ``held_out`` clients, a number or a fraction, never train. They are drawn as evenly over the domains and types as
    can be, and each keeps one that trains. Or they are named: clients, or domains or types with all their clients.
    Those in ``leave_out``, named alike, take no part at all; the others have the examples that they have with them.

    The numbers of a table are scaled here, by the training examples of the clients that train.

        >>> from fedatlas.data import ByDomain, federate, load_dataset
        >>> federation = federate(load_dataset("digits"), ByDomain(clients_per_domain=4), held_out=5)
        >>> len(federation), len(federation.training_ids)
        (20, 15)
    """
    _check_data(data)
    own = not is_named(data.name)
    if test is None:
        test = usual_test(data, own=own) if partition is None else "client"
    partition = usual_partition(data, own=own) if partition is None else partition
    _check_partition(partition)
    _check_test(test, test_fraction)
    data, clients = _shared_out(data, partition, test, test_fraction, seed)
    if isinstance(partition, NaturalId) and data.domain is not None:
        _warn_mixed(data, clients)
    rule = _rule(partition)
    apart = _apart(held_out, leave_out)
    origin = Origin(data=data.name, rule=rule, seed=seed, test=test, test_fraction=test_fraction, held_out=apart)
    federation = Federation(
        data=data,
        clients=_set_apart(clients, held_out, leave_out, seed),
        partition=_line(origin),
        # The text of a custom object holds its address in memory, which changes each time.
        origin=replace(origin, rule=None) if " at 0x" in rule else origin,
    )
    return federation.prepare()


def _check_data(data: object) -> None:
    """Raise UsageError if an argument is not a data set."""
    expect(data, Dataset, "federate(data) must be a data set", "Write fedatlas.load_dataset(...) or from_arrays(...).")


def _check_partition(partition: object) -> None:
    """Raise UsageError if an argument is not a partition with its settings."""
    if isinstance(partition, type | str) or not hasattr(partition, "assign"):
        title = partition.__name__ if isinstance(partition, type) else "Dirichlet"
        title = PARTITIONS[partition].__name__ if isinstance(partition, str) and partition in PARTITIONS else title
        do = f"Write fedatlas.data.{title}(...), with its settings."
        expect(partition, (), "federate(partition) must be a partition", do)


def _check_test(test: str, test_fraction: float) -> None:
    if test not in TESTS:
        raise unknown_name("test", test, TESTS)
    if not 0 < test_fraction < 1:
        raise UsageError(
            f"test_fraction must be in (0, 1), got {test_fraction}.",
            code="out-of-range",
            got=test_fraction,
            setting="test_fraction",
        )


def _shared_out(
    data: Dataset, partition: Partition, test: str, test_fraction: float, seed: int
) -> tuple[Dataset, list[Client]]:
    """Return the clients with their training and test examples, and the data, which a partition may shift."""
    rng = numpy_generator(seed, "partition")
    if test == "client":
        shares = partition.assign(data, rng)
        clients = [_split_inside(share, test_fraction, seed, i) for i, share in enumerate(shares)]
    else:
        is_test = _test_split(data, test_fraction, seed)
        training = np.flatnonzero(~is_test)
        shares = [_moved(share, training) for share in partition.assign(_take(data, training), rng)]
        clients = [_tested_outside(data, share, is_test, test) for share in shares]
    clients = [replace(client, domain=client.domain or _only_domain(data, client)) for client in clients]
    if any(share.shift is not None for share in shares):
        return _shifted(data, clients, [share.shift for share in shares])
    return data, clients


def _set_apart(
    clients: list[Client], held_out: HeldOut, leave_out: str | Sequence[str], seed: int
) -> tuple[Client, ...]:
    """Return the clients without those that are left out, and with those that never train marked."""
    if leave_out:
        gone = _named(clients, [leave_out] if isinstance(leave_out, str) else leave_out, "leave_out")
        clients = [client for i, client in enumerate(clients) if i not in gone]
    if isinstance(held_out, int | float):
        chosen = _choose_held_out(clients, held_out, seed)
    else:
        chosen = _named(clients, [held_out] if isinstance(held_out, str) else held_out, "held_out")
    return tuple(replace(client, held_out=i in chosen) for i, client in enumerate(clients))


def _apart(held_out: HeldOut, leave_out: str | Sequence[str]) -> str:
    """Return in words which clients do not train, and which take no part."""
    held = f"{held_out:g}" if isinstance(held_out, int | float) else repr(held_out)
    return f"{held} (left out: {leave_out!r})" if leave_out else held


def _rule(partition: Partition) -> str:
    if not is_dataclass(partition):
        return repr(partition)
    settings = ((field.name, getattr(partition, field.name)) for field in fields(partition))
    given = ", ".join(f"{title}={value!r}" for title, value in settings if value is not None)
    return f"{type(partition).__name__}({given})"


def _line(origin: Origin) -> str:
    fraction = f"{origin.test_fraction:g} of each client's examples for test"
    aside = fraction if origin.test == "client" else f"test on {origin.test}"
    return f"{origin.rule}, {aside}, {origin.held_out} held out, seed {origin.seed}"


def _split_inside(share: Share, test_fraction: float, seed: int, place: int) -> Client:
    if share.test is not None:
        return _client(share, share.indices, share.test)
    order = numpy_generator(seed, "partition", "test", place).permutation(share.indices)
    # At least one on both sides; a single example trains.
    num_test = min(max(1, round(test_fraction * len(order))), max(0, len(order) - 1))
    return _client(share, order[num_test:], order[:num_test])


def _tested_outside(data: Dataset, share: Share, is_test: np.ndarray[Any, np.dtype[np.bool_]], test: str) -> Client:
    if test == "all":
        return _client(share, share.indices, np.flatnonzero(is_test))
    if data.domain is None:
        raise UsageError(
            f'test="domain" needs domains, and {data.name} has none. Use test="all" or test="client".',
            code="domains-missing",
            data=data.name,
        )
    domain = data.domain.cpu().numpy()
    own = np.unique(domain[share.indices])
    if len(own) != 1:
        names = ", ".join(data.domains[i] for i in own) or "none"
        raise UsageError(
            f'test="domain" needs clients of one domain each; {share.name} has examples of {names}. '
            'Use test="all" or test="client", or another partition.',
            code="partition-unfit",
            client=share.name,
        )
    return _client(share, share.indices, np.flatnonzero(is_test & (domain == own[0])))


def _client(share: Share, train: Indices, test: Indices) -> Client:
    if len(train) == 0:
        raise DataError(
            f"client {share.name} gets no training examples. Use fewer clients, or a partition with min_samples.",
            code="too-few-examples",
            client=share.name,
        )
    return Client(
        name=share.name,
        train=_sorted(train),
        test=_sorted(test),
        domain=share.domain,
        type=share.type,
        transform=share.transform,
    )


def _shifted(data: Dataset, clients: Sequence[Client], shifts: Sequence[Shift | None]) -> tuple[Dataset, list[Client]]:
    """Return the clients over data that hold an example once for each shift under which a client has it.

    Where no example is tested by clients of different shifts, that is once. Examples that no client has are left out.
    """
    order, moved, start = [], list(clients), 0
    ranges: dict[Shift | None, slice] = {}
    for shift in dict.fromkeys(shifts):
        own = [i for i, other in enumerate(shifts) if other == shift]
        held = torch.cat([part for i in own for part in (clients[i].train, clients[i].test)]).unique()
        for i in own:
            train, test = (start + torch.searchsorted(held, part) for part in (clients[i].train, clients[i].test))
            moved[i] = replace(clients[i], train=train, test=test)
        ranges[shift] = slice(start, start + len(held))
        order.append(held)
        start += len(held)
    found = data.take(torch.cat(order))
    inputs, labels = found.inputs, found.labels
    for shift, place in ranges.items():
        if shift is not None:
            inputs[place], labels[place] = shift(inputs[place], labels[place])
    return replace(found, inputs=inputs, labels=labels), moved


def usual_partition(data: Dataset, *, own: bool) -> Partition:
    """Return the plainest partition that fits the data.

    ``own`` data come from a user's file or arrays: nothing is known of them that would call for imbalance.
    """
    if data.owner is not None:
        return NaturalId()
    if data.domain is not None:
        return ByDomain() if own or not _fits(USUAL_IMBALANCE, data) else USUAL_IMBALANCE
    count = max(2, min(10, len(data) // 40))
    if not data.task.has_classes:
        return Iid(num_clients=count)
    return Dirichlet(num_clients=count, alpha=0.5, min_samples=4)


USUAL_IMBALANCE = DomainImbalance(factor=5)
"""The partition of named data with domains, where they have enough examples for it."""


def _fits(partition: Partition, data: Dataset) -> bool:
    """Return whether a partition finds examples enough for its clients."""
    try:
        partition.assign(data, numpy_generator(0, "partition"))
    except DataError:
        return False
    return True


def usual_test(data: Dataset, *, own: bool) -> str:
    """Return the examples that clients are tested on unless it is said: a test part in a user's data stays one."""
    kept = data.is_test is not None and bool(data.is_test.any())
    return "all" if kept and own else "client"


def _sorted(indices: Indices) -> Tensor:
    return torch.from_numpy(np.sort(indices).astype(np.int64))


def _test_split(data: Dataset, test_fraction: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the official test split, or one made by a draw inside each class of each domain."""
    if data.is_test is not None:
        official: np.ndarray[Any, np.dtype[np.bool_]] = data.is_test.cpu().numpy().astype(bool)
        if official.all() or not official.any():
            raise DataError(
                f"{data.name}: the official split has no {'training' if official.all() else 'test'} part. "
                'Add one, or use test="client", which mixes and splits each client\'s examples.',
                code="split-unfit",
                missing="training" if official.all() else "test",
            )
        return official
    group = data.task.strata(data.labels.cpu()).numpy()
    if data.domain is not None:
        group = group + len(data.classes) * data.domain.cpu().numpy()
    mixed = numpy_generator(seed, "partition", "split").permutation(len(group))
    order = mixed[np.argsort(group[mixed], kind="stable")]
    sizes = np.bincount(group)
    place = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
    is_test = np.zeros(len(group), bool)
    is_test[order] = place < np.round(test_fraction * np.repeat(sizes, sizes))
    return is_test


def _take(data: Dataset, indices: Indices) -> Dataset:
    """Return a data set of some of the examples; those that lie one after another share the memory."""
    kept = torch.from_numpy(indices)
    run = len(indices) > 0 and int(indices[-1] - indices[0]) == len(indices) - 1

    def part(values: Tensor) -> Tensor:
        return values[int(indices[0]) : int(indices[-1]) + 1] if run else values[kept.to(values.device)]

    return replace(
        data,
        inputs=part(data.inputs),
        labels=part(data.labels),
        domain=None if data.domain is None else part(data.domain),
        owner=None if data.owner is None else part(data.owner),
        is_test=None,
        table=None,
    )


def _moved(share: Share, indices: Indices) -> Share:
    """Return a share of the training part as a share of the whole; it is tested outside, whatever it set apart."""
    return replace(share, indices=indices[share.indices], test=None)


def _only_domain(data: Dataset, client: Client) -> str | None:
    if data.domain is None:
        return None
    own = np.unique(data.domain.cpu().numpy()[client.train.numpy()])
    return data.domains[int(own[0])] if len(own) == 1 else None


def _warn_mixed(data: Dataset, clients: list[Client]) -> None:
    """Warn of owners in several domains: they have no domain, and are missing in the results by domain."""
    mixed = [client.name for client in clients if client.domain is None]
    if mixed:
        warnings.warn(
            f"{data.name}: {len(mixed)} of {len(clients)} owners have examples of several domains and count for none, "
            f"so results by domain leave them out: {first_few(mixed)}.",
            stacklevel=3,
        )


def _named(clients: list[Client], names: Sequence[str], setting: str) -> set[int]:
    """Return the clients that are named, or whose domain or type is."""
    of_each = [{client.name, client.domain, client.type} - {None} for client in clients]
    known = {name for own in of_each for name in own if name is not None}
    for name in names:
        if name not in known:
            raise unknown_name(f"client, domain or type in {setting}", name, known)
    return {i for i, own in enumerate(of_each) if own & set(names)}


def _choose_held_out(clients: list[Client], held_out: int | float, seed: int) -> set[int]:
    """Return the positions of the clients that never train, taken from the domains and types in turn, one each."""
    count = held_out if isinstance(held_out, int) else round(held_out * len(clients))
    if held_out < 0 or (isinstance(held_out, float) and held_out >= 1):
        raise UsageError(
            f"held_out must be a number of clients or a fraction in [0, 1), got {held_out}.",
            code="held-out",
            got=held_out,
        )
    order = numpy_generator(seed, "partition", "held-out").permutation(len(clients)).tolist()
    alike: dict[tuple[str | None, str | None], list[int]] = {}
    for i in order:
        alike.setdefault((clients[i].domain, clients[i].type), []).append(i)
    free = [members[:-1] for members in alike.values()]
    turns = [members[turn] for turn in range(max(map(len, free))) for members in free if turn < len(members)]
    if count > len(turns):
        raise UsageError(
            f"held_out={held_out} of {len(clients)} clients is too many: at most {len(turns)} can be held out, as "
            "every domain and type keeps one that trains. Or name clients, domains or types.",
            code="held-out",
            got=held_out,
            most=len(turns),
        )
    return set(turns[:count])
