"""What an algorithm builds around the model: conditioned norms, a projection, an input normalisation, prompts."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from fedatlas.parts.checks import check_fields
from fedatlas.parts.part import describe_part
from fedatlas.parts.types import UsualModels


class Extension:
    """Builds a network around a model. Subclasses are frozen dataclasses of settings."""

    needs_features: ClassVar[bool] = False
    """Whether it looks at the features that a network returns beside its outputs."""
    models: ClassVar[UsualModels] = {}
    """The model that suits it, by kind of data, where not any will do."""

    def __post_init__(self) -> None:
        check_fields(self)

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model with the extension; new values come from torch's generator, which is seeded for it."""
        raise TypeError(f"{type(self).__name__} must define extend()")

    def bake(self, network: nn.Module) -> nn.Module:
        """Return a network for inference, given the extended one with a client's values in it; it may be changed."""
        return network

    def baked_options(self) -> dict[str, Any] | None:
        """Return how the baked network differs from the user's model; None if the extension stays part of it.

        The only option is ``head_norm``, see ``fedatlas.models.norms.with_head_norm``.
        """
        return None

    def client_vector(self, network: nn.Module) -> str | None:
        """Return the name of the parameter that describes a client to the network, if there is one."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain values, for the record and for comparing."""
        return describe_part(self)
