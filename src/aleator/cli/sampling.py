"""Sampling options, made from the declarations of the parameters."""

from __future__ import annotations

import argparse
from typing import Any

from aleator.cli.arguments import Parser
from aleator.core.errors import ParameterError
from aleator.samplers import PARAMETERS
