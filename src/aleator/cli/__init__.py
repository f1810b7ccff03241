"""The command line: ``aleator COMMAND ...``.

Each command is a module here with ``EXAMPLES``, ``add_arguments(parser)`` and ``run(arguments)``, which returns
the exit code; None: 0.  It is imported only when it is called, so that ``--help`` and ``--version`` respond
immediately.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from aleator.cli.terminal import complain, messages, open_closed_streams, quiet_stdout
from aleator.core import errors
from aleator.core.version import __version__

COMMANDS = {
    "generate": "write text that continues a prompt",
    "chat": "talk with a model; the conversation stays in the cache",
    "batch": "answer the requests of a file, many together; goes on where it stopped",
    "playground": "see, change and compare every draw of a model in the browser",
    "serve": "answer requests over HTTP, in OpenAI's dialect and others",
    "replay": "make a text again from its record, and compare",
    "explain": "show what every sampler does to the next token's probabilities",
    "cache": "what the prompt cache has on disk; check it, make it smaller",
    "cache-view": "show which cells of the KV cache hold what while sequences come and go",
    "samplers": "all samplers, their parameters and ranges",
    "watermark": "test whether a text was drawn with a watermark's key",
    "tokenize": "show the tokens of a text",
    "model-info": "what is in a model file",
    "plan": "what a model would take and launch on a GPU, found without one",
    "bench": "measure prefill and decode speed",
    "convert": "write a Hugging Face directory as a GGUF file, also for llama.cpp",
    "quantize": "store a model in fewer bits, with llama-quantize's bytes",
    "imatrix": "which columns of a model's matrices matter for a text, for quantize",
    "perplexity": "measure how well a model predicts a text",
    "eval": "quality against diversity of samplers on a model",
    "models": "the models that are on this machine; fetch and remove those of the hub",
    "completion": "write what a shell needs to complete commands and options",
    "doctor": "what is installed, what it can do, and what slows it down",
}

USAGE = """\
usage: aleator COMMAND [options]
       aleator COMMAND --help
       aleator --version

Text from language models, with exact sampling: same seed, same token, everywhere.

commands:
{commands}

Without -m a command uses the bundled model, which needs nothing but this package.

examples:
  aleator generate -p "ROMEO:" -n 100 --seed 7
  aleator generate -m model.gguf -p "Once upon a time" --temp 0.7 --top-k 40
  echo "Write a haiku." | aleator generate -m model.gguf
  aleator chat -m model.gguf
  aleator serve -m model.gguf
  aleator explain -p "To be" --seed 7
  aleator model-info model.gguf

exit codes:
  0    done
  1    something failed while running
  2    wrong usage, parameter or input
  3    file missing, not a model, or of an unsupported kind
  4    context full: the prompt, or the tokens asked for with -n, do not fit
  130  interrupted with Ctrl-C
"""

FAILED, BAD_INPUT, BAD_FILE, CONTEXT_FULL, INTERRUPTED = 1, 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, the words after ``aleator`` or those of this process; return the exit code."""
    if argv is None:
        open_closed_streams()
        _speed_up_start()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("ALEATOR_DEBUG"))
    words = [word for word in words if word != "--debug"]
    try:
        return dispatch(words, hurried=argv is None)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        quiet_stdout()
        return 0
    except (errors.AleatorError, OSError, ImportError, MemoryError) as error:
        if debug:
            raise
        complain(message_of(error))
        return exit_code(error)
    finally:
        if argv is None:
            gc.enable()


def _speed_up_start() -> None:
    """Save a command a tenth of the time to its first token, and a third of its processor time.

    Imports leave no reference cycles, so garbage collection is off until the command runs.  NumPy assembles the
    docstrings of its native functions when it is imported.  No command shows them, so the modules that do this
    are replaced by empty ones.  The threads of NumPy's OpenBLAS wait for work by spinning for some 0.1 s, the
    processor's time that the decoder's threads need; 2^4 clock cycles, the least, let them sleep at once.
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    for name in ("_add_newdocs", "_add_newdocs_scalars"):
        sys.modules.setdefault(f"numpy._core.{name}", ModuleType(name))


def dispatch(words: list[str], hurried: bool = False) -> int:
    """Find the command, parse its options and run it.

    ``hurried``: as the process begins, without garbage collection and with Ctrl-C as in ``aleator.__main__``.
    """
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<12} {summary}" for name, summary in COMMANDS.items())
        print(USAGE.format(commands=lines), end="")
        return 0 if words else BAD_INPUT
    if words[0] in ("--version", "-V", "version"):
        print(f"aleator {__version__}")
        return 0
    from aleator.cli.arguments import Parser, did_you_mean

    command = words[0]
    if command not in COMMANDS:
        raise errors.ParameterError(
            "command",
            f"{command!r} is not a command{did_you_mean(command, COMMANDS)}; "
            f"commands: {', '.join(COMMANDS)}",
        )
    module = import_module(f"aleator.cli.{command.replace('-', '_')}")
    parser = Parser(command, COMMANDS[command], module.EXAMPLES)
    module.add_arguments(parser)
    arguments = parser.parse(words[1:])
    if arguments is None:
        return 0
    if hurried:
        gc.freeze()  # excludes imported objects from garbage collection
        gc.enable()
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    with messages(arguments.verbose, arguments.log_disable):
        return int(module.run(arguments) or 0)


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, errors.ContextFull | errors.CacheFull):
        return CONTEXT_FULL
    if isinstance(error, errors.ParameterError | errors.TokenizerError):
        return BAD_INPUT
    if isinstance(
        error,
        errors.FileFormatError
        | errors.HubError
        | errors.UnsupportedModel
        | FileNotFoundError
        | IsADirectoryError
        | PermissionError,
    ):
        return BAD_FILE
    return FAILED


def message_of(error: BaseException) -> str:
    """The error as one line for the user."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("aleator"):
        extra = "torch" if error.name in ("torch", "triton") else "cli"
        return (
            f"{error.name} is not installed: pip install 'aleator[{extra}]' ('aleator doctor' shows what "
            "is missing)"
        )
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'allocation failed'}; try a smaller -c or model"
    return str(error) or type(error).__name__
