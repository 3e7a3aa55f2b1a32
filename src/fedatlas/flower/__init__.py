"""Training over Flower: the simulator's rounds on real machines, encrypted and authenticated, with the same bits.

It needs the extra ``flower`` (flwr 1.41 or 1.42). A Flower app is two lines, which ``fedatlas flower init`` writes:

    app = make_server_app("run.toml")
    app = make_client_app("run.toml")
"""

from typing import TYPE_CHECKING, Any

from fedatlas.flower.version import check_flower
from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.flower.deploy.demo import INDEX
    from fedatlas.flower.deploy.launch import LocalFederation
    from fedatlas.flower.deploy.template import PACKAGE, RUN, write_app
    from fedatlas.flower.node.audit import AuditLog
    from fedatlas.flower.node.export import write_npz
    from fedatlas.flower.node.front import make_client_app
    from fedatlas.flower.node.policy import policy_text
    from fedatlas.flower.node.settings import open_node
    from fedatlas.flower.protocol.data_form import DataForm
    from fedatlas.flower.protocol.expectations import expected_replies
    from fedatlas.flower.protocol.messages import arrays
    from fedatlas.flower.server.app import make_server_app, serve
    from fedatlas.flower.server.exchange import Exchange, NetworkSettings
    from fedatlas.flower.server.transport import FlowerClients

__all__ = [
    "INDEX",
    "PACKAGE",
    "RUN",
    "AuditLog",
    "DataForm",
    "Exchange",
    "FlowerClients",
    "LocalFederation",
    "NetworkSettings",
    "arrays",
    "expected_replies",
    "make_client_app",
    "make_server_app",
    "open_node",
    "policy_text",
    "serve",
    "write_app",
    "write_npz",
]

_get, __dir__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    """Import a name when it is used: a node's process for a message must not load the server's side."""
    if name in __all__:
        check_flower()
    return _get(name)
