"""How a client is tuned; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from fedatlas.errors import UsageError, unknown_name
from fedatlas.parts.checks import check_fields

if TYPE_CHECKING:
    from fedatlas.data.federation import Transform

Tune = Literal["personal", "head", "norms", "all"]
TUNES = ("personal", "head", "norms", "all")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """What is tuned for a client, how long and how fast.

    >>> AdaptSettings().changed({"rounds": 5}).rounds
    5
    """

    tune: Tune | None = None
    """What the algorithm keeps ``personal``; the ``head``, the ``norms`` or ``all`` of the model beside that.

    None is ``personal``, where the algorithm keeps something so; else ``head``, or ``all`` where no head is known."""
    rounds: int = 20
    """Rounds of ``steps`` minibatches each; the schedule of the learning rate moves once a round. 0 tunes nothing."""
    steps: int = 50
    batch_size: int | None = None
    """None is the run's."""
    least_batch: int = 1
    """The last minibatch of a pass is left out if it has fewer examples."""
    lr: float | None = None
    """The first learning rate; None is the algorithm's for newcomers, else the run's."""
    min_lr: float | None = None
    """The last learning rate."""
    augment: Transform | Literal["run"] | None = "run"
    """``run`` is the run's."""
    compile: bool = False
    """Let ``torch.compile`` fuse the network's operations: a minute at first, for long tuning on a GPU."""
    evaluate_every: int | None = None
    """Also test after each so many rounds."""
    seed: int | None = None
    """Of the batches and of the choice of examples; None is the run's."""
    labels: bool = True
    """Whether a client's labels may be looked at when it is placed in a group."""
    compare: bool = True
    """Compare before and after by folds of the client's training part, and keep the better; else keep what was tuned.
    """

    def __post_init__(self) -> None:
        if self.tune is not None and self.tune not in TUNES:
            raise unknown_name("choice of what to tune", self.tune, TUNES)
        check_fields(self)
        for title, least in (("rounds", 0), ("least_batch", 1), ("evaluate_every", 1)):
            value = getattr(self, title)
            if value is not None and value < least:
                raise UsageError(
                    f"{title} must be at least {least}, got {value}.", code="out-of-range", setting=title, got=value
                )

    def changed(self, changes: Mapping[str, Any]) -> AdaptSettings:
        """Return the settings with some of them changed, by name."""
        known = [setting.name for setting in fields(self)]
        for name in changes:
            if name not in known:
                raise unknown_name("setting of adapting", name, known)
        return replace(self, **changes)
