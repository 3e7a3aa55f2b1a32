from pathlib import Path

import pytest

import fedatlas
from fedatlas.client import Stopwatch
from fedatlas.runs.profile import CLIENT_STAGES, SERVER, STAGES, profile_rows
from tiny import Norms, blob_federation, same_bits


def test_a_stopwatch_counts_laps_to_their_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock shows 1, 3, 4 and 9: two seconds for a, then one for b, then five more for a."""
    times = iter([1.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch()
    for stage in ("a", "b", "a"):
        watch.lap(stage)
    assert watch.taken() == {"a": 7.0, "b": 1.0}
    assert watch.taken() == {}


def test_a_profile_is_the_mean_round_without_the_first() -> None:
    """Rounds of 4 and 6 seconds, of which two workers trained 6 and 10: 4 seconds each, and waited 0.5 of the 4.5."""
    timings = [
        {"stages": {"training": 100.0}},
        {"stages": {"training": 4.0}, "clients": {"data": 2.0, "gradients": 4.0}},
        {"stages": {"training": 5.0, "aggregation": 1.0}, "clients": {"data": 2.0, "gradients": 8.0}},
    ]
    rows = {row.stage.strip(): (row.seconds, row.share) for row in profile_rows(timings, workers=2)}
    assert rows["training"] == (4.5, 0.9)
    assert rows["data"] == (1.0, 0.2)
    assert rows["gradients"] == (3.0, 0.6)
    assert rows["waiting"] == (0.5, 0.1)
    assert rows["server's side"] == (0.5, 0.1)
    assert rows["round"] == (5.0, 1.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_measuring_changes_no_bit_and_accounts_for_the_round(tmp_path: Path, workers: int) -> None:
    def run(name: str, profile: bool) -> fedatlas.Run:
        algorithm = fedatlas.algorithms.moon()
        return fedatlas.train(
            blob_federation(),
            algorithm,
            fedatlas.Settings(profile=profile),
            model=Norms,
            rounds=3,
            workers=workers,
            folder=tmp_path / name,
        )

    plain, measured = run("plain", False), run("measured", True)
    assert same_bits(plain.parameters(), measured.parameters())
    assert plain.rounds == measured.rounds
    assert all(entry["clients"].keys() == CLIENT_STAGES.keys() for entry in measured.timings)
    assert all(entry["stages"].keys() <= STAGES.keys() and "clients" not in entry for entry in plain.timings)
    rows = {row.stage.strip(): row for row in measured.profile()}
    assert rows["round"].seconds == pytest.approx(sum(rows[s].seconds for s in STAGES if s in rows))
    assert 0 < rows["server's side"].seconds == pytest.approx(sum(rows[s].seconds for s in SERVER if s in rows))
    inside = sum(rows[stage].seconds for stage in (*CLIENT_STAGES, "waiting"))
    assert inside == pytest.approx(rows["training"].seconds, rel=0.2)
