"""Training steps written out: forward, backward and update without a graph."""
