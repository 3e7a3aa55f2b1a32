"""What all parts that remember on the server share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedatlas.errors import expect_settings
from fedatlas.parts.types import Roster, Tensors

if TYPE_CHECKING:
    from fedatlas.parts.context import ClientData


class ServerPart:
    """A part that remembers on the server. Subclasses are frozen dataclasses; what they remember is explicit."""

    name: ClassVar[str]
    discloses: ClassVar[tuple[str, ...]] = ()
    """What leaves the client beyond the model's change, one line each."""

    def __post_init__(self) -> None:
        expect_settings(self)

    def introduce(self, data: ClientData) -> Tensors:
        """Return what the server must know of a client before the first round; sent once."""
        return {}

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return the memory before the first round."""
        return {}
