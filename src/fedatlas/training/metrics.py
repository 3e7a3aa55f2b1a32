"""How each client, each domain and each group is served, and how evenly."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.data.federation import Federation
from fedatlas.data.task import CLASSIFICATION
from fedatlas.parts.metric import Metric, always
from fedatlas.parts.types import ClientScore, Value


class Summary:
    """The figures of one evaluation over clients.

    ``metrics`` are all that the scores hold, the main one first. ``shared_tests`` says that clients are tested on the
    same examples, so that their errors go together.
    """

    def __init__(
        self,
        metrics: Sequence[Metric] = always(CLASSIFICATION),
        domains: Mapping[int, str | None] | None = None,
        *,
        shared_tests: bool = False,
    ) -> None:
        self.metrics, self.domains, self.shared_tests = list(metrics), domains or {}, shared_tests

    def of(self, scores: Sequence[ClientScore], groups: Mapping[int, int] | None = None) -> dict[str, Any]:
        """Return the figures as plain numbers, those of the main metric by client and by domain.

        A metric by its name weighs clients by test examples, ``client_mean`` does not; ``domain_mean`` is the mean over
        domains of the mean over each domain's clients. ``sigma_client`` and ``sigma_type`` are population standard
        deviations (ddof 0) over clients and over domains. ``bottom_decile`` is the mean of the worst tenth of clients
        (at least one).
        """
        if not scores:
            return {}
        main, loss, *further = self.metrics
        found = np.array([score.main for score in scores])
        losses = np.array([score.loss for score in scores])
        sizes = [score.num_examples for score in scores]
        ordered = np.sort(found) if main.higher_is_better else np.sort(found)[::-1]
        worst = int(np.argmin(found) if main.higher_is_better else np.argmax(found))
        summary: dict[str, Any] = {
            "num_clients": len(scores),
            "num_examples": sum(sizes),
            main.name: main.pool(found.tolist(), sizes),
            loss.name: loss.pool(losses.tolist(), sizes),
            "client_mean": float(found.mean()),
            "client_mean_loss": float(losses.mean()),
            "worst_client": float(found[worst]),
            "worst_client_id": scores[worst].client,
            "bottom_decile": float(ordered[: max(1, len(ordered) // 10)].mean()),
            "deciles": [float(v) for v in np.quantile(found, np.linspace(0.1, 0.9, 9))],
            "sigma_client": float(found.std()),
        }
        for metric in further:
            values = [score.values[metric.name] for score in scores]
            summary[metric.name] = plain(metric.pool(values, sizes))
            if not metric.axes:
                summary[f"client_mean_{metric.name}"] = plain(metric.pool(values, [1] * len(values)))
        if scores[0].intervals:
            summary["intervals"] = self._intervals(scores, np.asarray(sizes) / sum(sizes))
        return summary | self._by_domain(scores) | self._by_group(scores, groups)

    def _by_domain(self, scores: Sequence[ClientScore]) -> dict[str, Any]:
        members = _sorted_into(scores, self.domains)
        if not members:
            return {}
        means = {domain: float(np.mean([score.main for score in own])) for domain, own in members.items()}
        values = np.array(list(means.values()))
        worst = (min if self.metrics[0].higher_is_better else max)(means, key=lambda name: means[name])
        summary = {
            "domains": means,
            "domain_mean": float(values.mean()),
            "worst_domain": means[worst],
            "worst_domain_name": worst,
            "sigma_type": float(values.std()),
        }
        if len(self.metrics) > 2 or scores[0].intervals:
            summary["by_domain"] = {domain: self._figures(own) for domain, own in members.items()}
        return summary

    def _by_group(self, scores: Sequence[ClientScore], groups: Mapping[int, int] | None) -> dict[str, Any]:
        members = _sorted_into(scores, groups or {})
        if not members or (len(self.metrics) == 2 and not scores[0].intervals):
            return {}
        return {"by_group": {str(group): self._figures(own) for group, own in members.items()}}

    def _figures(self, scores: Sequence[ClientScore]) -> dict[str, Any]:
        """Return each metric over some clients, each of which counts the same."""
        ones = [1] * len(scores)
        figures = {
            metric.name: plain(metric.pool([score.values[metric.name] for score in scores], ones))
            for metric in self.metrics
        }
        spans = self._intervals(scores, np.full(len(scores), 1 / len(scores))) if scores[0].intervals else {}
        return {"num_clients": len(scores), **figures, **({"intervals": spans} if spans else {})}

    def _intervals(self, scores: Sequence[ClientScore], weights: Any) -> dict[str, list[float]]:
        """Return the interval of each metric's weighted mean, from the clients' intervals.

        MOVER (Zou and Donner 2008): the limits are ``mean - sqrt(sum (w_i (v_i - l_i))²)`` and the like above. Where
        clients share test examples their errors go together, and the distances add up instead.
        """
        found: dict[str, list[float]] = {}
        for metric in self.metrics:
            if not all(metric.name in score.intervals for score in scores):
                continue
            values = np.array([score.values[metric.name] for score in scores], dtype=float)
            spans = np.array([score.intervals[metric.name] for score in scores])
            below, above = weights * (values - spans[:, 0]), weights * (spans[:, 1] - values)
            far = [part.sum() if self.shared_tests else math.sqrt((part**2).sum()) for part in (below, above)]
            mean = float((weights * values).sum())
            found[metric.name] = [mean - float(far[0]), mean + float(far[1])]
        return found


def summarize(scores: Sequence[ClientScore], domains: Mapping[int, str | None]) -> dict[str, Any]:
    """Return the figures of one evaluation of a classification, without further metrics."""
    return Summary(domains=domains).of(scores)


def share_tests(federation: Federation) -> bool:
    """Return whether two clients are tested on the same example."""
    tested = [place for client in federation for place in client.test.tolist()]
    return len(set(tested)) < len(tested)


def plain(value: Value) -> Any:
    """Return a metric's value as JSON can hold it: None where it is undefined."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if math.isfinite(value) else None


def client_figures(score: ClientScore) -> dict[str, Any]:
    """Return the entries of a client's record: each metric by its name, and the intervals where there are some."""
    main, loss, *others = score.values
    figures = {main: plain(score.values[main]), loss: plain(score.values[loss]), "num_tested": score.num_examples}
    figures |= {name: plain(score.values[name]) for name in others}
    return figures | ({"intervals": {k: list(v) for k, v in score.intervals.items()}} if score.intervals else {})


def _sorted_into(scores: Sequence[ClientScore], keys: Mapping[int, Any]) -> dict[Any, list[ClientScore]]:
    """Return the scores of each key, by key; a client whose key is None or -1 is in none."""
    members: dict[Hashable, list[ClientScore]] = {}
    for score in scores:
        if (key := keys.get(score.client)) is not None and key != -1:
            members.setdefault(key, []).append(score)
    return dict(sorted(members.items()))
