"""PACFL's client subspaces as an atlas: how far the leading directions of two clients' data are turned apart.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient Distribution Similarity Identification in Clustered
Federated Learning via Principal Angles Between Client Data Subspaces", AAAI 2023, section 3.

Each client sends U, the p leading left singular vectors of its data (an example a column). The paper compares two
clients by the smallest principal angle between the spans of U_i and U_j, or by the sum of the angles. An atlas compares
by the cosine of two vectors, so a client's vector is its projection U U' as a row, whose inner products are

    <U_i U_i', U_j U_j'> = tr(U_i U_i' U_j U_j') = the sum over the p principal angles of cos^2.

The cosine is then the mean of cos^2 of the angles: 1 for the same span, 0 for orthogonal ones. Departures: the mean of
cos^2 stands for the angles; the data are embeddings and not pixels; they are first mapped to ``WIDTH`` entries by a
fixed random map, so that a projection stays small; one subspace is taken from all of a client's examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.projection import to_width
from fedatlas.atlas.registry import source
from fedatlas.atlas.sources import FEATURE, atlas_of_rows, checked_examples
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.seeds import repeatable

WIDTH = 64


@source("principal-angles", discloses="the few directions in which its embeddings are longest, as a projection")
def principal_angles(federation: Federation, embeddings: Embeddings, *, directions: int = 3) -> Atlas:
    """The subspace of a client's examples (PACFL), as half ``feature``; cosine = mean cos^2 of the principal angles.

    Args:
        federation: the clients.
        embeddings: one vector per example.
        directions: p, of each client; one with fewer examples has as many as it has examples.
    """
    if not 1 <= directions <= WIDTH:
        raise UsageError(
            f"principal_angles(directions) must be in [1, {WIDTH}], got {directions}.",
            code="out-of-range",
            got=directions,
            setting="directions",
        )
    examples = checked_examples(federation, embeddings)

    def row(own: Tensor, labels: Tensor) -> Tensor:
        return projection_row(leading_directions(narrowed(examples[own]), directions))

    provenance = {"source": "principal_angles", "encoder": embeddings.encoder, "directions": directions}
    with repeatable(torch.device("cpu")):
        width = narrowed(examples[:1]).shape[1]
        return atlas_of_rows(federation, FEATURE, width * (width + 1) // 2, row, provenance)


def narrowed(rows: Tensor) -> Tensor:
    """Return embeddings in ``WIDTH`` entries, or as they are if they have no more."""
    return rows if rows.shape[1] <= WIDTH else to_width(rows, "principal angles", WIDTH)


def leading_directions(rows: Tensor, count: int) -> Tensor:
    """Return (width, up to count): the leading left singular vectors of the data, an example a column; orthonormal."""
    values, vectors = torch.linalg.eigh(rows.double().T @ rows.double())
    kept = values.flip(0)[:count] > 1e-12 * values[-1]
    leading: Tensor = vectors.flip(1)[:, :count][:, kept]
    return leading


def projection_row(basis: Tensor) -> Tensor:
    """Return the projection U U' as one row: the diagonal, and the entries above it times sqrt 2.

    The inner product of two rows is that of the two matrices.
    """
    projection = basis @ basis.T
    above = torch.ones_like(projection, dtype=torch.bool).triu(1)
    return torch.cat([projection.diagonal(), 2**0.5 * projection[above]]).float()
