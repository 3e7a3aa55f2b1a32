"""The settings of Client2Vec's index; nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from fedatlas.errors import UsageError, unknown_name

STRATEGIES = ("federated", "global")
EPOCHS = 10
"""By default. The paper has 500, which take longer than they help: see docs/evidence/client2vec.md."""
LOSSES = ("div", "sim", "orth", "recon")
Orthogonality = Literal["mean_cos", "mean_dot", "sum_dot"]
Projection = Literal["linear", "mlp"]
Batching = Literal["mixed", "per_client"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "orthogonality": ("mean_cos", "mean_dot", "sum_dot"),
    "projection": ("linear", "mlp"),
    "global_batching": ("mixed", "per_client"),
}


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Everything about the index that is neither data, strategy, epochs nor seed.

    >>> IndexSettings(losses=("sim", "orth", "recon")).losses
    ('sim', 'orth', 'recon')
    """

    pos_embed: bool = True
    """Add a learned position to each token. Without it both halves of the output are the same."""
    layers: int = 3
    heads: int = 8
    """At most; the most that divide a token's width are used."""
    feed_forward: int = 2048
    dropout: float = 0.1
    projection: Projection = "linear"
    """From the encoder's output back to D: one matrix, or two with a ReLU between."""
    losses: tuple[str, ...] = LOSSES
    """Those of div, sim, orth and recon that are summed."""
    orthogonality: Orthogonality = "mean_cos"
    """L_orth over all pairs: mean of |cos(z, u)|, mean of |z.u|, or the sum of |z.u|."""
    normalize: bool = False
    """Scale the vectors of examples and classes to length 1 first."""
    lr: float = 1e-3
    """Adam's learning rate."""
    batch_size: int = 128
    upload: int = 128
    """Global: how many of its examples a client uploads, at most."""
    global_batching: Batching = "mixed"
    """Global: batches mixed over clients, or each of one client."""
    cohort: int | float = 0.1
    """Federated: clients a round, a number or a fraction of those that may train."""
    local_epochs: int = 10
    """Federated: passes over a client's data in a round."""
    local_samples: int | None = None
    """Federated: how many of its examples a client trains on, at most; None is all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", (self.losses,) if isinstance(self.losses, str) else tuple(self.losses))
        for loss in self.losses:
            if loss not in LOSSES:
                raise unknown_name("loss of the index", loss, LOSSES)
        if not self.losses or len(set(self.losses)) < len(self.losses):
            raise UsageError(
                f"IndexSettings(losses) must name at least one loss, each once; got {self.losses}.",
                code="wrong-value",
                got=self.losses,
                setting="losses",
            )
        for title, known in _CHOICES.items():
            if getattr(self, title) not in known:
                raise unknown_name(title, getattr(self, title), known)
        for title in ("layers", "heads", "feed_forward", "batch_size", "upload", "local_epochs", "local_samples"):
            value = getattr(self, title)
            if value is not None and value < 1:
                raise UsageError(
                    f"IndexSettings({title}) must be at least 1, got {value}.",
                    code="out-of-range",
                    got=value,
                    setting=title,
                )
        if not 0 <= self.dropout < 1:
            raise UsageError(
                f"IndexSettings(dropout) must be in [0, 1), got {self.dropout}.",
                code="out-of-range",
                got=self.dropout,
                setting="dropout",
            )
        if not 0 < self.lr < math.inf:
            raise UsageError(
                f"IndexSettings(lr) must be a positive number, got {self.lr}.",
                code="out-of-range",
                got=self.lr,
                setting="lr",
            )


@dataclass(frozen=True, kw_only=True)
class IndexTraining:
    """How the index network is trained: its settings, strategy, length and seed."""

    strategy: str = "global"
    """``global``: each client uploads some of its pairs (example vector, label), and the server trains the network over
    them. ``federated``: FedAvg trains it, and no pair leaves a client."""
    epochs: int = EPOCHS
    """Passes over the pairs, or rounds."""
    seed: int = 0
    settings: IndexSettings | None = None
    """By default the paper's."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise unknown_name("strategy", self.strategy, STRATEGIES)
        if self.epochs < 1:
            raise UsageError(
                f"epochs must be at least 1, got {self.epochs}.", code="out-of-range", got=self.epochs, setting="epochs"
            )

    def index_settings(self) -> IndexSettings:
        """Return the settings of the index network."""
        return self.settings or IndexSettings()

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return the same with some fields changed, by name."""
        known = [field.name for field in fields(self)]
        for title in changes:
            if title not in known:
                raise unknown_name(f"setting of {type(self).__name__}", title, known)
        return replace(self, **changes)
