import torch

from fedatlas.models import build_model
from fedatlas.models.char_lstm import CharacterLstm, plain_lstm


def test_char_lstm_has_leaf_s_count() -> None:
    """Embedding 80 * 8; layers 4 * 256 * (8 + 256) and 4 * 256 * 512, each with 2 * 4 * 256; head 256 * 80 + 80."""
    model = build_model("char_lstm", num_classes=80, input_shape=(80,), vocabulary_size=80)
    expected = 640 + (270_336 + 2_048) + (524_288 + 2_048) + 20_560
    assert expected == 819_920
    assert sum(p.numel() for p in model.parameters()) == expected


def test_the_plain_lstm_is_the_fused_one() -> None:
    lstm = torch.nn.LSTM(3, 5, 2, batch_first=True)
    inputs = torch.randn(4, 6, 3)
    torch.testing.assert_close(plain_lstm(lstm, inputs), lstm(inputs)[0])


def test_features_come_from_the_last_token() -> None:
    model = build_model("char_lstm", num_classes=3, input_shape=(4,), vocabulary_size=5, hidden=6, layers=1)
    assert isinstance(model, CharacterLstm)
    tokens = torch.tensor([[0, 1, 2, 3]])
    changed_last, changed_first = torch.tensor([[0, 1, 2, 4]]), torch.tensor([[4, 1, 2, 3]])
    states = model.lstm(model.embedding(tokens))[0]
    torch.testing.assert_close(model(tokens)[0], states[:, 3])
    assert not torch.allclose(model(tokens)[0], model(changed_last)[0])
    assert not torch.allclose(model(tokens)[0], model(changed_first)[0])
