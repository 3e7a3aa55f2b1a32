"""The messages between server and nodes, and their checks."""
