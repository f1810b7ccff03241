"""One file for each architecture, with its facts; a reader that a family shares is a file here too."""
