"""All programs as one package. In the repository, its parts are links to the top-level folders."""
