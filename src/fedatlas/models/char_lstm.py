"""The next-character LSTM of LEAF's Shakespeare: an 8-wide embedding, two layers of 256, the last output."""

import torch
from torch import Tensor, nn

from fedatlas.models.classifier import Classifier, InputForm, inside_transformation, require_positive
from fedatlas.models.registry import model


class CharacterLstm(Classifier):
    """Reads tokens (B, length); the features are the top layer's output at the last token."""

    def __init__(self, vocabulary_size: int, num_classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the top layer's output at the last token."""
        x = self.embedding(inputs)
        outputs: Tensor = plain_lstm(self.lstm, x) if inside_transformation() else self.lstm(x)[0]
        return outputs[:, -1]


def plain_lstm(lstm: nn.LSTM, inputs: Tensor) -> Tensor:
    """Return what a batch-first, one-way LSTM without dropout returns, in operations that ``vmap`` knows."""
    for layer in range(lstm.num_layers):
        weights = [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        weight_inputs, weight_hidden, bias_inputs, bias_hidden = weights
        driven = nn.functional.linear(inputs, weight_inputs, bias_inputs + bias_hidden)
        hidden = cell = torch.zeros_like(driven[:, 0, : lstm.hidden_size])
        outputs = []
        for step in driven.unbind(1):
            write, keep, candidate, show = (step + nn.functional.linear(hidden, weight_hidden)).chunk(4, -1)
            cell = keep.sigmoid() * cell + write.sigmoid() * candidate.tanh()
            hidden = show.sigmoid() * cell.tanh()
            outputs.append(hidden)
        inputs = torch.stack(outputs, 1)
    return inputs


@model(reads=("tokens",))
def char_lstm(
    num_classes: int, form: InputForm, *, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> CharacterLstm:
    """LEAF's next-character LSTM, two layers of 256, on tokens.

    Inside ``vmap`` it runs step by step instead of fused.
    """
    if form.kind != "tokens":
        raise form.mismatch("char_lstm", "tokens, input_shape (length,) and a vocabulary_size")
    require_positive("char_lstm", embedding=embedding, hidden=hidden, layers=layers)
    return CharacterLstm(form.vocabulary_size, num_classes, embedding, hidden, layers)
