"""Models by name: on a hub, in its cache on this machine, or in an installed package.

:mod:`~aleator.models.hub.located` resolves a name, :mod:`~aleator.models.hub.choice` chooses a repository's
files, :mod:`~aleator.models.hub.fetching` downloads them, and :mod:`~aleator.models.hub.local` lists and
removes local models.
"""
