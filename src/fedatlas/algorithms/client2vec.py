"""Client2Vec. Guo et al., Client2Vec: Improving Federated Learning by Distribution Shifts Aware Client Indexing, 2024.

An atlas, one vector a client, is used over any base algorithm to
  sample      draw clients like those of the last round                               (Eq. 1, client2vec_sampling.py)
  aggregate   weigh clients by their similarity to clients that trained recently      (Eq. 3, client2vec_sampling.py)
  train       keep features orthogonal to the differences between clients             (Eq. 4, client2vec_objective.py)
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedatlas.algorithms.client2vec_objective import (
    AtlasVectors,
    Direction,
    IndexOrthogonality,
    KeepProjection,
    Mode,
    Projected,
    Through,
)
from fedatlas.algorithms.client2vec_sampling import SimilarityWeights, SimilarToLast
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.atlas.atlas import Atlas
from fedatlas.errors import UsageError, expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sampler import Uniform

TAUS = {"federated": 0.1, "global": 1.0}
"""The paper's best tau (Table 5) by how the index was trained."""
OTHER_TAU = 0.5
LAMBDAS = {"federated": 1.0, "global": 5.0}
"""The paper's weights of the local objective (App. D.2) by how the index was trained."""
OTHER_LAMBDA = 1.0


DO = "Write client2vec(fedatlas.algorithms.fedavg(), atlas)."


@recipe(
    changes="sampler, weighting, objective",
    over="base",
    needs=("atlas",),
    uses=("sample", "aggregate", "train"),
    paper="Client2Vec",
)
def client2vec(
    base: Algorithm | None = None,
    atlas: Atlas | str | Path | None = None,
    *,
    sample: bool = True,
    aggregate: bool = True,
    train: bool = False,
    tau: float | None = None,
    gamma: float = 0.5,
    lambda1: float = 1.0,
    lambda_o: float | None = None,
    lambda_d: float | None = None,
    half: str | None = None,
    objective_half: str = "feature",
    mode: Mode = "mean_cos",
    kl: Direction = "forward",
    temperature: float = 1.0,
    detach_teacher: bool = False,
    tie_to_algorithm: bool = False,
    personal: bool = False,
    test_through: Through = "h",
) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) whose sampling, weights and local loss use an atlas of the clients.

    Args:
        atlas: the atlas, or the path of the file that holds it.
        train: the local objective. Off by default: it did not help in any measured setting, and with the paper's
            weights it harms (docs/evidence/client2vec.md).
        tau: temperature of the sampling; None takes 0.1 for an index that was trained federated, 1 for a global one,
            0.5 for any other atlas.
        lambda_o, lambda_d: weights of the local objective; None takes 5 for a global index, 1 for any other atlas.
        half: one half of the vectors by which clients are sampled and weighed; None takes the mean over all.
        objective_half: the half to which the projected features are made orthogonal.
        tie_to_algorithm: set ``lambda_o`` and ``lambda_d`` to the weight of the base's own regulariser, 1 if none.
        personal: every client keeps its own projection and projection classifier.
        test_through: the classifier to test: ``h``, the model's, or ``g``, the projection's.
    """
    weights = {"lambda_o": lambda_o, "lambda_d": lambda_d}
    if not train:
        others: dict[str, object] = {"mode": mode, "kl": kl, "temperature": temperature, "personal": personal}
        others |= {"objective_half": objective_half, "test_through": test_through, "detach_teacher": detach_teacher}
        _check_unused({**weights, **others, "tie_to_algorithm": tie_to_algorithm})
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "client2vec(base) must be an algorithm", DO)
    algorithm = replace(base, name="client2vec" if base.name == "fedavg" else f"client2vec+{base.name}")
    if not (sample or aggregate or train):
        return algorithm
    opened = open_atlas(atlas, "client2vec(atlas)")
    if sample:
        algorithm = _with_sampling(algorithm, base, opened, tau, half)
    if aggregate:
        links = SimilarityWeights(atlas=opened, gamma=gamma, lambda1=lambda1, half=half)
        algorithm = _with_weights(algorithm, base, links)
    if train:
        usual = own_weight(base) if tie_to_algorithm else LAMBDAS.get(strategy_of(opened), OTHER_LAMBDA)
        chosen = {name: usual if given is None or tie_to_algorithm else given for name, given in weights.items()}
        term = IndexOrthogonality(mode=mode, kl=kl, temperature=temperature, detach_teacher=detach_teacher, **chosen)
        algorithm = _with_objective(algorithm, base.name, opened, term, objective_half, personal, test_through)
    return algorithm


def strategy_of(atlas: Atlas) -> str:
    """Return how the index was trained, ``federated`` or ``global``; another word for any other atlas."""
    return str(atlas.provenance.get("strategy"))


def own_weight(base: Algorithm) -> float:
    """Return the weight of an algorithm's own regulariser, 1 if it has none (the paper's App. D.2)."""
    weights = (term.regulariser_weight for term in base.objective)
    return next((weight for weight in weights if weight is not None), 1.0)


def _check_unused(local: Mapping[str, object]) -> None:
    """Raise UsageError if a setting of the local objective is given while the objective is off."""
    known = inspect.signature(client2vec).parameters
    unused = [name for name, value in local.items() if value != known[name].default]
    if unused:
        raise UsageError(
            f"client2vec: {unused[0]} is a setting of the local objective, which is off. Set train=True (--use train), "
            "or leave it out.",
            code="settings-conflict",
            option=unused[0],
        )


def open_atlas(atlas: Atlas | str | Path | None, setting: str) -> Atlas:
    """Return an atlas that is given as it is or by the path of its file; ``setting`` is what an error names."""
    if isinstance(atlas, str | Path):
        return Atlas.load(atlas)
    if not isinstance(atlas, Atlas):
        raise UsageError(
            f"{setting} must be an atlas of the clients or the path of one, got {atlas!r}.",
            code="wrong-type",
            setting=setting,
            got=atlas,
        )
    return atlas


def _with_sampling(
    algorithm: Algorithm, base: Algorithm, atlas: Atlas, tau: float | None, half: str | None
) -> Algorithm:
    """Return the algorithm with clients drawn by similarity."""
    if type(base.sampler) is not Uniform:
        raise UsageError(
            f"client2vec over {base.name}: it has its own sampler, {type(base.sampler).__name__}. "
            "Set sample=False (--use aggregate), or use a base that samples uniformly.",
            code="base-unfit",
            base=base.name,
            part=type(base.sampler).__name__,
        )
    chosen = TAUS.get(strategy_of(atlas), OTHER_TAU) if tau is None else tau
    return replace(algorithm, sampler=SimilarToLast(atlas=atlas, tau=chosen, half=half))


def _with_weights(algorithm: Algorithm, base: Algorithm, links: SimilarityWeights) -> Algorithm:
    """Return the algorithm with clients weighed by similarity."""
    deaf = [type(rule).__name__ for rule in base.server if rule.ignores_weights]
    if deaf:
        raise UsageError(
            f"client2vec over {base.name}: its server rule {deaf[0]} ignores weights, so weighing has no effect. "
            "Set aggregate=False (--use sample), or use another base.",
            code="base-unfit",
            base=base.name,
            part=deaf[0],
        )
    if any(link.name == SimilarityWeights.name for link in base.weighting):
        raise UsageError(
            f"client2vec over {base.name}: it already weighs by similarity. Set aggregate=False (--use sample).",
            code="base-unfit",
            base=base.name,
            part=SimilarityWeights.__name__,
        )
    if math.isfinite(links.lambda1):
        # Eq. 3 begins from q_i = N_i / N, also over a base that counts all clients the same.
        algorithm = algorithm.counting_by_examples()
    return algorithm.with_weighting(links)


def _with_objective(
    algorithm: Algorithm,
    base: str,
    atlas: Atlas,
    term: IndexOrthogonality,
    half: str,
    personal: bool,
    test_through: Through,
) -> Algorithm:
    """Return the algorithm with the projection around the model and its term in the objective."""
    if half not in atlas.halves:
        raise UsageError(
            f"client2vec over {base}: local training needs the half {half!r} of the vectors, and the atlas has only "
            f"{', '.join(map(repr, atlas.halves))}. Set train=False (no train in --use), or name one by "
            "objective_half (--set atlas.objective_half=...).",
            code="unknown-name",
            got=half,
            known=list(atlas.halves),
        )
    if any(own.name == term.name for own in algorithm.objective):
        raise UsageError(
            f"client2vec over {base}: it already trains with an atlas. Set train=False (no train in --use).",
            code="base-unfit",
            base=base,
            part=type(term).__name__,
        )
    if term.lambda_o == 0 and term.lambda_d == 0:
        return algorithm
    if test_through == "g" and term.lambda_d == 0:
        raise UsageError(
            "client2vec: lambda_d=0 leaves the classifier G untrained. Set test_through='h', or raise lambda_d.",
            code="settings-conflict",
            option="test_through",
        )
    projected = Projected(width=atlas.halves[half].shape[1], test_through=test_through)
    algorithm = replace(algorithm.with_terms(term), extensions=(*algorithm.extensions, projected))
    if term.lambda_o > 0:
        algorithm = algorithm.with_rules(AtlasVectors(atlas=atlas, half=half))
    if personal:
        split = algorithm.split
        algorithm = replace(algorithm, split=KeepProjection(base=split, buffers=split.buffers))
    return algorithm
