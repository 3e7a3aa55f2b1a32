"""A node's side of a Flower run."""
