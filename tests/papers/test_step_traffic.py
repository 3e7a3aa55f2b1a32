"""FedMix's step as a GPU takes it stays near what its maths needs."""

from papers.tools.step_traffic import steps


def test_forward_mode_moves_less_than_four_steps_of_fedavg() -> None:
    """One pass for the running statistics, one of values and change, and the way back through both: 3.6."""
    found = {title: counted.total() for title, counted in steps(width=4).items()}
    assert 2.5 < found["FedMix, forward mode (GPU)"] / found["FedAvg"] < 4
    assert found["FedMix, second derivatives (CPU)"] > found["FedMix, forward mode (GPU)"]
