"""Samplers and chains: one file per sampler; ``SamplerChain`` joins them, ``SamplingParams`` sets them all."""

from aleator.samplers.base import Sampler as Sampler
from aleator.samplers.candidates import Candidates as Candidates
from aleator.samplers.chain import SamplerChain as SamplerChain
from aleator.samplers.chain import sample_batch as sample_batch
from aleator.samplers.constrained import ConstraintSampler as ConstraintSampler
from aleator.samplers.grammar import Grammar as Grammar
from aleator.samplers.index import *  # noqa: F403
from aleator.samplers.json_schema import JSONSchema as JSONSchema
from aleator.samplers.lark import Lark as Lark
from aleator.samplers.logit_bias import parse_bias as parse_bias
from aleator.samplers.matcher_grammar import MatcherGrammar as MatcherGrammar
from aleator.samplers.order import parse_letters as parse_letters
from aleator.samplers.order import parse_names as parse_names
from aleator.samplers.params import PARAMETERS as PARAMETERS
from aleator.samplers.presets import DEFAULT_PRESET as DEFAULT_PRESET
from aleator.samplers.presets import PRESETS as PRESETS
from aleator.samplers.reference import ReferenceChain as ReferenceChain
from aleator.samplers.regex import Regex as Regex
from aleator.samplers.sampling_params import SamplingParams as SamplingParams
from aleator.samplers.sampling_params import preset as preset
