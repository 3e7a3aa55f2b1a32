"""The client's side: its data, its model, its training."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.client.context import LocalContext, open_local
    from fedatlas.client.data import ResidentData
    from fedatlas.client.machine import keep_freed_memory
    from fedatlas.client.model import PERSONAL, Workbench, branch_of, with_branch
    from fedatlas.client.runner import ClientRunner
    from fedatlas.client.scoring import mean_personal
    from fedatlas.client.timing import Stopwatch
    from fedatlas.client.training import ClientTraining, minibatches
    from fedatlas.client.work import LocalWork

__all__ = [
    "PERSONAL",
    "ClientRunner",
    "ClientTraining",
    "LocalContext",
    "LocalWork",
    "ResidentData",
    "Stopwatch",
    "Workbench",
    "branch_of",
    "keep_freed_memory",
    "mean_personal",
    "minibatches",
    "open_local",
    "with_branch",
]

__getattr__, __dir__ = lazy_exports(__name__)
