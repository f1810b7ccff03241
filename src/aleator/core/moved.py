"""Modules under names that they had in an earlier release: importing one of these warns, and still works."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    "aleator.bundled": "aleator.models.hub.bundled",
    "aleator.cache.arguments": "aleator.cache.options",
    "aleator.cache.builder": "aleator.cache.kv_cache",
    "aleator.cache.cells": "aleator.cache.batches",
    "aleator.cache.cells.batch_rules": "aleator.cache.batches",
    "aleator.cache.cells.plan": "aleator.cache.batches",
    "aleator.cache.cells.split": "aleator.cache.batches",
    "aleator.cache.cells.view": "aleator.cache.view",
    "aleator.cache.cells.view_plot": "aleator.cache.view",
    "aleator.cache.handle": "aleator.cache.sequence",
    "aleator.cache.handle.recurrent": "aleator.cache.recurrent",
    "aleator.cache.handle.sequence": "aleator.cache.sequence",
    "aleator.cache.hybrid": "aleator.cache.kv_cache",
    "aleator.cache.pools.forgotten": "aleator.cache.pools.hybrid",
    "aleator.cache.pools.history": "aleator.cache.pools.recurrent_rows",
    "aleator.cache.pools.hybrid_batch": "aleator.cache.pools.hybrid",
    "aleator.cache.pools.recurrent_batch": "aleator.cache.pools.recurrent_rows",
    "aleator.cache.pools.run": "aleator.cache.pools.recurrent_rows",
    "aleator.cache.pools.step": "aleator.cache.cache",
    "aleator.cache.prefix": "aleator.cache.prefix_index",
    "aleator.cache.prefix.config": "aleator.cache.prefix_index",
    "aleator.cache.prefix.index": "aleator.cache.prefix_index",
    "aleator.cache.prefix.states": "aleator.cache.pools.kept_states",
    "aleator.cache.rows.defrag": "aleator.cache.pools.cell_pool",
    "aleator.cache.rows.seen": "aleator.cache.rows.rows",
    "aleator.cache.rows.shift": "aleator.cache.rows.rows",
    "aleator.cache.state_verbs": "aleator.cache.sequence_verbs",
    "aleator.cache.storage.host": "aleator.cache.storage.layer",
    "aleator.cache.storage.tensor_blocks": "aleator.cache.storage.tensors",
    "aleator.cache.storage.types": "aleator.cache.storage.layer",
    "aleator.cache.window": "aleator.cache.kv_cache",
    "aleator.chat.asking": "aleator.chat.prompt",
    "aleator.chat.chat_mixin": "aleator.language_model.model",
    "aleator.chat.chatting": "aleator.language_model.model",
    "aleator.chat.families.bare": "aleator.chat.families.wrapped",
    "aleator.chat.families.deepseek": "aleator.chat.families.apart",
    "aleator.chat.families.family": "aleator.chat.reply",
    "aleator.chat.families.generic": "aleator.chat.families.wrapped",
    "aleator.chat.families.harmony": "aleator.chat.families.apart",
    "aleator.chat.families.hermes": "aleator.chat.families.wrapped",
    "aleator.chat.families.kimi": "aleator.chat.families.apart",
    "aleator.chat.families.llama3": "aleator.chat.families.wrapped",
    "aleator.chat.families.mistral": "aleator.chat.families.wrapped",
    "aleator.chat.forced": "aleator.chat.reply_grammar",
    "aleator.chat.format": "aleator.chat.prompt",
    "aleator.chat.messages": "aleator.chat.message",
    "aleator.chat.openai": "aleator.cli.batch_bodies",
    "aleator.chat.source": "aleator.chat.reply",
    "aleator.chat.text_reader": "aleator.chat.reply",
    "aleator.cli.batch_file": "aleator.integrations.row_file",
    "aleator.cli.batch_ray": "aleator.cli.batch",
    "aleator.cli.machine": "aleator.cli.doctor",
    "aleator.core.pictures": "aleator.core.packages",
    "aleator.device.backends.torch.forms": "aleator.device.backends.torch.program",
    "aleator.device.backends.triton.shapes": "aleator.device.backends.triton.places",
    "aleator.device.forms": "aleator.device.backends.torch.program",
    "aleator.device.program": "aleator.device.backends.torch.program",
    "aleator.device.sharded_candidates": "aleator.device.sharding",
    "aleator.engine.admission": "aleator.engine.job",
    "aleator.engine.context_calls": "aleator.engine.request_handle",
    "aleator.engine.core": "aleator.engine.engine_core",
    "aleator.engine.frames": "aleator.engine.error_frames",
    "aleator.engine.owner": "aleator.engine.engine_loop",
    "aleator.engine.queue": "aleator.engine.job",
    "aleator.engine.room": "aleator.engine.job",
    "aleator.engine.slots": "aleator.engine.request_states",
    "aleator.engine.ticket": "aleator.engine.request_handle",
    "aleator.engine.visits": "aleator.engine.request_handle",
    "aleator.engine.waiters": "aleator.engine.request_handle",
    "aleator.generate.advance": "aleator.generate.model_runner",
    "aleator.generate.banned_strings": "aleator.generate.bans",
    "aleator.generate.batch": "aleator.generate.context",
    "aleator.generate.chunks": "aleator.generate.model_runner",
    "aleator.generate.drawing": "aleator.generate.token_sampler",
    "aleator.generate.ending": "aleator.generate.complete_grammar",
    "aleator.generate.importance": "aleator.generate.scores",
    "aleator.generate.multi_step_runner": "aleator.generate.multi_step",
    "aleator.generate.pending_tokens": "aleator.generate.token_sampler",
    "aleator.generate.perplexity": "aleator.generate.scores",
    "aleator.generate.prefixes": "aleator.generate.context",
    "aleator.generate.proposer": "aleator.generate.request_state",
    "aleator.generate.request": "aleator.generate.completion",
    "aleator.generate.request_errors": "aleator.generate.request_state",
    "aleator.generate.rollback_check": "aleator.engine.job",
    "aleator.generate.sampling_device": "aleator.engine.run",
    "aleator.generate.session_rows": "aleator.generate.session",
    "aleator.generate.slot": "aleator.generate.request_state",
    "aleator.generate.speculation": "aleator.generate.speculative",
    "aleator.generate.speculation.draft_model": "aleator.generate.speculative",
    "aleator.generate.speculation.drafter": "aleator.generate.speculative",
    "aleator.generate.speculation.ngrams": "aleator.generate.speculative",
    "aleator.generate.speculation.speculation": "aleator.generate.speculative",
    "aleator.generate.stop": "aleator.generate.completion",
    "aleator.generate.text_rows": "aleator.generate.scores",
    "aleator.generate.writing": "aleator.generate.generation",
    "aleator.grammar.complaints": "aleator.grammar.llguidance",
    "aleator.hub": "aleator.models.hub",
    "aleator.hub.bundled": "aleator.models.hub.bundled",
    "aleator.hub.choice": "aleator.models.hub.choice",
    "aleator.hub.fetching": "aleator.models.hub.fetching",
    "aleator.hub.installed": "aleator.models.hub.located",
    "aleator.hub.local": "aleator.models.hub.local",
    "aleator.hub.located": "aleator.models.hub.located",
    "aleator.hub.names": "aleator.models.hub.names",
    "aleator.integrations.ray_address": "aleator.integrations.ray_generator",
    "aleator.integrations.ray_options": "aleator.integrations.ray_generator",
    "aleator.language_model.chat_mixin": "aleator.language_model.model",
    "aleator.language_model.saving": "aleator.language_model.base",
    "aleator.models.files.gguf_parts": "aleator.models.files.gguf",
    "aleator.models.fused": "aleator.models.weights",
    "aleator.models.layers.alibi": "aleator.models.decoder",
    "aleator.models.layers.dense_and_experts": "aleator.models.layers.feed_forward",
    "aleator.models.layers.frequencies": "aleator.models.layers.rotation",
    "aleator.models.layers.head_parts": "aleator.models.layers.recurrent_parts",
    "aleator.models.layers.head_space": "aleator.models.layers.recurrent",
    "aleator.models.layers.latent": "aleator.models.block",
    "aleator.models.layers.layer_norm": "aleator.models.layers.norms",
    "aleator.models.layers.mamba": "aleator.models.layers.recurrent",
    "aleator.models.layers.native_step": "aleator.models.native_decoder",
    "aleator.models.layers.parameters": "aleator.models.layers.linear",
    "aleator.models.layers.per_layer_parts": "aleator.models.layers.parts",
    "aleator.models.layers.rms_norm": "aleator.models.layers.norms",
    "aleator.models.layers.routing": "aleator.models.layers.ops",
    "aleator.models.layers.selective_scan": "aleator.models.layers.scans",
    "aleator.models.layers.short_convolution": "aleator.models.layers.recurrent",
    "aleator.models.layers.stored_linear": "aleator.models.layers.linear",
    "aleator.prompts": "aleator.engine.prompts",
    "aleator.replay": "aleator.engine.replay",
    "aleator.replay.again": "aleator.engine.replay",
    "aleator.replay.record": "aleator.engine.replay",
    "aleator.samplers.alone": "aleator.samplers.base",
    "aleator.samplers.batch": "aleator.samplers.chain",
    "aleator.samplers.chain_arguments": "aleator.samplers.token_arguments",
    "aleator.samplers.device_forms": "aleator.samplers.plan",
    "aleator.samplers.mirostat_state": "aleator.samplers.mirostat",
    "aleator.samplers.probable": "aleator.samplers.epsilon_cutoff",
    "aleator.samplers.seeded": "aleator.samplers.base",
    "aleator.samplers.spelled": "aleator.samplers.token_arguments",
    "aleator.saving": "aleator.language_model.base",
    "aleator.scoring": "aleator.language_model.scoring",
    "aleator.server.caller": "aleator.server.auth",
    "aleator.server.chatting": "aleator.server.chat",
    "aleator.server.dialects.anthropic_output": "aleator.server.dialects.anthropic",
    "aleator.server.dialects.call_input": "aleator.server.dialects.nested",
    "aleator.server.dialects.llama_probs": "aleator.server.dialects.llama_results",
    "aleator.server.dialects.not_built": "aleator.server.dialects.operation",
    "aleator.server.dialects.ollama_models": "aleator.server.dialects.ollama",
    "aleator.server.dialects.ollama_output": "aleator.server.dialects.ollama",
    "aleator.server.dialects.responses_output": "aleator.server.dialects.openai_responses",
    "aleator.server.dialects.timings": "aleator.server.dialects.openai_forms",
    "aleator.server.fair_semaphore": "aleator.server.grammars",
    "aleator.server.guards": "aleator.server.app",
    "aleator.server.infilling": "aleator.server.dialects.llama_infill",
    "aleator.server.kept_grammars": "aleator.server.grammar_limits",
    "aleator.server.key_ring": "aleator.server.auth",
    "aleator.server.limits": "aleator.server.auth",
    "aleator.server.logs": "aleator.server.telemetry",
    "aleator.server.metrics": "aleator.server.telemetry",
    "aleator.server.playground.branching": "aleator.server.playground.recording",
    "aleator.server.playground.declared": "aleator.server.playground.as_json",
    "aleator.server.playground.memory": "aleator.server.playground.recording",
    "aleator.server.playground.pages": "aleator.server.playground.routes",
    "aleator.server.playground.replay": "aleator.server.playground.recording",
    "aleator.server.playground.spelled": "aleator.server.playground.as_json",
    "aleator.server.playground.step_json": "aleator.server.playground.as_json",
    "aleator.server.playground.told": "aleator.server.playground.as_json",
    "aleator.server.records": "aleator.server.dialects.openai_forms",
    "aleator.server.slots": "aleator.server.dialects.llama_slots",
    "aleator.server.sse": "aleator.server.streaming",
    "aleator.server.structured": "aleator.server.openai_fields",
    "aleator.server.wire": "aleator.server.streaming",
    "aleator.slots": "aleator.engine.request_states",
    "aleator.text.stream": "aleator.text.tokenizer",
    "aleator.text.texts": "aleator.text.gguf_vocabulary",
}
"""Old names of modules and new ones; each is kept for one release."""

_FORMS = "aleator.device.backends.torch."
for _now, _before in (
    ("bans", "bad_words min_tokens no_repeat_ngram token_mask"),
    ("draws", "adaptive_p dist greedy"),
    ("logits", "logit_bias penalties smoothing softmax temperature"),
    ("mirostat", "mirostat_state mirostat_v2"),
    (
        "truncation",
        "epsilon_cutoff eta_cutoff min_k min_p p_less top_h top_k top_n_sigma top_p typical_p xtc",
    ),
):
    MOVED |= {_FORMS + name: _FORMS + _now for name in _before.split()}

RENAMED = {
    "Advance": "ModelRunner",
    "Asked": "PreparedChat",
    "Asking": "RequestMaker",
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
    "Slot": "RequestState",
    "SlotMaker": "RequestStateMaker",
    "Source": "TextReader",
    "Telling": "StepFormatter",
    "Ticket": "RequestHandle",
    "Turn": "SampleTask",
    "Visits": "ContextCalls",
    "make_storage": "Storage",
    "prepared": "prepare_chat",
    "require_config": "kept_texts",
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
        import warnings
        from importlib import import_module

        new = self._moved[module.__name__]
        warnings.warn(
            f"{module.__name__} is {new} now; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        of_new = vars(import_module(new))
        vars(module).update({k: v for k, v in of_new.items() if not k.startswith("__")})
        vars(module).update({old: of_new[now] for old, now in RENAMED.items() if now in of_new})


def moved_name(package: str, name: str, moved: Mapping[str, str]) -> object:
    """What a package itself had under this name, from the module of it that ``moved`` names."""
    if name not in moved:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    import warnings
    from importlib import import_module

    new = f"{package}.{moved[name]}"
    warnings.warn(
        f"{package}.{name} is in {new} now; the old place goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(import_module(new), RENAMED.get(name, name))


def install_moved() -> None:
    """Let the old names be found, after everything else."""
    sys.meta_path.append(MovedModules(MOVED))
