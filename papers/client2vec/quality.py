"""What an atlas tells of its clients: their domains, their labels, and how much of the labels is in the features."""

from __future__ import annotations

import torch
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedatlas.atlas import Atlas
from fedatlas.data import Federation
from papers.tables import Numbers


def quality(atlas: Atlas, federation: Federation) -> Numbers:
    """Return, for each half, how well k-means finds the domains and how well cosines follow the label histograms.

    ``ari``            adjusted Rand index of k-means into as many groups as there are domains
    ``same, other``    mean cosine of two clients of the same domain, of different domains
    ``label_rank``     Spearman's rank correlation, over all pairs of clients, of their cosine with the cosine of their
                       label histograms
    ``neighbours``     how many of a client's five nearest are among its five nearest by label histogram, as a share
    """
    histograms = torch.stack([federation.label_counts(i) for i in range(len(federation))])
    apart = torch.triu(torch.ones(len(atlas), len(atlas), dtype=torch.bool), diagonal=1)
    by_labels = _cosines(histograms)
    histogram_cosines = by_labels[apart]
    numbers: Numbers = {}
    for half in atlas.halves:
        cosines = atlas.similarity(half)
        if float(histogram_cosines.std()) > 0:
            numbers[f"{half}_label_rank"] = float(spearmanr(cosines[apart], histogram_cosines).statistic)
            numbers[f"{half}_neighbours"] = _shared_neighbours(cosines, by_labels)
        names = [str(domain) for domain in atlas.domains]
        if len(set(names)) > 1:
            groups = atlas.groups(len(set(names)), half=half)
            same = torch.tensor([[one == other for other in names] for one in names])
            numbers[f"{half}_ari"] = float(adjusted_rand_score(names, groups.tolist()))
            numbers[f"{half}_same"] = float(cosines[same & apart].mean())
            numbers[f"{half}_other"] = float(cosines[~same & apart].mean())
    return numbers


def sample_quality(features: Tensor, examples: Tensor, labels: Tensor) -> Numbers:
    """Return how often the nearest class mean tells the label, from u and from D; every second example is left out.

    The means are of the even examples, the test is on the odd ones; ``chance`` is the share of the largest class.
    """
    largest = float(torch.bincount(labels[1::2]).max()) / len(labels[1::2])
    return {"u_label": _nearest(features, labels), "d_label": _nearest(examples, labels), "chance": largest}


def _nearest(vectors: Tensor, labels: Tensor) -> float:
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    present = labels[::2].unique()
    means = torch.stack([unit[::2][labels[::2] == label].mean(0) for label in present])
    centred = means - means.mean(0)
    found = present[((unit[1::2] - means.mean(0)) @ torch.nn.functional.normalize(centred, dim=1).T).argmax(1)]
    return float((found == labels[1::2]).double().mean())


def _shared_neighbours(one: Tensor, other: Tensor, count: int = 5) -> float:
    own = torch.eye(len(one), dtype=torch.bool)
    count = min(count, len(one) - 1)
    near = [cosines.masked_fill(own, -2.0).topk(count).indices.tolist() for cosines in (one, other)]
    return sum(len(set(a) & set(b)) for a, b in zip(*near, strict=True)) / (count * len(one))


def _cosines(rows: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(rows.float(), dim=1)
    return unit @ unit.T
