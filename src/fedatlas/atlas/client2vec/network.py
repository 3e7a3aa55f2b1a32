"""DSA-IGN, the network that splits an example's vector into the part that the label explains and the rest.

Guo, Wang, Tang, Lin: Client2Vec, section 3.2 and appendix D.2.

I = [D, D] as 32 tokens, plus a learned position;  O = encoder(I);  Z, U = the halves of O;  D~ = projection(O)

L = L_div + L_sim + L_orth + L_recon, over a batch of B examples:
L_sim   = mean_j (1 - cos(z_j, L_j))                    z encodes the label
L_orth  = ||Z U^T||_1, all B x B pairs                  u does not encode what z does
L_recon = mean (D~ - D)^2                               nothing is lost
L_div   = mean_j log sum_{k != j} exp cos(u_j, u_k)     examples differ in u
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedatlas.atlas.client2vec.settings import LOSSES, IndexSettings, Orthogonality
from fedatlas.errors import DataError, UsageError
from fedatlas.runs.files import atomic_write
from fedatlas.seeds import derive, generator

TOKENS = 32
"""Half of them make Z, half U."""
_FORM = "fedatlas.dsa_ign/1"


class Halves(NamedTuple):
    """The two halves of the encoder's output for a batch, each (B, width)."""

    data: Tensor
    """Z, which is drawn to the label's vector."""
    feature: Tensor
    """U, each example's feature index."""


class DSAIGN(nn.Module):
    """The network. ``forward`` returns the encoder's output O, (B, 2 width), and D~, (B, width).

    The width is that of the wider of D and L, rounded up to a multiple of 16, so that each half is 16 whole tokens; a
    narrower vector is lifted to it, which keeps every angle (``inputs``, ``targets``).
    """

    def __init__(
        self, example_width: int, class_width: int, settings: IndexSettings | None = None, *, seed: int = 0
    ) -> None:
        super().__init__()
        settings = settings or IndexSettings()
        self.example_width, self.class_width, self.settings = example_width, class_width, settings
        self.provenance: dict[str, Any] = {}
        """How it was trained, in plain values; empty before training."""
        self.token_width = math.ceil(2 * max(example_width, class_width) / TOKENS)
        self.width = self.token_width * TOKENS // 2
        self.heads = next(h for h in range(min(settings.heads, self.token_width), 0, -1) if self.token_width % h == 0)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "dsa_ign"))
            layer = nn.TransformerEncoderLayer(
                self.token_width, self.heads, settings.feed_forward, settings.dropout, batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, settings.layers, enable_nested_tensor=False)
            self.projection: nn.Module = nn.Linear(2 * self.width, self.width)
            if settings.projection == "mlp":
                hidden = nn.Linear(2 * self.width, self.width)
                self.projection = nn.Sequential(hidden, nn.ReLU(), nn.Linear(self.width, self.width))
            # Tokens k and k + 16 are equal and an encoder is blind to order: without positions Z = U at any weights.
            self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, self.token_width)) if settings.pos_embed else None

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return O and D~ for a batch of inputs, (B, width)."""
        tokens = torch.cat([inputs, inputs], 1).view(-1, TOKENS, self.token_width)
        if self.positions is not None:
            tokens = tokens + self.positions
        with sdpa_kernel(SDPBackend.MATH):  # a GPU's fused kernels need not repeat their bits
            output = self.encoder(tokens).reshape(len(inputs), 2 * self.width)
        return output, self.projection(output)

    def halves(self, output: Tensor) -> Halves:
        """Return Z and U of the encoder's output."""
        return Halves(*output.split(self.width, 1))

    def inputs(self, examples: Tensor) -> Tensor:
        """Return the vectors of examples as the network reads them."""
        return self._read("examples", examples, self.example_width)

    def targets(self, classes: Tensor) -> Tensor:
        """Return the vectors of classes as the losses read them."""
        return self._read("classes", classes, self.class_width)

    def scaled(self, vectors: Tensor) -> Tensor:
        """Return the vectors as they are, or scaled to length 1 if the settings ask for it."""
        return F.normalize(vectors, dim=1) if self.settings.normalize else vectors

    def _read(self, what: str, vectors: Tensor, width: int) -> Tensor:
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise UsageError(
                f"DSAIGN reads {what} of width {width}, got shape {tuple(vectors.shape)}. "
                "Use the embeddings of the encoder that it was trained with.",
                code="wrong-shape",
                got=tuple(vectors.shape),
                what=what,
                wanted=width,
            )
        vectors = self.scaled(vectors.float())
        return vectors if width == self.width else vectors @ _lifting(width, self.width).to(vectors.device)

    def describe(self) -> dict[str, Any]:
        """Return the form of the network and a hash of its parameters, as plain values."""
        digest = hashlib.sha256()
        for name, tensor in self.state_dict().items():
            digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
        return {
            "width": self.width,
            "tokens": TOKENS,
            "token_width": self.token_width,
            "heads": self.heads,
            "parameters": sum(p.numel() for p in self.parameters()),
            "sha256": digest.hexdigest()[:16],
        }

    def save(self, path: str | Path) -> None:
        """Write the network to one safetensors file, whole or not at all, for clients that come later."""
        about = {
            "example_width": self.example_width,
            "class_width": self.class_width,
            "settings": asdict(self.settings),
            "provenance": self.provenance,
            "sha256": self.describe()["sha256"],
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(Path(path), save_tensors(tensors, {_FORM: json.dumps(about)}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return a saved network; raise DataError if the file was cut short or altered."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})[_FORM])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"there is no index network at {path} ({error!r}). Train one and save it there.",
                code="file-missing",
                path=str(path),
            ) from error
        network = cls(about["example_width"], about["class_width"], IndexSettings(**about["settings"]))
        network.load_state_dict(tensors)
        network.provenance = about["provenance"]
        if network.describe()["sha256"] != about["sha256"]:
            raise DataError(
                f"the index network {path} was altered: its checksum differs. Restore it, or train again.",
                code="file-altered",
                path=str(path),
            )
        return network


def similarity_loss(data: Tensor, targets: Tensor) -> Tensor:
    """Return L_sim, the mean over the batch of 1 - cos(z, L)."""
    return (1 - F.cosine_similarity(data, targets, dim=1)).mean()


def orthogonality_loss(data: Tensor, feature: Tensor, mode: Orthogonality = "mean_cos") -> Tensor:
    """Return L_orth over all pairs (z_j, u_k) of the batch."""
    # The paper writes ||Z U^T||_1 without a scale. Read literally it is 10^5 beside terms of at most 6.
    if mode == "mean_cos":
        data, feature = F.normalize(data, dim=1), F.normalize(feature, dim=1)
    products = (data @ feature.T).abs()
    return products.sum() if mode == "sum_dot" else products.mean()


def diversity_loss(feature: Tensor) -> Tensor:
    """Return L_div, the mean over j of log sum_{k != j} exp cos(u_j, u_k); 0 for a batch of one."""
    if len(feature) < 2:
        return 0 * feature.sum()
    unit = F.normalize(feature, dim=1)
    own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    return (unit @ unit.T).masked_fill(own, -math.inf).logsumexp(1).mean()


def decomposition_losses(
    halves: Halves,
    restored: Tensor,
    inputs: Tensor,
    targets: Tensor,
    losses: Sequence[str] = LOSSES,
    orthogonality: Orthogonality = "mean_cos",
) -> dict[str, Tensor]:
    """Return the losses that are asked for, by name; their unweighted sum is what DSA-IGN minimises."""
    terms = {
        "div": lambda: diversity_loss(halves.feature),
        "sim": lambda: similarity_loss(halves.data, targets),
        "orth": lambda: orthogonality_loss(halves.data, halves.feature, orthogonality),
        "recon": lambda: F.mse_loss(restored, inputs),
    }
    return {name: terms[name]() for name in losses}


@cache
def _lifting(width: int, to: int) -> Tensor:
    """Return a fixed matrix (width, to) with orthonormal rows: lengths and angles stay, every token gets a share."""
    random = torch.randn(to, width, dtype=torch.float64, generator=generator(0, "lifting", width, to))
    basis: Tensor = torch.linalg.qr(random).Q
    return basis.T.float().contiguous()
