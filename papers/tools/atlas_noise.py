"""Prints what noise leaves of an atlas of the embedded digits: python -m papers.tools.atlas_noise"""

import torch

import fedatlas
from fedatlas.atlas import Atlas, feature_average, make_encoder


def row(title: str, atlas: Atlas) -> str:
    """Return one line: mean cosine in and between domains, and how many clients have a nearest of their own domain."""
    cosines, domains = atlas.similarity(), atlas.domains
    same = torch.tensor([[one == other for other in domains] for one in domains])
    own = torch.eye(len(domains), dtype=torch.bool)
    nearest = cosines.masked_fill(own, -2.0).argmax(1).tolist()
    found = sum(domains[i] == domains[j] for i, j in enumerate(nearest))
    return f"| {title} | {cosines[same & ~own].mean():.2f} | {cosines[~same].mean():.2f} | {found} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    data = fedatlas.load_dataset("digits")
    federation = fedatlas.federate(data, fedatlas.data.DomainImbalance(factor=5), held_out=3, test="domain")
    embeddings = make_encoder("builtin").encode(federation, progress=False)
    norms = embeddings.examples.norm(dim=1)
    clip = float(norms[norms > 0].median())
    plain, clipped = feature_average(federation, embeddings), feature_average(federation, embeddings, clip=clip)
    print(f"clip {clip:.2f}, {min(plain.sizes)} to {max(plain.sizes)} examples a client")
    print(row("no noise", plain))
    for epsilon in (32, 8, 1):
        noisy = clipped.with_noise(epsilon=epsilon, protects="example", seed=0)
        print(row(f"one example, epsilon {epsilon}", noisy))
    for epsilon in (32, 8):
        print(row(f"whole client, epsilon {epsilon}", plain.with_noise(epsilon=epsilon, clip=clip, seed=0)))


if __name__ == "__main__":
    main()
