"""A grid without a network: messages are packed as they would travel, and go to a ClientApp in this process.

For tests of your own, and for counting what an algorithm sends. It reaches into flwr (1.41 and 1.42) where that has
no open door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedatlas.errors import UsageError

Tamper = Callable[[str, Message, RecordDict], RecordDict | None]


class InProcessGrid(Grid):
    """Nodes are contexts in this process; ``tamper`` may change an answer on its way (None: it never arrives)."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[str, Mapping[str, Any]],
        *,
        registered: bool = True,
        tamper: Tamper | None = None,
        task: str = "train",
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # else Flower's processes set it
        self.app, self.tamper = app, tamper
        self.names = {i + 1: name for i, name in enumerate(nodes)}
        self.contexts = {
            i: Context(1, i, dict(nodes[name]), RecordDict(), {"task": task}) for i, name in self.names.items()
        }
        self.registered = {i: name if registered else "" for i, name in self.names.items()}
        self.online = set(self.names)
        self.replies: dict[str, Message] = {}
        self.kinds: list[str] = []
        """The types of all messages that were sent."""

    def set_run(self, run: Run) -> None:
        """There is one run only."""

    @property
    def run(self) -> Run:
        """There is no run at a SuperLink."""
        raise UsageError("a grid in one process has no run.", code="no-run")

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Return a message."""
        return Message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there."""
        return sorted(self.online)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what a SuperLink would know of the nodes that are there."""
        return [
            NodeInfo(node_id=i, name=self.registered[i], public_key=f"key of {self.names[i]}".encode())
            for i in sorted(self.online)
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer at once."""
        identities = []
        for message in messages:
            identity = f"message-{len(self.kinds)}"
            identities.append(identity)
            self.kinds.append(message.metadata.message_type)
            message.metadata.__dict__["_message_id"] = identity
            message.metadata.__dict__["_src_node_id"] = 1
            reply = self._answer(message)
            if reply is not None:
                self.replies[identity] = reply
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages."""
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the answers to messages."""
        return self.pull_messages(list(self.push_messages(messages)))

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        message.content = travelled(message.content)
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # as a SuperNode reports it
            return Message(Error(0, f"{type(error)}:<'{error}'>"), reply_to=message)
        content: RecordDict | None = travelled(reply.content)
        if self.tamper is not None and content is not None:
            content = self.tamper(self.names[node], message, content)
        return None if content is None else Message(content, reply_to=message)


def travelled(content: RecordDict) -> RecordDict:
    """Return a message's content as it arrives: packed to bytes and unpacked."""
    found = inflate_object_from_contents(
        content.object_id, {key: item.deflate() for key, item in get_all_nested_objects(content).items()}
    )
    assert isinstance(found, RecordDict)
    return found
