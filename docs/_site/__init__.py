"""What conf.py needs beside Sphinx: pages that are made, mathematics without a network, search."""
