"""Gaussian noise on what a client sends for the atlas, and the privacy that it buys.

A client clips each half of its vector to norm ``clip`` and adds Gaussian noise of standard deviation ``sigma`` to every
entry. The guarantee is (epsilon, delta)-differential privacy by the analytic Gaussian mechanism (Balle and Wang,
"Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8). It depends on what may differ
without being noticed:

    client    all of a client's data. A vector in a ball of radius clip moves by at most 2 clip, so with h halves the
              sensitivity is 2 clip sqrt(h).
    example   one of a client's n examples is another one; n itself is not secret. Needs a source that clips every
              example before it takes the mean, and writes each half's ``example_clip`` into the provenance; the
              sensitivity is 2 sqrt(sum of clip^2 over the halves) / n, so it differs between clients.

The guarantee covers this one message and nothing else: neither a client's number of examples, nor what it sends while
an index network or the model is trained.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import UsageError, unknown_name
from fedatlas.seeds import generator


def delta_for(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the least delta with which noise of ``sigma`` gives (epsilon, delta).

    With r = sensitivity / sigma:  delta = Phi(r/2 - epsilon/r) - exp(epsilon) Phi(-r/2 - epsilon/r).
    """
    from scipy.special import log_ndtr, ndtr  # here, as it takes longer to load than all of this package

    ratio = sensitivity / sigma
    first = ndtr(ratio / 2 - epsilon / ratio)
    return max(0.0, float(first - math.exp(epsilon + log_ndtr(-ratio / 2 - epsilon / ratio))))


def epsilon(sigma: float, delta: float, sensitivity: float) -> float:
    """Return the least epsilon that noise of ``sigma`` gives at ``delta``.

    >>> round(epsilon(sigma=3.7306, delta=1e-5, sensitivity=1.0), 3)
    1.0
    """
    _check_positive(sigma=sigma, sensitivity=sensitivity)
    _check_delta(delta)
    if delta_for(0.0, sigma, sensitivity) <= delta:
        return 0.0
    high = 1.0
    while delta_for(high, sigma, sensitivity) > delta:
        high *= 2
    return _bisect(lambda guess: delta_for(guess, sigma, sensitivity) > delta, 0.0, high)


def sigma_for(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least noise that gives (epsilon, delta).

    >>> round(sigma_for(epsilon=1.0, delta=1e-5, sensitivity=1.0), 4)
    3.7306
    """
    _check_positive(epsilon=epsilon, sensitivity=sensitivity)
    _check_delta(delta)
    # Only the ratio of sigma and sensitivity matters, so the search is at sensitivity 1.
    low, high = 1e-3, 1.0
    while delta_for(epsilon, high, 1.0) > delta:
        low, high = high, high * 2
    while delta_for(epsilon, low, 1.0) <= delta:
        low, high = low / 2, low
    return sensitivity * _bisect(lambda guess: delta_for(epsilon, guess, 1.0) > delta, low, high)


def plan_noise(
    provenance: Mapping[str, Any],
    sizes: Tensor,
    halves: Iterable[str],
    *,
    clip: float | None,
    sigma: float | None,
    target: float | None,
    delta: float,
    protects: str,
) -> tuple[Tensor, dict[str, Any]]:
    """Return each client's standard deviation, and what the noise buys as plain values.

    A given ``sigma`` is the same for all; a ``target`` epsilon is kept by each client with as much noise as its own
    sensitivity asks for. The plain values hold the largest sigma, sensitivity and epsilon of any client.
    """
    if "noise" in provenance:
        raise UsageError(
            "the atlas has noise already, and noise is added once; start from the atlas without it.",
            code="noise-repeated",
        )
    bounds = _bounds(provenance, list(halves), clip, protects)
    shares = sizes.clamp(min=1).double() if protects == "example" else torch.ones(len(sizes), dtype=torch.float64)
    sensitivities = 2 * math.hypot(*bounds.values()) / shares
    largest = float(sensitivities.max())
    if sigma is not None and target is None:
        sigmas = torch.full_like(sensitivities, sigma)
        bought = epsilon(sigma, delta, largest)
    elif target is not None and sigma is None:
        sigmas = sensitivities * sigma_for(target, delta, 1.0)
        bought = target
    else:
        raise UsageError(
            f"with_noise takes either sigma or epsilon, got sigma={sigma}, epsilon={target}.",
            code="noise-settings",
            setting="sigma",
        )
    promise = {
        "protects": protects,
        "clip": bounds,
        "sigma": float(sigmas.max()),
        "sensitivity": largest,
        "epsilon": bought,
        "delta": delta,
    }
    return sigmas.float(), promise


def noisy(
    names: Sequence[str], halves: Mapping[str, Tensor], clips: Mapping[str, float], sigmas: Tensor, seed: int
) -> dict[str, Tensor]:
    """Return the halves as the clients send them: rows clipped to a norm, plus noise from their own generators."""
    sent = {name: clip_rows(table, clips[name]) for name, table in halves.items()}
    for i, client in enumerate(names):
        rng = generator(seed, "noise", client)
        for table in sent.values():
            table[i] += sigmas[i] * torch.randn(table.shape[1], generator=rng)
    return sent


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Return a copy with rows longer than ``clip`` scaled down to that norm; directions stay."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (clip / lengths.clamp(min=clip))


def _bisect(too_small: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least value that is not too small, from above, so that no promise is rounded away."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def _bounds(provenance: Mapping[str, Any], halves: list[str], clip: float | None, protects: str) -> dict[str, float]:
    """Return the norm bound of each half, or of one example's part in it."""
    if protects not in ("client", "example"):
        raise unknown_name("unit of protection", protects, ["client", "example"])
    if protects == "client":
        if clip is None:
            raise UsageError(
                "protects='client' needs clip, the norm that no half of a client's vector may exceed.",
                code="noise-settings",
                setting="clip",
            )
        _check_positive(clip=clip)
        return dict.fromkeys(halves, float(clip))
    known: Mapping[str, float] = provenance.get("example_clip", {})
    loose = next((half for half in halves if half not in known), None)
    if loose is not None:
        raise UsageError(
            "protects='example' needs a source that clips every example before it takes the mean, such as "
            f"feature_average(..., clip=1.0); half {loose!r} of this atlas comes from "
            f"{provenance.get('source', 'another source')!r}.",
            code="noise-settings",
            setting="protects",
            half=loose,
        )
    if clip is not None:
        raise UsageError(
            f"with protects='example' the source has set clip, {dict(known)}; leave it out, got {clip}.",
            code="noise-settings",
            got=clip,
            setting="clip",
        )
    return {half: float(known[half]) for half in halves}


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UsageError(
                f"{name} must be a positive number, got {value}.", code="out-of-range", got=value, setting=name
            )


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta must be in (0, 1), got {delta}.", code="out-of-range", got=delta, setting="delta")
