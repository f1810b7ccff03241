"""Modules and attributes under names of an earlier release: using one of these warns, and still works."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FORMER = {
    "cache.batches": ".cells .cells.batch_rules .cells.plan .cells.split",
    "cache.kv_cache": ".builder .hybrid .window",
    "cache.options": ".arguments",
    "cache.pools.cell_pool": "cache.rows.defrag",
    "cache.pools.hybrid": ".forgotten .hybrid_batch",
    "cache.pools.kept_states": "cache.prefix.states",
    "cache.pools.recurrent_rows": ".history .recurrent_batch",
    "cache.prefix_index": ".prefix .prefix.config .prefix.index",
    "cache.recurrent": ".handle.recurrent",
    "cache.rows.rows": ".shift",
    "cache.sequence": ".handle .handle.sequence",
    "cache.sequence_verbs": ".state_verbs",
    "cache.storage.layer": ".host .types",
    "cache.storage.tensors": ".tensor_blocks",
    "cache.view": ".cells.view .cells.view_plot",
    "chat.families.apart": ".deepseek .harmony .kimi",
    "chat.families.wrapped": ".generic .hermes .llama3 .mistral",
    "chat.message": ".messages",
    "chat.prompt": ".asking .format",
    "chat.reply": ".families.family .source",
    "chat.reply_grammar": ".forced",
    "cli.batch": ".batch_ray",
    "cli.batch_bodies": "chat.openai",
    "cli.doctor": ".machine",
    "core.packages": ".pictures",
    "device.backends.torch.bans": ".bad_words .dry .min_tokens .no_repeat_ngram .token_mask",
    "device.backends.torch.draws": (
        ".adaptive_p .dist .greedy .mirostat .mirostat_state .mirostat_v2"
    ),
    "device.backends.torch.logits": ".logit_bias .penalties .smoothing .softmax .temperature",
    "device.backends.torch.program": "device.forms device.program",
    "device.backends.torch.truncation": (
        ".epsilon_cutoff .eta_cutoff .min_p .top_k .top_n_sigma .top_p .typical_p .xtc"
    ),
    "device.device_sampler": ".places",
    "device.host_steps": ".tails",
    "device.sharding": ".sharded_candidates",
    "engine.engine_core": ".core",
    "engine.engine_loop": ".owner",
    "engine.error_frames": ".frames",
    "engine.scheduled_request": ".job .queue .room",
    "engine.prompts": "prompts",
    "engine.replay": "replay",
    "engine.request_handle": ".ticket .visits .waiters",
    "engine.request_states": "slots",
    "generate.bans": ".banned_strings",
    "generate.complete_grammar": ".ending",
    "generate.completion": ".request .stop",
    "generate.context": ".batch .prefixes",
    "generate.model_runner": ".advance .chunks",
    "generate.request_state": ".slot",
    "generate.scores": ".importance .perplexity .text_rows",
    "generate.session": ".session_rows",
    "generate.speculative": (
        ".speculation .speculation.draft_model .speculation.drafter .speculation.ngrams "
        ".speculation.speculation"
    ),
    "generate.token_sampler": ".drawing",
    "integrations.ray_generator": ".ray_address .ray_options",
    "integrations.row_file": "cli.batch_file",
    "language_model.base": "saving",
    "language_model.model": "chat.chatting",
    "language_model.scoring": "scoring",
    "models.block": ".layers.latent",
    "models.conversion.quantise": "models.quantise",
    "models.decoder": ".layers.alibi",
    "models.files.gguf": ".gguf_parts",
    "models.hub": "hub",
    "models.hub.bundled": "bundled",
    "models.hub.choice": "hub.choice",
    "models.hub.fetching": "hub.fetching",
    "models.hub.local": "hub.local",
    "models.hub.located": "hub.installed",
    "models.hub.names": "hub.names",
    "models.layers.feed_forward": ".dense_and_experts",
    "models.layers.layer_source": ".expert_tensors",
    "models.layers.linear": ".parameters .stored_linear",
    "models.layers.norms": ".layer_norm .rms_norm",
    "models.layers.parts": ".per_layer_parts",
    "models.layers.recurrent": ".head_space .mamba .short_convolution",
    "models.layers.recurrent_parts": ".head_parts",
    "models.layers.rotation": ".frequencies",
    "models.layers.scans": ".selective_scan",
    "models.native_decoder": ".layers.native_step",
    "models.weights": ".fused",
    "samplers.base": ".seeded",
    "samplers.chain": ".batch",
    "samplers.epsilon_cutoff": ".probable",
    "samplers.mirostat": ".mirostat_state",
    "samplers.plan": ".device_forms",
    "samplers.token_arguments": ".chain_arguments .spelled",
    "server.app": ".guards",
    "server.auth": ".caller .key_ring .limits",
    "server.chat": ".chatting",
    "server.dialects.anthropic": ".anthropic_output",
    "server.dialects.llama_infill": "server.infilling",
    "server.dialects.llama_results": ".llama_probs",
    "server.dialects.llama_slots": "server.slots",
    "server.dialects.nested": ".call_input",
    "server.dialects.ollama": ".ollama_models .ollama_output",
    "server.dialects.openai_forms": ".timings server.records",
    "server.dialects.openai_responses": ".responses_output",
    "server.dialects.operation": ".not_built",
    "server.grammar_limits": ".kept_grammars",
    "server.openai_fields": ".structured",
    "server.playground.as_json": ".declared .spelled .told",
    "server.playground.generating": ".writing",
    "server.playground.recording": ".branching .memory .replay",
    "server.playground.routes": ".pages",
    "server.streaming": ".sse .wire",
    "server.telemetry": ".logs .metrics",
    "text.gguf_vocabulary": ".texts",
    "text.tokenizer": ".stream",
}
"""Modules of the package, and what they were called (``.name``: in the same package); each old name is kept
for one release, if it was there before the modules first moved."""

ARCHITECTURES = (
    "bloom command_r deepseek2 delta_net_files ernie4_5 ernie4_5_moe exaone4 falcon_h1 gemma2 gemma3 "
    "gemma4 glm4 gpt2 gpt_oss granite granite_factors granitehybrid granitemoe hunyuan_dense "
    "hunyuan_moe jamba lfm2 lfm2moe llama llama4 mamba mamba2 minicpm3 mistral3 mpt nemotron_h olmo2 "
    "phi3 qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next seed_oss short_convolutions "
    "smollm3 starcoder2"
)
"""Modules of ``models.architectures`` that were in ``models``."""

MOVED = {
    f"aleator.{new.rpartition('.')[0] + old if old[0] == '.' else old}": f"aleator.{new}"
    for new, before in FORMER.items()
    for old in before.split()
} | {
    f"aleator.models.{each}": f"aleator.models.architectures.{each}"
    for each in ARCHITECTURES.split()
}
"""Old names of modules and new ones."""

RENAMED = {
    "Advance": "ModelRunner",
    "Alone": "StandaloneSampler",
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
    "Job": "ScheduledRequest",
    "Slot": "RequestState",
    "SlotMaker": "RequestStateMaker",
    "Slid": "ContextShift",
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
