"""Prefix reuse: an index of cached prefixes, and their eviction."""

from aleator.cache.prefix.config import PrefixConfig, require_config
from aleator.cache.prefix.index import Match, PrefixIndex, Text, checked_text

__all__ = ["Match", "PrefixConfig", "PrefixIndex", "Text", "checked_text", "require_config"]
