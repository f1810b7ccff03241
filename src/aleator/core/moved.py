"""Modules and attributes under names of an earlier release: using one of these warns, and still works."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FORMER = {
    "cache.batches": "cache.cells cache.cells.batch_rules cache.cells.plan cache.cells.split",
    "cache.cache": "cache.pools.step",
    "cache.kv_cache": "cache.builder cache.hybrid cache.window",
    "cache.options": "cache.arguments",
    "cache.pools.cell_pool": "cache.rows.defrag",
    "cache.pools.hybrid": "cache.pools.forgotten cache.pools.hybrid_batch",
    "cache.pools.kept_states": "cache.prefix.states",
    "cache.pools.recurrent_rows": "cache.pools.history cache.pools.recurrent_batch cache.pools.run",
    "cache.prefix_index": "cache.prefix cache.prefix.config cache.prefix.index",
    "cache.recurrent": "cache.handle.recurrent",
    "cache.rows.rows": "cache.rows.seen cache.rows.shift",
    "cache.sequence": "cache.handle cache.handle.sequence",
    "cache.sequence_verbs": "cache.state_verbs",
    "cache.storage.layer": "cache.storage.host cache.storage.types",
    "cache.storage.tensors": "cache.storage.tensor_blocks",
    "cache.view": "cache.cells.view cache.cells.view_plot",
    "chat.families.apart": (
        "chat.families.deepseek chat.families.functionary chat.families.harmony chat.families.kimi"
    ),
    "chat.families.pythonic": "chat.families.python_syntax",
    "chat.families.wrapped": (
        "chat.families.bare chat.families.generic chat.families.hermes chat.families.llama3 "
        "chat.families.mistral"
    ),
    "chat.message": "chat.messages",
    "chat.prompt": "chat.asking chat.format",
    "chat.reply": "chat.families.family chat.source chat.text_reader",
    "chat.reply_grammar": "chat.forced",
    "cli.batch": "cli.batch_ray",
    "cli.batch_bodies": "chat.openai",
    "cli.doctor": "cli.machine",
    "core.cancellation": "core.given_up",
    "core.packages": "core.pictures",
    "device.backends.torch.bans": (
        "device.backends.torch.bad_words device.backends.torch.dry device.backends.torch.min_tokens "
        "device.backends.torch.no_repeat_ngram device.backends.torch.token_mask"
    ),
    "device.backends.torch.draws": (
        "device.backends.torch.adaptive_p device.backends.torch.dist device.backends.torch.greedy "
        "device.backends.torch.mirostat device.backends.torch.mirostat_state "
        "device.backends.torch.mirostat_v2"
    ),
    "device.backends.torch.logits": (
        "device.backends.torch.logit_bias device.backends.torch.penalties "
        "device.backends.torch.smoothing device.backends.torch.softmax "
        "device.backends.torch.temperature"
    ),
    "device.backends.torch.program": "device.backends.torch.forms device.forms device.program",
    "device.backends.torch.truncation": (
        "device.backends.torch.epsilon_cutoff device.backends.torch.eta_cutoff "
        "device.backends.torch.min_k device.backends.torch.min_p device.backends.torch.p_less "
        "device.backends.torch.top_h device.backends.torch.top_k "
        "device.backends.torch.top_n_sigma device.backends.torch.top_p "
        "device.backends.torch.typical_p device.backends.torch.xtc"
    ),
    "device.backends.triton.places": "device.backends.triton.cutoffs device.backends.triton.shapes",
    "device.device_sampler": "device.places",
    "device.host_steps": "device.tails",
    "device.sharding": "device.sharded_candidates",
    "engine.engine_core": "engine.core",
    "engine.engine_loop": "engine.owner",
    "engine.error_frames": "engine.frames",
    "engine.scheduled_request": "engine.admission engine.job engine.queue engine.room generate.rollback_check",
    "engine.prompts": "prompts",
    "engine.replay": "replay replay.again replay.record",
    "engine.request_handle": "engine.context_calls engine.ticket engine.visits engine.waiters",
    "engine.request_states": "engine.slots slots",
    "engine.run": "generate.sampling_device",
    "generate.bans": "generate.banned_strings",
    "generate.complete_grammar": "generate.ending",
    "generate.completion": "generate.request generate.stop",
    "generate.context": "generate.batch generate.prefixes",
    "generate.decode_steps": "generate.feeds",
    "generate.generation": "generate.writing",
    "generate.model_runner": "generate.advance generate.chunks",
    "generate.multi_step": "generate.multi_step_runner",
    "generate.prefix_load": "generate.arrival",
    "generate.prefix_reuse": "generate.beginnings",
    "generate.request_state": "generate.proposer generate.request_errors generate.slot",
    "generate.scores": "generate.importance generate.perplexity generate.text_rows",
    "generate.session": "generate.session_rows",
    "generate.speculative": (
        "generate.speculation generate.speculation.draft_model generate.speculation.drafter "
        "generate.speculation.ngrams generate.speculation.speculation"
    ),
    "generate.token_sampler": "generate.drawing generate.pending_tokens",
    "grammar.llguidance": "grammar.complaints",
    "integrations.ray_generator": "integrations.ray_address integrations.ray_options",
    "integrations.row_file": "cli.batch_file",
    "language_model.base": "language_model.saving saving",
    "language_model.model": "chat.chat_mixin chat.chatting language_model.chat_mixin",
    "language_model.scoring": "scoring",
    "models.block": "models.layers.latent",
    "models.conversion.convert": "models.convert",
    "models.conversion.file_types": "models.file_types",
    "models.conversion.gguf_form": "models.gguf_form",
    "models.conversion.quantise": "models.quantise",
    "models.decoder": "models.layers.alibi",
    "models.files.gguf": "models.files.gguf_parts",
    "models.hub": "hub",
    "models.hub.bundled": "bundled hub.bundled",
    "models.hub.choice": "hub.choice",
    "models.hub.fetching": "hub.fetching",
    "models.hub.local": "hub.local",
    "models.hub.located": "hub.installed hub.located",
    "models.hub.names": "hub.names",
    "models.layers.feed_forward": "models.layers.dense_and_experts",
    "models.layers.layer_source": "models.layers.expert_tensors",
    "models.layers.linear": "models.layers.parameters models.layers.stored_linear",
    "models.layers.norms": "models.layers.layer_norm models.layers.rms_norm",
    "models.layers.parts": "models.layers.per_layer_parts",
    "models.layers.recurrent": (
        "models.layers.head_space models.layers.mamba models.layers.short_convolution"
    ),
    "models.layers.recurrent_parts": "models.layers.head_parts",
    "models.layers.rotation": "models.layers.frequencies",
    "models.layers.scans": "models.layers.selective_scan",
    "models.native_decoder": "models.layers.native_step",
    "models.prequantised.compressed_tensors": "models.compressed_tensors",
    "models.prequantised.matrix_parts": "models.matrix_parts",
    "models.weights": "models.fused",
    "samplers.base": "samplers.alone samplers.seeded",
    "samplers.chain": "samplers.batch",
    "samplers.epsilon_cutoff": "samplers.probable",
    "samplers.mirostat": "samplers.mirostat_state",
    "samplers.plan": "samplers.device_forms",
    "samplers.token_arguments": "samplers.chain_arguments samplers.spelled",
    "server.app": "server.guards",
    "server.auth": "server.caller server.key_ring server.limits",
    "server.chat": "server.chatting",
    "server.dialects.anthropic": "server.dialects.anthropic_output",
    "server.dialects.embeddings": "server.dialects.rerank",
    "server.dialects.llama_infill": "server.infilling",
    "server.dialects.llama_results": "server.dialects.llama_probs",
    "server.dialects.llama_slots": "server.slots",
    "server.dialects.nested": "server.dialects.call_input",
    "server.dialects.ollama": "server.dialects.ollama_models server.dialects.ollama_output",
    "server.dialects.openai_forms": "server.dialects.timings server.records",
    "server.dialects.openai_responses": "server.dialects.responses_output",
    "server.dialects.operation": "server.dialects.not_built",
    "server.grammar_limits": "server.kept_grammars",
    "server.grammars": "server.fair_semaphore",
    "server.openai_fields": "server.structured",
    "server.playground.as_json": (
        "server.playground.declared server.playground.spelled server.playground.step_json "
        "server.playground.told"
    ),
    "server.playground.generating": "server.playground.writing",
    "server.playground.recording": (
        "server.playground.branching server.playground.memory server.playground.replay"
    ),
    "server.playground.routes": "server.playground.pages",
    "server.streaming": "server.sse server.wire",
    "server.telemetry": "server.logs server.metrics",
    "text.gguf_vocabulary": "text.texts",
    "text.tokenizer": "text.stream",
}
"""Modules of the package, and what they were called; each old name is kept for one release."""

ARCHITECTURES = (
    "arcee bailingmoe bailingmoe2 bert bloom cohere2 command_r deepseek deepseek2 deepseek_files "
    "delta_net_files dots1 ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon_h1 gemma gemma2 gemma3 "
    "gemma4 glm4 glm4moe gpt2 gpt_oss granite granite_factors granitehybrid granitemoe hunyuan_dense "
    "hunyuan_moe internlm2 jais2 jamba jina_bert_v2 jina_bert_v3 kimi_linear lfm2 lfm2moe llama llama4 "
    "maincoder mamba mamba2 mellum minicpm minicpm3 minimax_m2 mistral3 mistral4 modern_bert mpt nemotron "
    "nemotron_files nemotron_h nemotron_h_moe nomic_bert olmo2 olmoe orion phi3 pictures plm qwen2 "
    "qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe rotating_windows "
    "seed_oss short_convolutions smollm3 stablelm starcoder2 xverse"
)
"""Modules of ``models.architectures`` that were in ``models``."""

MOVED = {
    f"aleator.{old}": f"aleator.{new}" for new, before in FORMER.items() for old in before.split()
} | {
    f"aleator.models.{each}": f"aleator.models.architectures.{each}"
    for each in ARCHITECTURES.split()
}
"""Old names of modules and new ones."""

RENAMED = {
    "Advance": "ModelRunner",
    "Alone": "StandaloneSampler",
    "Arrival": "PrefixLoad",
    "Asked": "PreparedChat",
    "Asking": "RequestMaker",
    "Beginnings": "PrefixReuse",
    "Chat": "ChatPrompt",
    "Chatting": "LanguageModel",
    "Core": "EngineCore",
    "Drawing": "TokenSampler",
    "Drawn": "SampledToken",
    "Ending": "GrammarCompleter",
    "HostDrawing": "HostTokenSampler",
    "Owner": "EngineLoop",
    "Saving": "LoadedModel",
    "Scoring": "ScoringModel",
    "Sharing": "SharedDrafts",
    "Shortest": "EndingSearch",
    "Job": "ScheduledRequest",
    "Slot": "RequestState",
    "SlotMaker": "RequestStateMaker",
    "Slid": "ContextShift",
    "Source": "TextReader",
    "Telling": "StepFormatter",
    "Ticket": "RequestHandle",
    "Turn": "SampleTask",
    "Visits": "ContextCalls",
    "Writing": "GenerationReader",
    "check_given_up": "check_cancelled",
    "ended_by": "cancelled_by",
    "make_storage": "Storage",
    "prepared": "prepare_chat",
    "require_config": "kept_texts",
    "writing_of": "reader_of",
}
"""Old names of what moved modules hold, and new ones."""


class MovedModules:
    """Finds and loads modules under their old names."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._moved = moved

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A module of the old name; None: there was none."""
        if name not in self._moved:
            return None
        from importlib.util import spec_from_loader  # most programs need none of this

        is_package = any(each.startswith(f"{name}.") for each in self._moved)
        # The loader is no subclass of Loader.
        return spec_from_loader(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: an ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give a module all names of the one that it is now."""
        from importlib import import_module

        new = self._moved[module.__name__]
        _warn(module.__name__, new)
        of_new = vars(import_module(new))
        vars(module).update({k: v for k, v in of_new.items() if not k.startswith("__")})
        vars(module).update({old: of_new[now] for old, now in RENAMED.items() if now in of_new})


def moved_name(package: str, name: str, moved: Mapping[str, str]) -> object:
    """What a package itself had under this name, from the module of it that ``moved`` names."""
    if name not in moved:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    import warnings
    from importlib import import_module

    home, new = f"{package}.{moved[name]}", RENAMED.get(name, name)
    renamed = "" if new == name else f", as {new}"
    warnings.warn(
        f"{package}.{name} is in {home} now{renamed}; the old place goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(import_module(home), new)


def renamed_name(module: str, name: str) -> object:
    """What a module itself had under this name, which :data:`RENAMED` gives another."""
    held, new = vars(sys.modules[module]), RENAMED.get(name)
    if new not in held:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name}", new, above=2)
    return held[new]


class FormerName:
    """An attribute of a class under the name that it had before; reading it warns, and gives the new one."""

    names: ClassVar[set[str]] = set()  # all former names

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name
        self.names.add(name)

    def __get__(self, instance: object, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self._old}", self.new)
        return getattr(owner if instance is None else instance, self.new)


def refuse_former_names(cls: type) -> None:
    """Refuse a class that overrides something under its former name, as nothing would call that."""
    for name in FormerName.names & vars(cls).keys():
        for base in cls.__mro__[1:]:
            former, own = vars(base).get(name), vars(cls)[name]
            if isinstance(former, FormerName) and not isinstance(own, FormerName):
                raise TypeError(
                    f"{cls.__qualname__}.{name}: {base.__qualname__}.{name} is {former.new} now: give the "
                    "override that name; anything else by this name needs another one"
                )


def _warn(old: str, new: str | None, above: int = 1) -> None:
    """Warn whoever uses an old name: the caller so many frames above the function that calls this."""
    import warnings  # most programs need none of this

    message = f"{old} is {new} now; the old name goes with the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=2 + above)


def install_moved() -> None:
    """Let the old names be found, after everything else."""
    sys.meta_path.append(MovedModules(MOVED))
