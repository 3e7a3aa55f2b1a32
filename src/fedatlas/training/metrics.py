"""How each client and each domain is served, and how evenly."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.parts.types import ClientScore


def summarize(scores: Sequence[ClientScore], domains: Mapping[int, str | None]) -> dict[str, Any]:
    """Return the metrics of one evaluation over clients, as plain numbers in [0, 1].

    ``accuracy`` weighs clients by test examples, ``client_mean`` does not; ``domain_mean`` is the mean over domains of
    the mean over each domain's clients. ``sigma_client`` and ``sigma_type`` are population standard deviations (ddof 0)
    over clients and over domains. ``bottom_decile`` is the mean of the worst tenth of clients (at least one).
    """
    if not scores:
        return {}
    accuracy = np.array([score.accuracy for score in scores])
    sizes = np.array([score.num_examples for score in scores], dtype=float)
    losses = np.array([score.loss for score in scores])
    by_domain: dict[str, list[float]] = {}
    for score in scores:
        if (domain := domains.get(score.client)) is not None:
            by_domain.setdefault(domain, []).append(score.accuracy)
    means = {domain: float(np.mean(values)) for domain, values in sorted(by_domain.items())}
    ordered = np.sort(accuracy)
    worst = int(np.argmin(accuracy))
    summary: dict[str, Any] = {
        "num_clients": len(scores),
        "num_examples": int(sizes.sum()),
        "accuracy": float((accuracy * sizes).sum() / sizes.sum()),
        "loss": float((losses * sizes).sum() / sizes.sum()),
        "client_mean": float(accuracy.mean()),
        "client_mean_loss": float(losses.mean()),
        "worst_client": float(accuracy[worst]),
        "worst_client_id": scores[worst].client,
        "bottom_decile": float(ordered[: max(1, len(ordered) // 10)].mean()),
        "deciles": [float(v) for v in np.quantile(accuracy, np.linspace(0.1, 0.9, 9))],
        "sigma_client": float(accuracy.std()),
    }
    for name in scores[0].others:
        found = np.array([score.others[name] for score in scores])
        summary[name] = float((found * sizes).sum() / sizes.sum())
        summary[f"client_mean_{name}"] = float(found.mean())
    if means:
        values = np.array(list(means.values()))
        summary |= {
            "domains": means,
            "domain_mean": float(values.mean()),
            "worst_domain": float(values.min()),
            "worst_domain_name": min(means, key=lambda name: means[name]),
            "sigma_type": float(values.std()),
        }
    return summary
