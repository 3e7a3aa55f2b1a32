"""CCT-7/3x1: Hassani et al., "Escaping the Big Data Paradigm with Compact Transformers", 2021.

A 3x3 convolution makes the tokens, seven encoder layers mix them, and a learned weighting pools them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.models.classifier import Classifier, InputForm, attention_kernel, dropout, require_probability
from fedatlas.models.registry import model

DIMENSION = 256
NUM_HEADS = 4
NUM_LAYERS = 7
MLP_RATIO = 2


class Attention(nn.Module):
    """Self-attention over (B, tokens, dimension)."""

    def __init__(self, attention_dropout: float, p: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIMENSION, 3 * DIMENSION, bias=False)
        self.projection = nn.Linear(DIMENSION, DIMENSION)
        self.dropout = dropout(p)
        self.attention_dropout = attention_dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mixed tokens."""
        batch, length, _ = tokens.shape
        joint = self.qkv(tokens).reshape(batch, length, 3, NUM_HEADS, DIMENSION // NUM_HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = joint.unbind(0)
        drop = self.attention_dropout if self.training else 0.0
        with attention_kernel():
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=drop)
        merged = mixed.transpose(1, 2).reshape(batch, length, DIMENSION)
        projected: Tensor = self.dropout(self.projection(merged))
        return projected


class StochasticDepth(nn.Module):
    """Drops a whole branch for an example with probability p, and scales the ones that stay by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, branch: Tensor) -> Tensor:
        """Return the branch, zero for the examples that are dropped."""
        if self.p == 0:
            return branch
        return branch * F.dropout(torch.ones_like(branch[:, :1, :1]), self.p, self.training)


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each with a shortcut."""

    def __init__(self, attention_dropout: float, p: float, depth: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIMENSION)
        self.attention = Attention(attention_dropout, p)
        self.norm2 = nn.LayerNorm(DIMENSION)
        self.linear1 = nn.Linear(DIMENSION, MLP_RATIO * DIMENSION)
        self.linear2 = nn.Linear(MLP_RATIO * DIMENSION, DIMENSION)
        self.dropout1 = dropout(p)
        self.dropout2 = dropout(p)
        self.depth = StochasticDepth(depth)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the next layer's tokens."""
        x = tokens + self.depth(self.attention(self.norm1(tokens)))
        # As in the authors' code, the second norm stands before the shortcut's fork, not inside the branch.
        x = self.norm2(x)
        branch = self.dropout2(self.linear2(self.dropout1(F.gelu(self.linear1(x)))))
        y: Tensor = x + self.depth(branch)
        return y


class CompactTransformer(Classifier):
    """A compact convolutional transformer; the features are the pooled tokens."""

    def __init__(
        self, image: tuple[int, int, int], num_classes: int, p: float, attention_dropout: float, depth: float
    ) -> None:
        super().__init__()
        channels, height, width = image
        length = ((height + 1) // 2) * ((width + 1) // 2)
        self.tokenizer = nn.Conv2d(channels, DIMENSION, 3, 1, 1, bias=False)
        self.positions = nn.Parameter(torch.empty(1, length, DIMENSION))
        self.dropout = dropout(p)
        rates = [depth * layer / (NUM_LAYERS - 1) for layer in range(NUM_LAYERS)]
        self.layers = nn.ModuleList(EncoderLayer(attention_dropout, p, rate) for rate in rates)
        self.norm = nn.LayerNorm(DIMENSION)
        self.pool = nn.Linear(DIMENSION, 1)
        self.head = nn.Linear(DIMENSION, num_classes)
        nn.init.kaiming_normal_(self.tokenizer.weight)
        nn.init.trunc_normal_(self.positions, std=0.2)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the pooled tokens."""
        maps = F.max_pool2d(F.relu(self.tokenizer(inputs)), 3, 2, 1)
        x = self.dropout(maps.flatten(2).transpose(1, 2) + self.positions)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        weights = self.pool(x).softmax(1)
        pooled: Tensor = (weights * x).sum(1)
        return pooled


@model(reads=("image",))
def cct_7_3x1(
    num_classes: int,
    form: InputForm,
    *,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    stochastic_depth: float = 0.0,
) -> CompactTransformer:
    """Compact convolutional transformer of seven layers, on images.

    The authors' code has ``attention_dropout=0.1`` and ``stochastic_depth=0.1``.
    """
    image = form.image("cct_7_3x1")
    require_probability(
        "cct_7_3x1", dropout=dropout, attention_dropout=attention_dropout, stochastic_depth=stochastic_depth
    )
    return CompactTransformer(image, num_classes, dropout, attention_dropout, stochastic_depth)
