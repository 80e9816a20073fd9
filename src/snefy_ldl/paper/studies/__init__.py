"""The paper's studies, one a file."""
