"""Query strategies: those that look at features alone, and those that ask the predicted law."""
