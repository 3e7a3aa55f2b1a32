"""Newcomers of a run: nodes that joined after the training get the model and adapt it to their data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedatlas.atlas.atlas import Atlas
from fedatlas.config.config import Config
from fedatlas.errors import DataError, UsageError
from fedatlas.flower.node.adapt import RECORD
from fedatlas.flower.node.request import atlas_form
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import ABOUT, BUFFERS, SHARED, BadReplyError, arrays, num_bytes, plain, values
from fedatlas.flower.server.exchange import Exchange, NetworkSettings
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import ADAPTED, ATLAS, Run

FIGURES = (
    "num_examples",
    "num_steps",
    "num_tuned",
    "num_tested",
    "seconds",
    "accuracy_before",
    "accuracy_after",
    "loss_before",
    "loss_after",
)


def adapt_newcomers(config: Config, grid: Grid, folder: Path) -> Run:
    """Adapt a finished run to all connected clients that did not train in it, and save the results in its folder."""
    settings = NetworkSettings(**config.values["flower"])
    run = Run(folder)
    if "identity" not in run.resolved:
        raise UsageError(
            f"{folder} holds a run that was not made over Flower; use `fedatlas adapt`.",
            code="run-unfit",
            path=str(folder),
        )
    exchange = Exchange(grid, settings, lambda line: print(line, flush=True))
    trained = {client["name"] for client in run.resolved["federation"]["clients"] if not client["held_out"]}
    online = exchange.wait_for(lambda there: bool(there - trained), "a client that did not train")
    newcomers = sorted(online - trained)
    print(f"newcomers: {', '.join(newcomers)}", flush=True)
    checkpoint = run.checkpoint()
    form = DataForm.from_values(run.resolved["federation"]["form"])
    atlas = Atlas.load(folder / ATLAS) if (folder / ATLAS).exists() else None
    about = {
        "run": run.resolved["identity"],
        "round": checkpoint.state.round,
        "place": 0,
        "version": 0,
        "keep": [0],
        "atlas": atlas_form(atlas),
        "adapt": json.dumps(config.values["flower"]["adapt"]),
        "resolved": json.dumps(without_clients(run.resolved)),
        **form.values(),
    }
    content = RecordDict(
        {SHARED: arrays(checkpoint.state.shared), BUFFERS: arrays(checkpoint.state.buffers), ABOUT: plain(about)}
    )
    fitting = [name for name in newcomers if _fits(exchange, form, name)]
    sizes = {"down": num_bytes(content)}

    def check(name: str, records: RecordDict) -> dict[str, Any]:
        sent = {"bytes_received": sizes["down"], "bytes_sent": num_bytes(records)}
        return {**_figures(records), "client": name, "round": checkpoint.state.round, **sent}

    found = exchange.ask(
        "query.adapt", dict.fromkeys(fitting, content), check, round=checkpoint.state.round, stage="adapting"
    )
    kept = {record["client"]: record for record in run.adapted} | found
    atomic_write(folder / ADAPTED, json.dumps(list(kept.values()), indent=1).encode())
    for name, record in found.items():
        print(
            f"{name}: accuracy {record['accuracy_before']:.1%} before, {record['accuracy_after']:.1%} after tuning "
            f"{record['num_tuned']} numbers; {record['bytes_received']:,} bytes down, {record['bytes_sent']:,} up",
            flush=True,
        )
    return run


def without_clients(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings without its clients: a newcomer need not know them."""
    federation = {**resolved["federation"], "clients": []}
    return {**resolved, "federation": federation, "machine": {}}


def _fits(exchange: Exchange, form: DataForm, name: str) -> bool:
    try:
        if form.unite(exchange.known[name].form).classes != form.classes:
            raise DataError(
                f"its classes are not among {list(form.classes)}", code="names-unfit", known=list(form.classes)
            )
    except DataError as error:
        exchange.leave_out(name, "adapting", str(error))
        return False
    return True


def _figures(records: RecordDict) -> dict[str, Any]:
    """Return the figures of a newcomer's reply, after a check that all numbers are finite."""
    reply: dict[str, Any] = json.loads(str(values(records, RECORD)["json"]))
    record: dict[str, Any] = {name: reply[name] for name in FIGURES}
    for name, value in record.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadReplyError(f"{name} must be a finite number, got {value!r}", code="not-finite", name=name)
    losses = [float(value) for value in reply["losses"]]
    if not all(math.isfinite(loss) for loss in losses):
        raise BadReplyError("a loss is not finite", code="not-finite", name="losses")
    words = {name: str(reply[name])[:200] for name in ("algorithm", "origin")}
    best = record["accuracy_after"]
    return {**words, "domain": None, **record, "losses": losses, "accuracy_best": best, "curve": {}, "embedding": None}
