"""Plumbing that no user imports: files, checks, special functions, prediction blocks, saved models."""
