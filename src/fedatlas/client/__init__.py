"""What runs on a client: its data, its model, its training."""
