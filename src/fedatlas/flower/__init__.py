"""Training over Flower: the simulator's rounds on real machines, encrypted and authenticated, with the same bits.

It needs the extra ``flower`` (flwr 1.41). A Flower app is two lines, which ``fedatlas flower init`` writes:

    app = make_server_app("run.toml")
    app = make_client_app("run.toml")
"""

from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import make_server_app

__all__ = ["make_client_app", "make_server_app"]
