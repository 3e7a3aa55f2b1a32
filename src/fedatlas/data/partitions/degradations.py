"""FedPCE's clients: a third with noisy images, a third with shifted colours, a third with unequal classes.

With 6M clients there are 2M of each kind; the data set is divided equally at random into the three parts.

noise      client i adds N(0, s_i), fresh each time and in tests always the same; the variances s_i are equally spaced
           from 0.005 to 1
jitter     brightness, contrast and saturation are equally spaced in [0.5, 1.5], hue in [-0.5, 0.5]; four random
           permutations hand them out; a client's factors last, their order is drawn again for each image
imbalance  M subsets of equal size, each divided between two clients by a Dirichlet draw for each class; the M values
           of alpha are spaced by equal factors from 0.1 to 10
"""

from dataclasses import dataclass

import numpy as np
import torch

from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Transform
from fedatlas.data.partitions.basic import Dirichlet, Share, check_num_clients, numbered
from fedatlas.data.partitions.registry import partition
from fedatlas.data.transforms import ColorShift, GaussianNoise
from fedatlas.errors import UsageError

NOISE, JITTER, IMBALANCE = "noise", "jitter", "imbalance"


def paper_degradations(num_clients: int, rng: np.random.Generator) -> list[Transform | None]:
    """Return the lasting change of each client's images: noise, then colours, then none for unequal classes.

    >>> changes = paper_degradations(12, np.random.default_rng(0))
    >>> changes[0], changes[3], changes[-1]
    (GaussianNoise(variance=0.005), GaussianNoise(variance=1.0), None)
    """
    count = _clients_of_a_kind(num_clients)
    noise = [GaussianNoise(variance=float(variance)) for variance in np.linspace(0.005, 1, count)]
    ranges = ((0.5, 1.5), (0.5, 1.5), (0.5, 1.5), (-0.5, 0.5))
    factors = zip(*(rng.permutation(np.linspace(low, high, count)).tolist() for low, high in ranges), strict=True)
    jitter = [ColorShift(brightness=b, contrast=c, saturation=s, hue=h) for b, c, s, h in factors]
    return [*noise, *jitter, *[None] * count]


def imbalance_alphas(num_clients: int = 30) -> list[float]:
    """Return alpha of each client with unequal classes; the smaller, the more unequal. Two clients share one.

    >>> [round(alpha, 3) for alpha in imbalance_alphas(18)]
    [0.1, 0.1, 1.0, 1.0, 10.0, 10.0]
    """
    pairs = _clients_of_a_kind(num_clients) // 2
    return [float(alpha) for alpha in np.geomspace(0.1, 10, pairs) for _ in range(2)]


@partition("degraded")
@dataclass(frozen=True, kw_only=True)
class Degraded:
    """FedPCE's clients: a third have noisy images, a third other colours, a third unequal classes.

    The paper tests on a fifth of each client's examples, and holds out a fifth of the clients:

        >>> from fedatlas.data import federate, load_dataset
        >>> data = load_dataset("digits")
        >>> federation = federate(data, Degraded(num_clients=12), held_out=3).fold(0, 5)
        >>> [(c.name, c.transform) for c in federation.clients[:2]]
        [('noise-00', GaussianNoise(variance=0.005)), ('noise-01', GaussianNoise(variance=0.33666666666666667))]
    """

    num_clients: int = 30
    min_samples: int = 10
    """The least number of examples of a client with unequal classes."""

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client; its domain is the kind of its degradation."""
        count = _clients_of_a_kind(self.num_clients)
        if data.kind != "image" or data.inputs.shape[1] != 3:
            form = f"{data.kind} of shape {tuple(data.inputs.shape[1:])}"
            raise UsageError(
                f"degraded: needs colour images (3, height, width), and {data.name} holds {form}.",
                code="kind-mismatch",
                data=data.name,
                got=form,
            )
        check_num_clients("degraded", self.num_clients, data, self.min_samples)
        noise, jitter, imbalance = np.array_split(rng.permutation(len(data)), 3)
        parts = {NOISE: np.array_split(noise, count), JITTER: np.array_split(jitter, count), IMBALANCE: []}
        alphas = imbalance_alphas(self.num_clients)[::2]
        for subset, alpha in zip(np.array_split(imbalance, count // 2), alphas, strict=True):
            pair = Dirichlet(num_clients=2, alpha=alpha, min_samples=self.min_samples)
            parts[IMBALANCE] += [subset[share.indices] for share in pair.assign(_labels_only(data, subset), rng)]
        named = [
            (name, indices, kind)
            for kind, members in parts.items()
            for name, indices in zip(numbered(kind, count, width=2), members, strict=True)
        ]
        return [
            Share(name=name, indices=indices, domain=kind, transform=change)
            for (name, indices, kind), change in zip(named, paper_degradations(self.num_clients, rng), strict=True)
        ]


def _clients_of_a_kind(num_clients: int) -> int:
    if num_clients < 6 or num_clients % 6:
        raise UsageError(
            "degraded: num_clients must be a multiple of 6, as there are three kinds of clients, of which one goes in "
            f"pairs; got {num_clients}. The paper has 12, 30, 60 or 90.",
            code="out-of-range",
            got=num_clients,
            setting="num_clients",
        )
    return num_clients // 3


def _labels_only(data: Dataset, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Dataset:
    """Return some examples without their images, which a draw by class does not look at."""
    labels = data.labels.cpu()[torch.from_numpy(indices)]
    return Dataset(name=data.name, inputs=torch.zeros(len(labels), 1), labels=labels, classes=data.classes)
