"""The numbers of the Client2Vec paper: accuracies in percent, the best of 100 rounds, means over three seeds."""

from __future__ import annotations

_CASES = (
    "original",
    "FEDERATED i",
    "FEDERATED i+ii",
    "FEDERATED i+ii+iii",
    "GLOBAL i",
    "GLOBAL i+ii",
    "GLOBAL i+ii+iii",
)


def _rows(**rows: str) -> dict[str, dict[str, float]]:
    return {base: dict(zip(_CASES, map(float, row.split()), strict=True)) for base, row in rows.items()}


TABLE_1 = {
    "Shakespeare": _rows(
        FedAvg="49.93 50.33 50.28 50.51 50.30 50.38 50.40",
        FedAvgM="49.97 50.29 50.24 50.43 50.29 50.24 50.60",
        FedDyn="50.23 50.47 50.43 50.55 50.64 50.49 50.71",
        MOON="50.09 50.35 50.35 50.54 50.36 50.38 50.52",
        FedLC="49.89 50.43 50.37 50.46 50.34 50.29 50.50",
    ),
    "CIFAR-10": _rows(
        FedAvg="42.24 44.60 44.10 59.29 45.56 46.49 58.28",
        FedAvgM="42.56 45.81 45.05 63.48 46.55 46.24 69.37",
        FedDyn="37.22 39.49 39.45 69.10 39.42 39.84 70.59",
        MOON="41.12 44.28 43.79 60.26 45.20 44.85 65.55",
        FedLC="29.31 29.62 30.65 42.20 31.04 30.37 40.27",
    ),
    "DomainNet": _rows(
        FedAvg="46.31 50.78 53.83 56.43 52.37 54.67 57.43",
        FedAvgM="45.50 50.61 55.70 58.34 53.50 53.56 57.44",
        FedDyn="45.41 47.24 49.90 55.53 52.42 50.68 53.33",
        MOON="50.56 59.39 59.54 57.03 60.48 59.93 57.50",
        FedLC="45.48 50.40 51.27 57.92 54.60 56.34 57.41",
        FedIIR="49.32 48.11 50.28 52.74 57.05 53.74 51.86",
    ),
}
"""By data set, base algorithm and case."""

TABLE_2: dict[str, tuple[float | None, float | None, float | None]] = {
    "Feature average": (52.95, 31.99, 11.40),
    "Class prototypes": (44.89, 49.88, 15.41),
    "Local model weights": (None, None, 32.85),
    "Without the orthogonality loss": (38.58, 44.39, 15.32),
    "Without the text alignment": (44.91, 43.18, 54.35),
    "Without the reconstruction": (43.19, 30.86, 31.65),
    "Feature half only": (42.34, 23.57, 44.99),
    "Label half only": (45.99, 46.48, None),
    "Without orthogonality in local training": (None, None, 43.71),
    "Client2Vec": (45.56, 46.49, 58.28),
}
"""FedAvg, CIFAR-10, GLOBAL: + i, + i + ii, + i + ii + iii."""

TABLE_3 = {"Client2Vec": (632.0, 24583.0, 10817.0, 11449.0), "FedAvg": (0.0, 26224.0, 26224.0, 26224.0)}
"""DomainNet, seconds: the index, the training, the training to FedAvg's best, both of these."""

TABLE_5 = {
    "FedAvg": (42.24, (44.60, 44.21, 42.88, 42.49), (41.28, 43.10, 45.56, 43.28)),
    "FedAvgM": (42.56, (45.81, 44.22, 43.74, 43.11), (42.50, 44.80, 46.55, 44.62)),
    "MOON": (41.12, (43.86, 44.28, 43.23, 42.82), (42.15, 42.80, 44.85, 44.74)),
}
"""CIFAR-10, case i alone: original, FEDERATED and GLOBAL at tau 0.1, 0.5, 1, 2."""

TABLE_6 = {
    "FedAvg": (42.24, (59.58, 59.29), (61.55, 58.28)),
    "FedAvgM": (42.56, (61.84, 63.48), (61.12, 69.37)),
    "MOON": (41.12, (63.61, 60.26), (63.79, 65.55)),
    "FedDyn": (37.22, (80.75, 69.10), (78.01, 70.59)),
}
"""CIFAR-10, all cases: original, FEDERATED and GLOBAL at 100 and 500 epochs of the index."""

TABLE_7 = {
    "FedAvg": (42.24, (59.29, 42.76, 66.02), (48.83, 58.28, 34.86)),
    "FedAvgM": (42.56, (63.48, 70.04, 68.34), (49.77, 69.37, 35.51)),
    "MOON": (41.12, (60.25, 51.41, 59.02), (46.61, 60.53, 33.39)),
    "FedDyn": (37.22, (69.10, 79.96, 78.70), (43.87, 70.59, 69.57)),
}
"""CIFAR-10, all cases: original, FEDERATED and GLOBAL at weights 1, 5 and 10 of the local terms."""

TABLE_8 = {
    "FedAvg": (42.24, (62.22, 59.29), (63.86, 58.28)),
    "FedAvgM": (42.56, (63.89, 63.48), (61.09, 69.37)),
    "MOON": (41.12, (59.50, 60.26), (60.62, 65.55)),
}
"""CIFAR-10: original, FEDERATED and GLOBAL with case iii alone and with all cases."""

TABLE_9 = {
    "mobilenet_v2": {
        "FedAvg": (46.31, 56.43, 57.43),
        "FedAvgM": (45.50, 58.34, 57.44),
        "FedDyn": (45.41, 51.49, 53.33),
        "MOON": (50.56, 57.03, 57.50),
    },
    "resnet18": {
        "FedAvg": (56.66, 61.27, 60.95),
        "FedAvgM": (57.44, 61.22, 60.81),
        "FedDyn": (58.17, 61.67, 59.88),
        "MOON": (53.80, 60.76, 59.90),
    },
    "cct": {
        "FedAvg": (33.09, 33.50, 33.86),
        "FedAvgM": (33.67, 34.47, 34.21),
        "FedDyn": (29.57, 31.64, 31.36),
        "MOON": (32.29, 33.58, 33.73),
    },
}
"""DomainNet, all cases, by network: original, FEDERATED, GLOBAL. Table 4 is the same."""

TABLE_10 = {"FedAvg": (21.35, 66.43), "FedAvgM": (18.05, 63.30)}
"""CIFAR-10, two classes a client: original, all cases."""

TABLE_11 = {
    "FedProx": (44.14, 0, 2446.56, 2446.56),
    "FedProx + Client2Vec": (74.23, 140.96, 2580.27, 2721.23),
    "FedDisco": (22.54, 0, 2401.61, 2401.61),
    "FedDisco + Client2Vec": (44.37, 140.96, 2426.21, 2567.17),
    "Clustered Sampling": (42.88, 0, 2064.49, 2064.49),
    "Client2Vec sampling": (44.49, 140.96, 2075.61, 2216.57),
    "Clustered Sampling + Client2Vec local training": (68.80, 140.96, 2394.29, 2535.25),
    "FedProx, domains": (58.38, 0, 30384.98, 30384.98),
    "FedProx + Client2Vec, domains": (60.89, 151.47, 30336.78, 30448.25),
}
"""CIFAR-10 and DomainNet, FEDERATED with 128 samples a client and 20 epochs: accuracy, seconds of the index, of the
training, of both."""
