"""The server's side of a Flower run."""
