"""The client's side: its data, its model, its training."""
