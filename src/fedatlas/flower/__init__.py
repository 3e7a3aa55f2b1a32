"""Training over Flower: the simulator's rounds on real machines, encrypted and authenticated, with the same bits.

It needs the extra ``flower`` (flwr 1.41 or 1.42). A Flower app is two lines, which ``fedatlas flower init`` writes:

    app = make_server_app("run.toml")
    app = make_client_app("run.toml")
"""

from typing import TYPE_CHECKING, Any

from fedatlas.flower.version import check_flower
from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.flower.node.front import make_client_app
    from fedatlas.flower.server.app import make_server_app

__all__ = ["make_client_app", "make_server_app"]

_, __dir__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    """Import one of the two when it is used: a node's process for a message must not load the server's side."""
    if name in __all__:
        check_flower()
    if name == "make_client_app":
        from fedatlas.flower.node.front import make_client_app

        return make_client_app
    if name == "make_server_app":
        from fedatlas.flower.server.app import make_server_app

        return make_server_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
