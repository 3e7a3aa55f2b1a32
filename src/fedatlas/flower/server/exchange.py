"""The server's conversation with nodes: who is there under which name, questions with a deadline, and their answers.

Whoever does not answer, or not as wanted, is left out and written down with the reason; the round goes on.
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
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.messages import ABOUT, BadReplyError, num_bytes, values

HELLO = "query.hello"
POLL = 0.25
"""Seconds between two looks for answers."""
LOOK = 5.0
"""Seconds between two looks at who is still there."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """How the server waits, from a config's section [flower]."""

    clients: int | list[str] | None = None
    """How many clients the run waits for before it begins, or their names in the order of the roster."""
    minimum: int | float = 1
    """Answers without which a round changes nothing, a number or a fraction of the cohort."""
    deadline: float = 600.0
    """Seconds that clients have for an answer."""
    wait: float = 600.0
    """Seconds that the server waits for clients before it begins, or when too few are there."""
    insecure: bool = False
    """Accept nodes whose name no registered key stands for."""
    adapt: dict[str, Any] = field(default_factory=dict)
    """How a newcomer adapts: options of ``Adapter.adapt``, such as rounds and steps."""

    def __post_init__(self) -> None:
        for title in ("deadline", "wait"):
            if not getattr(self, title) > 0:
                raise UsageError(f"flower.{title} must be above 0 seconds, got {getattr(self, title)}.")
        fraction = isinstance(self.minimum, float)
        if not (0 < self.minimum <= 1 if fraction else self.minimum >= 1):
            raise UsageError(f"flower.minimum must be at least 1 answer, or a fraction in (0, 1]; got {self.minimum}.")

    def least(self, cohort: int) -> int:
        """Return how many answers a cohort of this size must give."""
        wanted = self.minimum if isinstance(self.minimum, int) else max(1, round(self.minimum * cohort))
        return min(wanted, cohort)


@dataclass(frozen=True, kw_only=True)
class Introduced:
    """A client that said who it is."""

    member: Member
    form: DataForm
    position: int | None
    """Its position in a simulation."""


@dataclass(frozen=True)
class Page:
    """What is written down of one round."""

    left_out: list[dict[str, str]] = field(default_factory=list)
    """The clients that were left out: client, stage, reason."""
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes down to and up from each client."""


class Conversation:
    """Asks nodes, by their clients' names, and collects their answers."""

    def __init__(self, grid: Grid, settings: NetworkSettings, say: Callable[[str], None] = print) -> None:
        self.grid, self.settings, self.say = grid, settings, say
        self.simulated = type(grid).__name__ == "InMemoryGrid"
        self.known: dict[str, Introduced] = {}
        """The clients that said who they are, by name."""
        self._pages: dict[int, Page] = {0: Page()}
        self._page = self._pages[0]
        self._nodes: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._strangers: dict[int, Any] = {}
        self._refused: set[int] = set()

    def look(self) -> set[str]:
        """Return the names of the clients whose nodes are connected, and ask nodes that came anew who they are."""
        online = {int(node.node_id): node for node in self.grid.get_nodes()}
        self._refused &= online.keys()  # one that went and came back may say something else now
        known = {*self._strangers, *self._nodes.values(), *self._refused}
        self._send_hello([node for node in online if node not in known], online)
        self._hear_hellos()
        return {name for name, node in self._nodes.items() if node in online}

    def _send_hello(self, nodes: list[int], online: Mapping[int, Any]) -> None:
        if not nodes:
            return
        messages = [Message(RecordDict(), node, HELLO, ttl=self.settings.wait) for node in nodes]
        for node, identity in zip(nodes, self.grid.push_messages(messages), strict=True):
            self._strangers[node] = online[node]
            if identity is not None:
                self._asked[str(identity)] = node

    def _hear_hellos(self) -> None:
        if not self._asked:
            return
        for reply in self.grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            info = self._strangers.pop(node)
            try:
                self._welcome(node, info, reply)
            except (BadReplyError, DataError) as error:
                self._refused.add(node)
                self.say(f"refused node {node}: {error}")
                self._page.left_out.append({"client": f"node {node}", "stage": "hello", "reason": str(error)})

    def _welcome(self, node: int, info: Any, reply: Message) -> None:
        about = _read_hello(reply)
        name, registered = about.member.name, str(getattr(info, "name", "") or "")
        if not registered and not self.settings.insecure and not self.simulated:
            raise BadReplyError(
                f"it says it is {name!r}, but its key is registered under no name. Register it with `flwr supernode "
                "register KEY.pub --name NAME`, or set flower.insecure=true"
            )
        if registered and registered != name:
            raise BadReplyError(f"it says it is {name!r}, but its key is registered as {registered!r}")
        key = hashlib.sha256(bytes(info.public_key)).hexdigest()[:16] if registered else ""
        online = {int(other.node_id) for other in self.grid.get_nodes()}
        before = self._nodes.get(name)
        if before is not None and before != node and before in online and registered:
            raise BadReplyError(f"another node is connected as {name!r}")
        self._nodes[name] = node
        member = Member(**{**vars(about.member), "key": key})
        self.known[name] = Introduced(member=member, form=about.form, position=about.position)

    def turn_to(self, round: int) -> None:
        """Write down what happens from here on under a round; the pages of earlier rounds are dropped."""
        if round not in self._pages:
            self._pages = {round: Page()}
        self._page = self._pages[round]

    def page(self, round: int) -> Page:
        """Return what was written down under a round; 0 is the time before the first."""
        return self._pages.get(round, Page())

    def ask(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        check: Callable[[str, RecordDict], Answer],
        *,
        round: int,
        stage: str,
    ) -> dict[str, Answer]:
        """Send each client its message and return what ``check`` makes of the answers, by name."""
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
        """Send each client its message, and return an iterator over names and checked answers as they arrive."""
        online = self.look()
        for name in contents:
            if name not in online:
                self.drop(name, stage, "its node is not connected")
        names = [name for name in contents if name in online]
        # Beyond the deadline, so that the server says that no answer came; a node gets no message that is older.
        life = self.settings.deadline + LOOK
        messages = [Message(contents[n], self._nodes[n], kind, ttl=life, group_id=str(round)) for n in names]
        waiting: dict[str, str] = {}
        for name, identity in zip(names, self.grid.push_messages(messages) if names else [], strict=True):
            if identity is None:
                self.drop(name, stage, "the message could not be sent")
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
                self.drop(name, stage, str(error))
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
                    self.drop(name, stage, f"no answer within {self.settings.deadline:g} seconds")
                return
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                online = self.look()
                for identity, name in list(waiting.items()):
                    if name not in online:
                        del waiting[identity]
                        self.drop(name, stage, "its node was disconnected before it answered")
            time.sleep(POLL)

    def _read(self, name: str, reply: Message, sent: int, check: Callable[[str, RecordDict], Answer]) -> Answer:
        if reply.has_error():
            raise BadReplyError(f"the node reports: {' '.join(str(reply.error.reason).split())}")
        self._count(name, "up", num_bytes(reply.content))
        check_size(reply.content, sent)
        try:
            return check(name, reply.content)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise BadReplyError(f"it cannot be read: {error!r}") from error

    def drop(self, name: str, stage: str, reason: str) -> None:
        """Write down that a client is left out."""
        self._page.left_out.append({"client": name, "stage": stage, "reason": reason})
        self.say(f"left out {name} ({stage}): {reason}")

    def _count(self, name: str, way: str, size: int) -> None:
        entry = self._page.bytes.setdefault(name, {"down": 0, "up": 0})
        entry[way] += size

    def wait_for(self, enough: Callable[[set[str]], bool], what: str) -> set[str]:
        """Wait until enough clients are there and return who is; give up when the time to wait is over."""
        began, told = time.monotonic(), 0.0
        while True:
            online = self.look()
            if enough(online):
                return online
            passed = time.monotonic() - began
            if passed > self.settings.wait:
                there = ", ".join(sorted(online)) or "nobody"
                raise UsageError(
                    f"waited {self.settings.wait:g} seconds for {what}; there is {there}. Start the nodes, or change "
                    "flower.clients, flower.minimum or flower.wait, and run again: it goes on where it was."
                )
            if passed - told > 30:
                told = passed
                self.say(f"waiting for {what}; there is {', '.join(sorted(online)) or 'nobody'}")
            time.sleep(POLL)


def _read_hello(reply: Message) -> Introduced:
    if reply.has_error():
        raise BadReplyError(f"the node reports: {' '.join(str(reply.error.reason).split())}")
    try:
        about = values(reply.content, ABOUT)
        name = str(about["name"])
        if not name.strip() or len(name) > 200 or not name.isprintable():
            raise BadReplyError(f"{name!r} is no name for a client")
        member = Member(
            name=name,
            num_train=int(about["num_train"]),
            num_test=int(about["num_test"]),
            held_out=bool(about["held_out"]),
            domain=str(about["domain"]) or None,
        )
        form, position = DataForm.from_values(about), int(about["position"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadReplyError(f"what it says of itself cannot be read: {error!r}") from error
    if not 1 <= member.num_train < 1 << 50 or not 0 <= member.num_test < 1 << 50:
        raise BadReplyError(f"it says it has {member.num_train} examples to train on and {member.num_test} for test")
    return Introduced(member=member, form=form, position=None if position < 0 else position)
