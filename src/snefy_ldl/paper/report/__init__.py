"""The report of a reproduction."""
