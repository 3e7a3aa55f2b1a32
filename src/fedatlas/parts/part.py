"""What all parts that remember on the server share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedatlas.parts.checks import check_fields
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.types import Roster, Tensors

if TYPE_CHECKING:
    from fedatlas.data.federation import Federation
    from fedatlas.parts.context import ClientData


class ServerPart:
    """A part that remembers on the server. Subclasses are frozen dataclasses; their memory is explicit."""

    name: ClassVar[str]
    discloses: ClassVar[tuple[Disclosure, ...]] = ()
    """What leaves the client beyond the model's change."""

    needs_classes: ClassVar[bool] = False
    """Whether each example must have one class."""
    reads_uploads: ClassVar[bool] = False
    """Whether a server rule, a sampler or a sharing looks at single clients' changes."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check_clients(self, federation: Federation) -> list[str]:
        """Return remarks about the clients, to warn of before the first round; raise if they cannot be used."""
        return []

    def introduce(self, data: ClientData) -> Tensors:
        """Return the tensors that the server needs from a client before the first round; sent once."""
        return {}

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return the memory before the first round."""
        return {}


def describe_part(part: Any) -> dict[str, Any]:
    """Return the type and the settings of a dataclass as plain values."""
    return {"part": type(part).__name__, **{f.name: plain(getattr(part, f.name)) for f in fields(part) if f.repr}}


def plain(value: Any) -> Any:
    """Return a setting as a plain value that JSON can hold."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if not isinstance(value, type) and callable(describe := getattr(value, "describe", None)):
        return describe()  # an atlas is too large to write down
    if is_dataclass(value) and not isinstance(value, type):
        return describe_part(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", None) or repr(value)
