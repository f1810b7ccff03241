"""``aleator plan``: what a model would take and launch on a GPU, found without one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from aleator.cache.options import CacheOptions
from aleator.cli.arguments import Parser
from aleator.cli.model_info import size
from aleator.cli.options import add_cache_types, add_model, weights_named
from aleator.cli.terminal import write, write_json
from aleator.core.packages import required_torch
from aleator.models.files.tensor_types import SCALED_TYPES
from aleator.samplers.explain_text import aligned

if TYPE_CHECKING:
    from aleator.generate.device_plan import DevicePlan, Machine, Part

SEQUENCES = (1, 4, 16)
"""Sequences that a step has a token of, each in a table of its own."""
EXAMPLES = """\
For dtype='exact': weights as they are stored, with the CPU's bits.  No GPU is needed, and no matrix is
read.  Time is bytes over bandwidth plus launches times their cost: an estimate, not a measurement.  The
default cost is that of a captured graph; launches one by one, as of prompts, cost several times as much.

examples:
  aleator plan
  aleator plan model.gguf -c 32768 -ctk q8_0 -ctv q8_0
  aleator plan model.gguf --bandwidth 1.0 --launch-cost 4 --json
"""


def add_arguments(parser: Parser) -> None:
    parser.positional(
        "path", "a GGUF file or a Hugging Face directory (default: the bundled model)"
    )
    add_model(parser.group("model"))
    group = parser.group("what to plan")
    group.option(
        "--device NAME",
        "what would compute: cuda, which need not be here (default: cuda)",
        choices=("cuda",),
        default="cuda",
    )
    group.number(
        "-c, --ctx-size N", "tokens of each sequence so far (default: as trained, but at most 4096)"
    )
    group.number(
        "-ub, --ubatch-size N",
        "tokens computed at once, n_ubatch: of pieces of prompts",
        default=CacheOptions().n_ubatch,
    )
    add_cache_types(group, "type in the cache")
    group.option(
        "--bandwidth X",
        "terabytes a second that the GPU reads (default: 3.35, an H100's)",
        type=positive,
        default=3.35,
    )
    group.option(
        "--launch-cost X",
        "microseconds that a launch takes (default: 1.5, in a captured graph)",
        type=positive,
        default=1.5,
    )
    group.switch("--json", "write JSON")


def run(arguments: argparse.Namespace) -> None:
    required_torch("aleator plan")
    from aleator.generate.device_plan import Machine, device_plan  # PyTorch is optional

    weights = weights_named(arguments)
    n_ctx = arguments.ctx_size or min(weights.config.context_length, 4096)
    types = arguments.cache_type_k, arguments.cache_type_v
    plan = device_plan(weights, n_ctx, *types, arguments.ubatch_size, SEQUENCES)
    machine = Machine(arguments.bandwidth * 1e12, arguments.launch_cost * 1e-6)
    if arguments.json:
        about = {"path": str(weights.path), "device": arguments.device}
        write_json({**about, **as_json(plan, machine)})
    else:
        show(plan, machine)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is out of range: give a number above 0")
    return value


def as_json(plan: DevicePlan, machine: Machine) -> dict[str, Any]:
    return {
        "n_ctx": plan.n_ctx,
        "n_ubatch": plan.n_ubatch,
        "weights": plan.weights,
        "types": {name: vars(each) for name, each in plan.types.items()},
        "scratch": plan.scratch,
        "bandwidth": machine.bandwidth,
        "launch_cost": machine.launch,
        "steps": [
            {
                "sequences": step.sequences,
                "cache": step.cache,
                "memory": plan.weights + step.cache + plan.scratch,
                "tensors": step.scratch,
                "prompt_tensors": step.prompt,
                **sums(step.total, machine),
                "tokens_per_second": step.sequences / sums(step.total, machine)["seconds"],
                "parts": {name: of_part(part, machine) for name, part in step.parts.items()},
            }
            for step in plan.steps
        ],
    }


def sums(of: Part, machine: Machine) -> dict[str, Any]:
    return {
        "launches": of.launches,
        "bytes": of.bytes,
        "seconds": machine.seconds(of.bytes, of.launches),
    }


def of_part(part: Part, machine: Machine) -> dict[str, Any]:
    own = {"layers": part.layers, "kernels": part.kernels}
    return {**own, **sums(part, machine), "weights": part.weights, "cached": part.cached}


def show(plan: DevicePlan, machine: Machine) -> None:
    """Write the plan for people."""
    write(
        f"weights {size(plan.weights)}; steps besides, of up to {plan.n_ubatch:,} tokens (n_ubatch): at most "
        f"{size(plan.scratch)}; {plan.n_ctx:,} tokens a sequence\n"
        f"at {machine.bandwidth / 1e12:g} TB/s and {machine.launch * 1e6:g} us a launch\n\n"
    )
    stored = [("type", "tensors", "in the file", "on the GPU", "")]
    for name, each in plan.types.items():
        wide = "widened to F32 when it is loaded" if name in SCALED_TYPES else ""
        sizes = size(each.in_file), size(each.on_device)
        stored.append((name, f"{each.tensors:,}", *sizes, wide))
    write("".join(f"  {line}\n" for line in aligned(stored, (0, 4))))
    for step in plan.steps:
        total = step.total
        seconds = machine.seconds(total.bytes, total.launches)
        memory = plan.weights + step.cache + plan.scratch
        write(
            f"\n{step.sequences} {'sequence' if step.sequences == 1 else 'sequences'}: "
            f"{seconds * 1e3:.3f} ms a step, {step.sequences / seconds:,.0f} tokens/s; memory {size(memory)}, "
            f"of which cache {size(step.cache)}; a step's tensors {size(step.scratch)}, a prompt's "
            f"{size(step.prompt)}\n"
        )
        head = ("part", "layers", "launches", "kernels", "weights", "keys, values", "us")
        rows = [row(name, part, machine) for name, part in step.parts.items()]
        rows.append(row("in all", total, machine))
        write("".join(f"  {line}\n" for line in aligned([head, *rows])))


def row(name: str, part: Part, machine: Machine) -> tuple[str, ...]:
    return (
        name,
        f"{part.layers:,}" if part.layers else "",
        f"{part.launches:,}",
        f"{part.kernels:,}",
        size(part.weights),
        size(part.cached),
        f"{machine.seconds(part.bytes, part.launches) * 1e6:,.1f}",
    )
