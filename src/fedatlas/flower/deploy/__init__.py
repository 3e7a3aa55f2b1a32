"""Setting up a Flower deployment: app, keys, processes."""
