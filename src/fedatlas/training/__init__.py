"""The rounds of a run, from its settings to its records."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.training.callbacks import PACKAGES
    from fedatlas.training.clients import Clients
    from fedatlas.training.draws import Draws, SamplingError, shares
    from fedatlas.training.groups import choose_groups, evaluate
    from fedatlas.training.loop import TrainingLoop
    from fedatlas.training.metrics import summarize
    from fedatlas.training.model import make_model
    from fedatlas.training.pools import GroupRosters
    from fedatlas.training.progress import Progress, Silent, make_progress
    from fedatlas.training.rounds import Round, RoundRecord, initial_state, play
    from fedatlas.training.saving import SHARE, Saver
    from fedatlas.training.settings import Machine, Settings, TrainingPlan
    from fedatlas.training.train import fingerprint, train_run

__all__ = [
    "PACKAGES",
    "SHARE",
    "Clients",
    "Draws",
    "GroupRosters",
    "Machine",
    "Progress",
    "Round",
    "RoundRecord",
    "SamplingError",
    "Saver",
    "Settings",
    "Silent",
    "TrainingLoop",
    "TrainingPlan",
    "choose_groups",
    "evaluate",
    "fingerprint",
    "initial_state",
    "make_model",
    "make_progress",
    "play",
    "shares",
    "summarize",
    "train_run",
]

__getattr__, __dir__ = lazy_exports(__name__)
