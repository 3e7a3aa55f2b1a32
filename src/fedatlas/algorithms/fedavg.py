"""FedAvg. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

client: w_k <- local steps from w^t on cross-entropy
server: w^{t+1} = sum_{k in C} (n_k / sum_C n) w_k
"""

from fedatlas.algorithms.registry import recipe
from fedatlas.parts.algorithm import Algorithm


@recipe(paper="McMahan et al. 2017")
def fedavg() -> Algorithm:
    """One model for all: clients train it, and the server averages what they trained, by number of examples."""
    return Algorithm(name="fedavg")
