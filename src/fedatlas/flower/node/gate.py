"""The gate of a node: a request is answered if the node's policy allows it, and either way the audit log says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedatlas.algorithms.registry import ALGORITHMS, build_algorithm, standalone
from fedatlas.atlas.doctor.figures import FIGURES, HASHES
from fedatlas.atlas.sources import disclosures_by_source, summary_by_class
from fedatlas.atlas.summary import summary_disclosures
from fedatlas.config.config import Config
from fedatlas.config.schema import NEWCOMER_TELLS
from fedatlas.data.federation import Federation
from fedatlas.flower.node.audit import AUDIT, AuditLog
from fedatlas.flower.node.policy import (
    ADAPT,
    ALL,
    GROUPS,
    TABLES,
    Policy,
    PolicyError,
    Wanted,
    recipe_names,
    shares_in_groups,
)
from fedatlas.flower.node.request import CHECK
from fedatlas.flower.node.settings import PARTITION
from fedatlas.flower.protocol.messages import num_bytes, values
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.disclosure import Disclosure, words

ATLAS_KINDS = ("query.row", "query.sums", "query.cells", "query.pairs", "query.index", "train.index")
"""The messages with which an atlas is made."""
SUMMARY_KINDS = ("query.sums", "query.cells")
"""Those of them that a check sends too."""
CHECK_KINDS = ("query.figures", "query.hashes", "query.card")
"""The other messages of a check."""
ALGORITHM_KINDS = ("train", "evaluate", "query.introduce", "query.survey", "query.losses")
"""The messages whose replies hold what an algorithm takes."""
CHECK_NAME = "check"
"""The disclosure of a check."""


class Gate:
    """What stands between a server and a node's data."""

    def __init__(self, settings: Mapping[str, Any], kind: str, about: Mapping[str, Any], task: str = "train") -> None:
        """Take the node's config, the type of the message, what it says about the run, and the run's task."""
        self.kind, self.about, self.task = kind, about, task
        self.has_key = "copies-key" in settings
        simulated = PARTITION[0] in settings and "client" not in settings  # the data are the config's, nobody's own
        self.policy = _everything() if simulated else Policy.of_node(settings)
        self.log = _audit_log(settings)
        self.asked: dict[str, Any] = {}

    def check_config(self, config: Config) -> None:
        """Raise PolicyError if the run may not be answered, whatever it asks; nothing of the client is read yet."""
        self.asked = {"algorithm": " over ".join(recipe_names(config))}
        self.policy.check_config(config)

    def check_data(self, config: Config, count: int, *, is_table: bool, algorithm: Callable[[], Algorithm]) -> None:
        """Raise PolicyError if this message may not be answered, by what the reply to it would hold."""
        self.policy.check_examples(count)
        if self.kind == "query.hello":  # a run that would ask for too much is better told so before it begins
            own = {TABLES: "the sums of a table's columns"} if is_table else {}
            self.policy.check_disclosed(own | (check_disclosure() if self.task == CHECK else disclosures_in(config)))
        elif self.kind in SUMMARY_KINDS:
            self.policy.check_disclosed(self._summary_disclosure(config))
        elif self.kind in ATLAS_KINDS:
            self.policy.check_disclosed(atlas_disclosure(config))
        elif self.kind in CHECK_KINDS:
            self.policy.check_disclosed(self._figures_disclosure())
        elif self.kind == "query.adapt":
            self.policy.check_disclosed({ADAPT: NEWCOMER_TELLS})
        elif self.kind in ALGORITHM_KINDS:
            self.policy.check_disclosed(disclosures_of(algorithm(), config))
        else:
            self.policy.refuse_kind(self.kind)

    def _summary_disclosure(self, config: Config) -> dict[str, str]:
        """Return what a summary takes: one that is agreed to for a check, or for the atlas that the config makes."""
        if self.policy.discloses(CHECK_NAME):
            return check_disclosure()
        made = config.atlas_settings()
        by_class = None if made is None else summary_by_class(str(made["source"]))
        # A check asks for sums by class; an owner who agreed to an atlas of inputs alone did not agree to those.
        fits = by_class or (by_class is False and self.task != CHECK)
        return atlas_disclosure(config) if fits else check_disclosure()

    def _figures_disclosure(self) -> dict[str, str]:
        """Return what leaves a client for a check beside its summary; a card only comes."""
        if self.kind == "query.card" or (self.kind == "query.hashes" and not self.has_key):
            return {}
        return {"check, copies": "; ".join(words([HASHES]))} if self.kind == "query.hashes" else check_disclosure()

    def shown(self, federation: Federation) -> Federation:
        """Return what the reply to this message may be made of.

        There is no test part of few examples, and for an atlas or a check no class of few.
        """
        federation, least = self._without_few_tests(federation), self.policy.least_of_class
        if least <= 1 or self.kind not in ATLAS_KINDS:
            return federation
        (client,) = federation.clients
        labels = federation.data.labels[client.train]
        enough = torch.bincount(labels, minlength=federation.num_classes)[labels] >= least
        self.policy.check_examples(int(enough.sum()))
        return replace(federation, clients=(replace(client, train=client.train[enough]),))

    def _without_few_tests(self, federation: Federation) -> Federation:
        """Return the federation without a test part that is too small: its scores would tell of single examples."""
        (client,) = federation.clients
        if len(client.test) >= self.policy.least_examples:
            return federation
        return replace(federation, clients=(replace(client, test=client.test[:0]),))

    def check_reply(self, reply: RecordDict) -> None:
        """Raise PolicyError if a reply is too large."""
        self.policy.check_bytes(num_bytes(reply))

    def wrote(self, reply: RecordDict) -> None:
        """Log what leaves the node with a reply."""
        self._write("sent", bytes=num_bytes(reply), left=contents(reply))

    def refused(self, error: Exception) -> None:
        """Log that a request was refused or failed; nothing left but the reason."""
        self._write("refused" if isinstance(error, PolicyError) else "failed", why=str(error)[:1000])

    def _write(self, what: str, **more: Any) -> None:
        if self.log is None:
            return
        run, number = str(self.about.get("run", ""))[:64], self.about.get("round")
        own = {"run": run, "round": number if isinstance(number, int) else None, "request": self.kind}
        self.log.add({**own, **self.asked, "answer": what, **more})


def _everything() -> Policy:
    return Policy(sharing=(ALL, GROUPS), disclosures=("*",), settings=("*",), least_examples=0)


def _audit_log(settings: Mapping[str, Any]) -> AuditLog | None:
    if "memory" not in settings:
        return None
    return AuditLog(Path(str(settings["memory"])).expanduser() / AUDIT)


def contents(reply: RecordDict) -> dict[str, Any]:
    """Return what a reply holds, record by record: the names and shapes of tensors, the names of plain values."""
    found: dict[str, Any] = {
        name: {title: list(array.shape) for title, array in record.items()}
        for name, record in reply.array_records.items()
    }
    return found | {name: sorted(values(reply, name)) for name in (*reply.metric_records, *reply.config_records)}


def check_disclosure() -> dict[str, str]:
    """Return what leaves a client for a check of its data: its name in the policy, and what it is."""
    return {CHECK_NAME: "; ".join(words([*summary_disclosures(), *FIGURES]))}


def atlas_disclosure(config: Config) -> dict[str, str]:
    """Return what leaves a client for the atlas that a config makes: its name in the policy, and what it is."""
    made = config.atlas_settings()
    if made is None:
        return {}
    source, known = str(made["source"]), disclosures_by_source()
    name = source if source in known else f"{source} {made['strategy']}"
    return {f"map {name}": "; ".join(words(known.get(name, ())))}


def disclosures_of(algorithm: Algorithm, config: Config) -> dict[str, str]:
    """Return what leaves a client for an algorithm beyond the change: names in the policy, and what they are."""
    # A vector leaves with the messages that make the atlas, under their name; a note comes from the server.
    left: list[Disclosure] = [one for one in algorithm.disclosures() if one.when not in ("atlas", "note")]
    found: dict[str, str] = {}
    for name in recipe_names(config):
        own = [one for one in left if ":" in name or one in _declared(name)]
        if own:
            found[name] = "; ".join(words(own))
            left = [one for one in left if one not in own]
    return found | ({algorithm.name: "; ".join(words(left))} if left else {})


def _declared(name: str) -> list[Disclosure]:
    return build_algorithm(name).disclosures() if name in standalone() and name in ALGORITHMS else []


def disclosures_in(config: Config) -> dict[str, str]:
    """Return what leaves a client for a whole run of a config beyond the change: names in the policy, what they are."""
    # Without the uses of an atlas, which is not made yet: they take nothing from a client.
    named = {key: config.values[key] for key in ("algorithm", "algorithms", "optimizer")}
    plain = Config.load(None, (), **{key: dict(value) for key, value in named.items()})
    return {**disclosures_of(plain.client_algorithm(), plain), **atlas_disclosure(config)}


def wanted_by(config: Config) -> Wanted:
    """Return what a run of a config asks of its nodes beyond the defaults of a policy."""
    names = [*disclosures_in(config), *([ADAPT] if config.values["flower"]["adapt"] else [])]
    return Wanted(disclosures=names, sharing=[ALL, GROUPS] if shares_in_groups(config) else [ALL])
