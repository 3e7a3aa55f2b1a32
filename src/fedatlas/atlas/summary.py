"""What clients send so that an atlas knows its noise: means, counts and scatter of each class, in whitened directions.

Two steps, as over a network:

    sums     every client sends sums over its examples; only their total over all clients is used, and kept
    cells    the server sends the whitening, and every client sends a few numbers for each class (a cell)

W is the pooled within-class covariance: the sum of the clients' scatter matrices by the number of examples less the
number of cells. Its eigenvectors u and eigenvalues l give the whitened coordinates u'(x - centre) / sqrt(l + ridge),
with a ridge of 0.1 of the mean eigenvalue. The leading ``WIDTH`` are kept: verdicts are as good as with all 512 of the
built-in encoder, and a client sends a quarter of the numbers. At most half as many are kept as there are examples
less cells: the variance of more is not known, and means would seem far apart in them by chance.

Without labels all examples of a client are one cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.parts.disclosure import Axis, Disclosure, UpTo
from fedatlas.parts.types import Tensors
from fedatlas.seeds import repeatable

WIDTH = 128
RIDGE = 0.1
"""Of the mean eigenvalue: directions of less variance count for less than their signal to noise would say."""


class Sums(NamedTuple):
    """Sums over examples, which add up over clients."""

    counts: Tensor
    """int64 (classes,): examples."""
    sums: Tensor
    """float64 (classes, D): of the embeddings."""
    scatter: Tensor
    """float64 (D, D): of the outer products of the embeddings less their cell's mean."""
    cells: int
    """Classes that a client has, over all clients."""

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Sums:
        """Return the sums of one client that ``tensors`` gave."""
        counts = tensors["counts"]
        return cls(counts, tensors["sums"], tensors["scatter_matrix"].double(), int((counts > 0).sum()))

    def tensors(self) -> Tensors:
        """Return what one client sends; its scatter is a product in single precision, so nothing is lost."""
        return {"counts": self.counts, "sums": self.sums, "scatter_matrix": self.scatter.float()}

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both."""
        return Sums(
            self.counts + other.counts,
            self.sums + other.sums,
            self.scatter + other.scatter,
            self.cells + other.cells,
        )


def client_sums(examples: Tensor, labels: Tensor, num_classes: int) -> Sums:
    """Return the sums of one client: ``examples`` (n, D) and their labels."""
    counts = torch.bincount(labels, minlength=num_classes)
    rows = examples.double()
    sums = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, labels, rows)
    # The rows are centred, so that products in single precision lose nothing that matters and take half the time.
    centred = (rows - (sums / counts.clamp(min=1)[:, None])[labels]).float()
    return Sums(counts, sums, (centred.T @ centred).double(), int((counts > 0).sum()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening:
    """Directions in which the examples of a cell vary about alike, and the scale of each."""

    centre: Tensor
    """float64 (D,): the mean example."""
    basis: Tensor
    """float64 (D, d): whitened = (example - centre) @ basis."""
    spread: Tensor
    """float64 (d,): the pooled variance of each whitened direction, l / (l + ridge)."""
    span: Tensor
    """float64 (d, up to classes - 1): orthonormal; the directions in which the classes' means differ."""
    examples: Tensor
    """int64 (): how many examples the whitening was fitted to."""

    def tensors(self) -> Tensors:
        """Return all tensors by name, as the server sends them."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @property
    def inflation(self) -> float:
        """How much larger scatter is on examples that the whitening was not fitted to: 1 / (1 - tr A / N)."""
        return 1 / max(1 - float(self.spread.sum()) / int(self.examples), 0.1)


def fit_whitening(total: Sums) -> Whitening | None:
    """Return the whitening that the total of all clients' sums gives; None if no cell has two examples that differ."""
    freedom = int(total.counts.sum()) - total.cells
    values, vectors = torch.linalg.eigh(total.scatter / max(freedom, 1))
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    rank = min(int((values > 1e-9 * values[0]).sum()), freedom)
    if freedom < 1 or rank == 0:
        return None
    width = min(rank, WIDTH, most_directions(freedom))
    # The mean over directions that vary at all: entries that are always zero must not change anything.
    scale = values[:width] + RIDGE * values[:rank].mean()
    basis = _signed(vectors[:, :width]) / scale.sqrt()
    known = total.counts > 0
    centre = total.sums.sum(0) / total.counts.sum()
    means = (total.sums[known] / total.counts[known, None] - centre) @ basis
    return Whitening(
        centre=centre,
        basis=basis,
        spread=values[:width] / scale,
        span=_span(means),
        examples=total.counts.sum(),
    )


def most_directions(freedom: int) -> int:
    """Return how many directions so many examples less cells say something about."""
    return max(freedom // 2, 1)


def _signed(vectors: Tensor) -> Tensor:
    """Return eigenvectors with a positive largest entry: their sign is not determined otherwise."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return vectors * largest.sign()


def _span(means: Tensor) -> Tensor:
    """Return an orthonormal basis of the differences of class means, (d, up to classes - 1)."""
    if len(means) < 2:
        return means.new_zeros(means.shape[1], 0)
    _, values, rows = torch.linalg.svd(means - means.mean(0), full_matrices=False)
    rank = min(int((values > 1e-9 * values[0]).sum()), len(means) - 1)
    return _signed(rows[:rank].T).contiguous()


def client_cells(whitening: Whitening, examples: Tensor, labels: Tensor, num_classes: int) -> Tensors:
    """Return what one client sends about each of its classes, by the names of ``Summary``'s fields."""
    rows = (examples.double() - whitening.centre) @ whitening.basis
    counts = torch.bincount(labels, minlength=num_classes)
    inside = rows @ whitening.span
    found = {name: rows.new_zeros(num_classes) for name in SCALARS}
    means = rows.new_zeros(num_classes, rows.shape[1])
    for k in counts.nonzero().flatten().tolist():
        mine = labels == k
        means[k] = rows[mine].mean(0)
        centred = rows[mine] - means[k]
        norms = (inside[mine] - inside[mine].mean(0)).square().sum(1)
        found["scatter"][k] = centred.square().sum()
        found["squares"][k] = trace_of_square(centred)
        found["halves"][k] = halves_distance(centred)
        found["inside"][k] = norms.sum()
        found["inside_squares"][k] = norms.square().sum()
    return {"counts": counts, "means": means.float(), **found}


def trace_of_square(centred: Tensor) -> Tensor:
    """Return an estimate of tr A^2, the square of a cell's covariance A, from its examples less their mean; 0 below 3.

    With y the n centred rows, E (y_a . y_b)^2 = ((tr A)^2 + ((n - 1)^2 + 1) tr A^2) / n^2 for a != b and normal
    examples, and E (|y|^2 / (n - 1))^2 = (tr A)^2 + 2 tr A^2 / (n - 1). Other than the trace of the squared scatter
    matrix, it needs no fourth moment of the examples.
    """
    n = len(centred)
    if n < 3:
        return centred.new_zeros(())
    norms = centred.square().sum(1)
    product = centred @ centred.T if n <= centred.shape[1] else centred.T @ centred
    pairs = (product.square().sum() - norms.square().sum()) / (n * (n - 1))
    trace = norms.sum() / (n - 1)
    return (pairs - trace.square() / n**2) * n**2 / ((n - 1) ** 2 + 1 - 2 / (n - 1))


def halves_distance(rows: Tensor) -> Tensor:
    """Return the squared distance of the means of a cell's two halves, every other example in each; 0 for one alone."""
    if len(rows) < 2:
        return rows.new_zeros(())
    return (rows[::2].mean(0) - rows[1::2].mean(0)).square().sum()


SCALARS = ("scatter", "squares", "halves", "inside", "inside_squares")
CELLS = ("counts", "means", *SCALARS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """The cells of all clients: a few numbers about each class of each client."""

    whitening: Whitening
    labelled: bool
    """Whether cells are classes; otherwise every client has one cell, of all its examples."""
    counts: Tensor
    """int64 (clients, classes): examples."""
    means: Tensor
    """float32 (clients, classes, d): whitened; zeros for a class that a client lacks."""
    scatter: Tensor
    """float64 (clients, classes), as all that follow: the sum of squared distances to the mean."""
    squares: Tensor
    """An estimate of tr A^2, A being the covariance of the cell's whitened examples; 0 below three examples."""
    halves: Tensor
    """The squared distance between the means of every other example and of the rest."""
    inside: Tensor
    """The scatter in the directions of ``whitening.span`` alone."""
    inside_squares: Tensor
    """The sum over examples of the square of their part of ``inside``: what the variance of ``inside`` needs."""

    def __post_init__(self) -> None:
        shape = tuple(self.counts.shape)
        wanted = {"counts": (torch.int64, shape), "means": (torch.float32, (*shape, self.whitening.basis.shape[1]))}
        wanted |= dict.fromkeys(SCALARS, (torch.float64, shape))
        for name, (dtype, axes) in wanted.items():
            own = getattr(self, name)
            if own.dtype != dtype or tuple(own.shape) != axes or len(axes) < 2 or not bool(own.isfinite().all()):
                raise DataError(
                    f"{name!r} of an atlas's summary must be finite {dtype} {axes}, "
                    f"got {own.dtype} {tuple(own.shape)}.",
                    code="wrong-shape",
                    what=name,
                    got=tuple(own.shape),
                    wanted=axes,
                )

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def collect(cls, whitening: Whitening, labelled: bool, replies: Iterable[Tensors]) -> Summary:
        """Return the summary of clients that sent these cells, one reply a client."""
        rows = list(replies)
        return cls(
            whitening=whitening,
            labelled=labelled,
            **{name: torch.stack([row[name] for row in rows]) for name in CELLS},
        )

    def cells(self) -> Tensors:
        """Return the tensors with an axis of clients, by name."""
        return {name: getattr(self, name) for name in CELLS}

    def add(self, cells: Tensors | None) -> Summary:
        """Return the summary with one more client; one that sends nothing has no examples that it could be known by."""
        own = self.cells()
        new = {name: table.new_zeros(table.shape[1:]) for name, table in own.items()} if cells is None else cells
        for name, table in own.items():
            if name not in new or new[name].shape != table.shape[1:]:
                raise UsageError(
                    f"cells of a new client: {name!r} must have shape {tuple(table.shape[1:])}; "
                    "make them with client_cells and the summary's whitening.",
                    code="wrong-shape",
                    what=name,
                    wanted=tuple(table.shape[1:]),
                )
        return self._with({name: torch.cat([table, new[name].to(table)[None]]) for name, table in own.items()})

    def take(self, clients: Tensor) -> Summary:
        """Return the summary of some clients, by position."""
        return self._with({name: table[clients] for name, table in self.cells().items()})

    def _with(self, cells: Tensors) -> Summary:
        return Summary(whitening=self.whitening, labelled=self.labelled, **cells)

    def tensors(self) -> Tensors:
        """Return all tensors by name, to be written to a file."""
        fixed = {f"whitening/{name}": table for name, table in self.whitening.tensors().items()}
        return {**fixed, **self.cells()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], labelled: bool) -> Summary:
        """Return the summary that ``tensors`` gave."""
        wanted = [*(f"whitening/{own.name}" for own in fields(Whitening)), *CELLS]
        if missing := [name for name in wanted if name not in tensors]:
            raise DataError(f"the atlas's summary lacks {missing[0]!r}.", code="content-unfit", what=missing[0])
        whitening = Whitening(**{own.name: tensors[f"whitening/{own.name}"] for own in fields(Whitening)})
        return cls(whitening=whitening, labelled=labelled, **{name: tensors[name] for name in CELLS})


def summarise(federation: Federation, examples: Tensor, *, labelled: bool = True) -> Summary | None:
    """Return the summary of all clients' training examples; None if none of them says anything about noise.

    Held-out clients have cells, but no part in the whitening.

    Args:
        federation: the clients.
        examples: (N, D), an embedding for each example of its data.
        labelled: whether cells are classes; otherwise labels are not looked at.
    """
    labels, num_classes = _labels(federation, labelled)
    with repeatable(torch.device("cpu")):
        total: Sums | None = None
        for i in federation.training_ids:
            own = federation.clients[i].train.cpu()
            sums = client_sums(examples[own], labels[own], num_classes)
            total = sums if total is None else total.plus(sums)
        whitening = None if total is None else fit_whitening(total)
        if whitening is None:
            return None
        parts = (client.train.cpu() for client in federation)
        cells = (client_cells(whitening, examples[own], labels[own], num_classes) for own in parts)
        return Summary.collect(whitening, labelled, cells)


def sums_of_client(federation: Federation, examples: Tensor, *, labelled: bool) -> Sums:
    """Return the sums of a federation's only client."""
    labels, num_classes = _labels(federation, labelled)
    (client,) = federation.clients
    own = client.train.cpu()
    with repeatable(torch.device("cpu")):
        return client_sums(examples[own], labels[own], num_classes)


def cells_of_client(whitening: Whitening, federation: Federation, examples: Tensor, *, labelled: bool) -> Tensors:
    """Return the cells of a federation's only client, with a whitening that was fitted to others."""
    labels, num_classes = _labels(federation, labelled)
    (client,) = federation.clients
    own = client.train.cpu()
    with repeatable(torch.device("cpu")):
        return client_cells(whitening, examples[own], labels[own], num_classes)


def _labels(federation: Federation, labelled: bool) -> tuple[Tensor, int]:
    if not labelled:
        return torch.zeros(len(federation.data), dtype=torch.int64), 1
    return federation.data.labels.cpu(), federation.num_classes


def summary_disclosures(labelled: bool = True) -> list[Disclosure]:
    """Return what leaves a client for the summary.

    >>> len(summary_disclosures())
    9
    """
    of, axis = (" of each class", "classes") if labelled else ("", 1)
    once = "only the sum over all clients is kept"
    mixing = f"how widely its embeddings{of} scatter towards other classes, and how unevenly"
    rows: dict[str, tuple[str, tuple[Axis, ...], torch.dtype]] = {
        "counts": (f"the number of its examples{of}", (axis,), torch.int64),
        "sums": (f"the sum of its embeddings{of}; {once}", (axis, None), torch.float64),
        "scatter_matrix": (f"how its embeddings vary around the mean{of}; {once}", (None, None), torch.float32),
        "means": (f"the mean of its embeddings{of}, in up to {WIDTH} directions", (axis, UpTo(WIDTH)), torch.float32),
        "scatter": (f"how widely its embeddings{of} scatter", (axis,), torch.float64),
        "squares": (f"in how many directions its embeddings{of} scatter", (axis,), torch.float64),
        "halves": (f"how far two halves of its embeddings{of} are apart", (axis,), torch.float64),
        "inside": (mixing if labelled else "zeros, as there are no classes", (axis,), torch.float64),
        "inside_squares": (mixing if labelled else "zeros, as there are no classes", (axis,), torch.float64),
    }
    return [Disclosure(name, why, "atlas", axes, dtype) for name, (why, axes, dtype) in rows.items()]
