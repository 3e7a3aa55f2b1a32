"""Messages between the server and the nodes: which clients are connected, requests with a deadline, and replies.

A client without a usable reply is left out, and the record gives the reason; the round goes on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedatlas.errors import DataError, UsageError
from fedatlas.flower.protocol.checks import check_size
from fedatlas.flower.protocol.data_form import LONGEST_NAME, DataForm, Member
from fedatlas.flower.protocol.messages import ABOUT, BadReplyError, num_bytes, values
from fedatlas.flower.protocol.wire import Known, folded, unfolded
from fedatlas.flower.server.refusals import Refusal, brief, by_policy, listed, not_allowed, raise_node_error

HELLO = "query.hello"
QUIET = 10.0
"""When no new node has come for this many seconds, those that are connected are taken for all."""
POLL = 0.25
"""Seconds between two looks for replies."""
LOOK = 5.0
"""Seconds between two looks for nodes that are connected."""
MOST_EXAMPLES = 10**10
"""The most examples that a client may claim; how much it counts has a closer bound, ``flower.most_weight``."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The settings of the network: a config's section [flower]."""

    clients: int | list[str] | None = None
    """The number of clients to wait for before round 1, or their names in the roster's order."""
    minimum: int | float = 1
    """The fewest replies with which a round changes the model: a number, or a fraction of the cohort."""
    deadline: float = 600.0
    """Seconds that clients have to reply."""
    wait: float = 600.0
    """Seconds that the server waits for clients before it begins, or when too few are connected."""
    most_weight: float | None = 10.0
    """A client may count as one that is so many times as large as each of the others, and no more."""
    most_change: float | None = 100.0
    """How many times as long as the median one of its round a change, or a move of running statistics, may be."""
    insecure: bool = False
    """Whether to accept nodes whose key is not registered under a name."""
    adapt: dict[str, Any] = field(default_factory=dict)
    """Options of ``Adapter.adapt`` for newcomers, such as rounds and steps."""

    def __post_init__(self) -> None:
        for title in ("deadline", "wait"):
            seconds = getattr(self, title)
            if not seconds > 0:
                name = f"flower.{title}"
                raise UsageError(
                    f"{name} must be above 0 seconds, got {seconds}.", code="out-of-range", name=name, got=seconds
                )
        for title in ("most_weight", "most_change"):
            times = getattr(self, title)
            if times is not None and not times >= 1:
                name = f"flower.{title}"
                raise UsageError(
                    f"{name} must be 1 or more, or none; got {times}.", code="out-of-range", name=name, got=times
                )
        fraction = isinstance(self.minimum, float)
        if not (0 < self.minimum <= 1 if fraction else self.minimum >= 1):
            raise UsageError(
                f"flower.minimum must be at least 1 reply, or a fraction in (0, 1]; got {self.minimum}.",
                code="out-of-range",
                name="flower.minimum",
                got=self.minimum,
            )

    def least(self, cohort: int) -> int:
        """Return the fewest replies that a cohort of this size must give."""
        wanted = self.minimum if isinstance(self.minimum, int) else max(1, round(self.minimum * cohort))
        return min(wanted, cohort)


@dataclass(frozen=True, kw_only=True)
class KnownClient:
    """A client that has sent its name and the form of its data."""

    member: Member
    form: DataForm
    position: int | None
    """The client's position in a simulation."""


@dataclass(frozen=True)
class RoundLog:
    """The network's part in the record of one round."""

    left_out: list[dict[str, str]] = field(default_factory=list)
    """The clients that were left out: client, stage, reason."""
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes down to and up from each client."""


class Exchange:
    """Sends requests to nodes, by their clients' names, and collects the replies."""

    def __init__(self, grid: Grid, settings: NetworkSettings, say: Callable[[str], None] = print) -> None:
        self.grid, self.settings, self.say = grid, settings, say
        self.simulated = type(grid).__name__ == "InMemoryGrid"
        self.known: dict[str, KnownClient] = {}
        """The clients that have introduced themselves, by name."""
        self._logs: dict[int, RoundLog] = {0: RoundLog()}
        self._log = self._logs[0]
        self._nodes: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._strangers: dict[int, Any] = {}
        self._refused: dict[int, Refusal] = {}
        self._unwilling: dict[str, Refusal] = {}
        """Clients whose nodes refused a message by their policy."""

    def connected(self) -> set[str]:
        """Return the names of the clients whose nodes are connected, and ask new nodes for their client's name."""
        online = {int(node.node_id): node for node in self.grid.get_nodes()}
        # A node that comes back may have been corrected.
        self._refused = {node: own for node, own in self._refused.items() if node in online}
        known = {*self._strangers, *self._nodes.values(), *self._refused}
        self._send_hello([node for node in online if node not in known], online)
        self._pull_hellos()
        return {name for name, node in self._nodes.items() if node in online}

    def _send_hello(self, nodes: list[int], online: Mapping[int, Any]) -> None:
        if not nodes:
            return
        messages = [Message(RecordDict(), node, HELLO, ttl=self.settings.wait) for node in nodes]
        for node, identity in zip(nodes, self.grid.push_messages(messages), strict=True):
            self._strangers[node] = online[node]
            if identity is not None:
                self._asked[str(identity)] = node

    def _pull_hellos(self) -> None:
        if not self._asked:
            return
        for reply in self.grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            info = self._strangers.pop(node)
            try:
                self._accept(node, info, reply)
            except (BadReplyError, DataError) as error:
                registered = str(getattr(info, "name", "") or "") if error.code == "node-error" else ""
                who = registered or f"node {node}"
                self._refused[node] = Refusal(who, str(error), by_policy(error))
                self.say(f"{who} does not take part: {brief(str(error))}")
                self._log.left_out.append({"client": who, "stage": "hello", "reason": str(error)})

    def _accept(self, node: int, info: Any, reply: Message) -> None:
        """Note a node's client; raise BadReplyError if the node may not stand for it."""
        about = _read_hello(reply)
        name, registered = about.member.name, str(getattr(info, "name", "") or "")
        if not registered and not self.settings.insecure and not self.simulated:
            raise BadReplyError(
                f"it states the name {name!r}, but its key is not registered. Register it with `flwr supernode "
                "register KEY.pub --name NAME`, or set flower.insecure=true",
                code="key-unregistered",
                client=name,
            )
        if registered and registered != name:
            raise BadReplyError(
                f"it states the name {name!r}, but its key is registered as {registered!r}",
                code="key-mismatch",
                client=name,
                registered=registered,
            )
        key = hashlib.sha256(bytes(info.public_key)).hexdigest()[:16] if registered else ""
        online = {int(other.node_id) for other in self.grid.get_nodes()}
        before = self._nodes.get(name)
        if before is not None and before != node and before in online and registered:
            raise BadReplyError(f"another node is connected as {name!r}", code="name-taken", client=name)
        self._nodes[name] = node
        member = Member(**{**vars(about.member), "key": key})
        self.known[name] = KnownClient(member=member, form=about.form, position=about.position)

    def start_round(self, round: int) -> None:
        """Begin the log of a round, and drop the logs of earlier rounds."""
        if round not in self._logs:
            self._logs = {round: RoundLog()}
        self._log = self._logs[round]

    def has_begun(self, round: int) -> bool:
        """Return whether a round's log has begun, and no later one's."""
        return round in self._logs

    def log(self, round: int) -> RoundLog:
        """Return the log of a round; 0 is the time before the first round."""
        return self._logs.get(round, RoundLog())

    def ask(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        check: Callable[[str, RecordDict], Answer],
        *,
        round: int,
        stage: str,
    ) -> dict[str, Answer]:
        """Send each client its message and return the replies, read by ``check``, by client name."""
        return dict(self.send(kind, contents, check, round=round, stage=stage))

    def send(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        check: Callable[[str, RecordDict], Answer],
        *,
        round: int,
        stage: str,
    ) -> Iterator[tuple[str, Answer]]:
        """Send each client its message, and return an iterator over names and checked replies as they arrive."""
        online = self.connected()
        for name in contents:
            if name not in online:
                self.leave_out(name, stage, "its node is not connected")
        names = [name for name in contents if name in online]
        # A message lives a little longer than the deadline, so that the server, not Flower, reports a missing reply.
        life = self.settings.deadline + LOOK
        known: Known = {}
        packed = ((name, folded(contents[name], known)) for name in names)
        messages = [Message(own, self._nodes[n], kind, ttl=life, group_id=str(round)) for n, own in packed]
        waiting: dict[str, str] = {}
        for name, identity in zip(names, self.grid.push_messages(messages) if names else [], strict=True):
            if identity is None:
                self.leave_out(name, stage, "the message could not be sent")
                continue
            waiting[str(identity)] = name
            self._count(name, "down", num_bytes(contents[name]))
        sent = {name: num_bytes(contents[name]) for name in names}
        return self._answers(waiting, sent, check, stage)

    def _answers(
        self, waiting: dict[str, str], sent: Mapping[str, int], check: Callable[[str, RecordDict], Answer], stage: str
    ) -> Iterator[tuple[str, Answer]]:
        for name, reply in self._replies(waiting, stage):
            try:
                answer = self._read(name, reply, sent[name], check)
            except BadReplyError as error:
                self.leave_out(name, stage, str(error))
                if by_policy(error):
                    self._unwilling[name] = Refusal(name, str(error), True)
                continue
            yield name, answer

    def _replies(self, waiting: dict[str, str], stage: str) -> Iterable[tuple[str, Message]]:
        began = looked = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    yield name, reply
            passed = time.monotonic() - began
            if not waiting:
                return
            if passed > self.settings.deadline:
                for name in waiting.values():
                    self.leave_out(name, stage, f"no reply within {self.settings.deadline:g} seconds")
                return
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                online = self.connected()
                for identity, name in list(waiting.items()):
                    if name not in online:
                        del waiting[identity]
                        self.leave_out(name, stage, "its node was disconnected before it replied")
            time.sleep(POLL)

    def _read(self, name: str, reply: Message, sent: int, check: Callable[[str, RecordDict], Answer]) -> Answer:
        content = _content(reply, sent)
        self._count(name, "up", num_bytes(content))
        try:
            return check(name, content)
        except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise BadReplyError(f"the reply cannot be read: {error!r}", code="reply-unreadable") from error

    def leave_out(self, name: str, stage: str, reason: str) -> None:
        """Log that a client is left out."""
        self._log.left_out.append({"client": name, "stage": stage, "reason": reason})
        self.say(f"left out {name} ({stage}): {reason}")

    def _count(self, name: str, way: str, size: int) -> None:
        entry = self._log.bytes.setdefault(name, {"down": 0, "up": 0})
        entry[way] += size

    def check_allowed(self, names: Iterable[str]) -> None:
        """Raise UsageError if one of these clients, of whom all must answer, refused a message by its node's policy."""
        if found := [self._unwilling[name] for name in names if name in self._unwilling]:
            raise not_allowed(found)

    def _all_refuse(self) -> list[Refusal]:
        """Return the nodes that are connected, if every one of them refuses the run by its policy."""
        refused = list(self._refused.values())
        return refused if not self._strangers and all(own.by_policy for own in refused) else []

    def wait_for(self, enough: Callable[[set[str]], bool], what: str) -> set[str]:
        """Wait until enough clients are connected and return them.

        Raise UsageError after ``flower.wait`` seconds, or once all nodes that are there refuse the run by their policy.
        """
        began, reported = time.monotonic(), 0.0
        quiet, before = began, list[Refusal]()
        while True:
            online = self.connected()
            if enough(online):
                return online
            refused = [] if online else self._all_refuse()
            if refused != before:
                quiet, before = time.monotonic(), refused
            # Waiting would not help: a node is asked again only after it has come back.
            if refused and (enough({own.name for own in refused}) or time.monotonic() - quiet > QUIET):
                raise not_allowed(refused)
            passed = time.monotonic() - began
            if passed > self.settings.wait:
                raise UsageError(
                    f"waited {self.settings.wait:g} seconds for {what}; connected: {listed(online)}. Start the nodes, "
                    "or change flower.clients, flower.minimum or flower.wait. Then run again: the run goes on.",
                    code="clients-missing",
                    seconds=self.settings.wait,
                    connected=sorted(online),
                )
            if passed - reported > 30:
                reported = passed
                others = (
                    f"; not taking part: {listed(own.name for own in self._refused.values())}" if self._refused else ""
                )
                self.say(f"waiting for {what}; connected: {listed(online)}{others}")
            time.sleep(POLL)


def _content(reply: Message, sent: int) -> RecordDict:
    """Return what a reply holds; raise BadReplyError if it is an error, too large or not to be read."""
    raise_node_error(reply)
    check_size(reply.content, sent)
    try:
        return unfolded(reply.content)
    except (OSError, TypeError, ValueError) as error:
        raise BadReplyError(f"the reply cannot be read: {error!r}", code="reply-unreadable") from error


def _read_hello(reply: Message) -> KnownClient:
    content = _content(reply, 0)
    try:
        about = values(content, ABOUT)
        name = str(about["name"])
        if not name.strip() or len(name) > 200 or not name.isprintable():
            raise BadReplyError(
                f"a client's name must be 1 to 200 printable characters, got {name!r}", code="client-name", got=name
            )
        member = Member(
            name=name,
            num_train=int(about["num_train"]),
            num_test=int(about["num_test"]),
            held_out=bool(about["held_out"]),
            domain=str(about["domain"])[:LONGEST_NAME] or None,
        )
        form, position = DataForm.from_values(about), int(about["position"])
        # Sums are told once; rows that came or went since are not in them.
        rows = 0 if member.held_out else int(about.get("num_summed", member.num_train))
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise BadReplyError(f"its introduction cannot be read: {error!r}", code="reply-unreadable") from error
    if not 1 <= member.num_train <= MOST_EXAMPLES or not 0 <= member.num_test <= MOST_EXAMPLES:
        raise BadReplyError(
            f"its counts are out of range: {member.num_train} training and {member.num_test} test examples",
            code="out-of-range",
            num_train=member.num_train,
            num_test=member.num_test,
        )
    if form.preparation is not None:
        raise BadReplyError("a node may not say how others' tables are read", code="wrong-value", got="preparation")
    if not member.held_out and not 1 <= rows <= MOST_EXAMPLES:
        raise BadReplyError(
            f"the sums of its columns are said to be of {rows} rows", code="out-of-range", name="num_summed", got=rows
        )
    if form.sums is not None and bool((form.sums.count + form.sums.missing != rows).any()):
        raise BadReplyError(f"the sums of its columns are not of {rows} rows", code="wrong-value", wanted=rows)
    return KnownClient(member=member, form=form, position=None if position < 0 else position)
