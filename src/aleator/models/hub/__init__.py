"""Models by name: on a hub, in its cache on this machine, or in an installed package.

:mod:`~aleator.models.hub.located` says what a name means, :mod:`~aleator.models.hub.choice` which of a
repository's files is the model, :mod:`~aleator.models.hub.fetching` brings it here, and
:mod:`~aleator.models.hub.local` lists and removes what is here.
"""
