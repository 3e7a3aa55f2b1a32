import numpy as np
import pytest
import torch

from fedatlas.seeds import numpy_generator
from papers.tools.check import Tally, clean_settings, heart, inverted, measure_columns, resampled
from papers.tools.shifted_pools import Pool


def test_one_client_s_labels_are_inverted_and_no_others() -> None:
    whole = heart()
    changed = inverted(whole, 2).data.labels != whole.data.labels
    own = torch.cat([whole.clients[2].train, whole.clients[2].test])
    assert changed[own].all()
    assert int(changed.sum()) == len(own) == 123


def test_a_resampled_client_has_its_own_examples() -> None:
    whole = heart()
    drawn = resampled(whole, numpy_generator(0, "drawn"), 50)
    for before, after in zip(whole, drawn, strict=True):
        assert len(after.train) == 50
        assert {*after.train.tolist()} <= {*before.train.tolist(), *before.test.tolist()}


def test_decoys_come_after_the_usual_clients_and_are_never_spoilt() -> None:
    pool = Pool("mnist", np.zeros(0), np.zeros(0))
    setting = dict(clean_settings(pool, numpy_generator(0, "check recipes")))["decoys"]
    spoilt = setting.spoilt(2, 0.2, None)
    assert [kind.noise for kind in spoilt.kinds] == [0.2] * 2 + [0.0] * (len(setting.kinds) - 2)
    decoys = setting.kinds[setting.usual :]
    assert sum(kind.images == 30 for kind in decoys) == 3
    assert sum(kind.classes == 4 for kind in decoys) == 2
    assert sum(kind.look != "plain" for kind in decoys) == 3


def test_a_row_of_the_table_says_what_was_found() -> None:
    tally = Tally(wrong=80, found=76, named=75, federations=40, accused=1, decoys=320, decoys_accused=0)
    assert tally.line("noise") == "| noise | 76 of 80 (95 %) | 75 | 1 of 40 | 0 of 320 |"


def test_planted_codes_of_heart_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    measure_columns(range(3))
    rows = dict(line.strip("| ").split(" | ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["heart, nothing"] == "0 | 0 | 3"
    assert rows["heart, code -9"] == "3 | 0 | 3"
    assert rows["heart, factor 10"] == "3 | 0 | 3"
