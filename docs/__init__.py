"""The documentation, and what makes parts of it: `make docs` writes them anew from the program as it is."""
