"""A model with its tokenizer, as returned by :func:`aleator.load`."""

from aleator.language_model.model import LanguageModel as LanguageModel
from aleator.language_model.model import load as load
from aleator.language_model.model import load_vocabulary as load_vocabulary
