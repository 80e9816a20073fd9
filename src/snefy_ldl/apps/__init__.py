"""Applications of the library: the command line, the service with its explorer, reports, clusters, other tools."""
