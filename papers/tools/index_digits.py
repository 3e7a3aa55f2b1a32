"""Prints how well Client2Vec's index tells the digits' domains apart: python -m papers.tools.index_digits"""

import torch
from sklearn.metrics import adjusted_rand_score

import fedatlas
from fedatlas.atlas import Atlas, IndexSettings, client2vec_index, feature_average, make_encoder


def row(title: str, atlas: Atlas) -> str:
    """Return one line: adjusted Rand index of five groups, mean cosine in and between domains."""
    cosines, domains = atlas.similarity("feature"), atlas.domains
    same = torch.tensor([[one == other for other in domains] for one in domains])
    own = torch.eye(len(domains), dtype=torch.bool)
    score = adjusted_rand_score(list(domains), atlas.groups(5, half="feature").tolist())
    return f"| {title} | {score:.2f} | {cosines[same & ~own].mean():.2f} | {cosines[~same].mean():.2f} |"


def main() -> None:
    """Print the table."""
    data = fedatlas.load_dataset("digits")
    federation = fedatlas.federate(data, fedatlas.data.ByDomain(clients_per_domain=10))
    embeddings = make_encoder("builtin").encode(federation, progress=False)
    print(row("mean of D (`feature_average`)", feature_average(federation, embeddings)), flush=True)
    for title, losses in (("`global`", ("div", "sim", "orth", "recon")), ("without `div`", ("sim", "orth", "recon"))):
        settings = IndexSettings(feed_forward=64, upload=32, losses=losses)
        index = client2vec_index(federation, embeddings, epochs=30, settings=settings, progress=False)
        print(row(f"{title}, 30 epochs", index), flush=True)


if __name__ == "__main__":
    main()
