"""The messages between server and nodes, and how they are checked."""
