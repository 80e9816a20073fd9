"""Training: from settings and data to fitted networks."""
