"""Models by name: on a hub, in its cache on this machine, or in an installed package.

:mod:`~aleator.hub.located` says what a name means, :mod:`~aleator.hub.choice` which of a repository's files
is the model, :mod:`~aleator.hub.fetching` brings it here, and :mod:`~aleator.hub.local` lists and removes
what is here.
"""
