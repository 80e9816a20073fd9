"""Extensions for conf.py: generated pages, offline mathematics, search."""
