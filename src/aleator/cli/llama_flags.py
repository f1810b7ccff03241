"""Flags of llama.cpp's tools that are no options here: what says what is so anyway is accepted.

The rest is refused with what to use.

``tests/cli/llama_flags.txt`` lists all flags of llama.cpp; a test fails where one is neither an option nor
here.
"""

from __future__ import annotations

from aleator.core.records import dataclass

EVERY = ("*",)
GENERATE, CHAT, SERVE = ("generate",), ("chat",), ("serve",)


@dataclass(frozen=True)
class Foreign:
    """A flag of llama.cpp."""

    use: str  # what to do instead; ends a message
    values: int = 0  # words that follow the flag
    # commands that accept it, for it says what is so anyway; ``EVERY``: all
    holds: tuple[str, ...] = ()
    # where it has a value, those that say what is so anyway; none: every one does
    words: tuple[str, ...] = ()

    def accepted(self, command: str, value: str | None) -> bool:
        """Whether ``command`` takes the flag with this value."""
        fits = not self.words or value in self.words
        return fits and (command in self.holds or self.holds == EVERY)


_MODEL_FILE = (
    "it is a matter of the model file: convert the model anew, or write the metadata into it"
)
_TASKSET = "threads run where the system puts them: use taskset or nice, and -t for their number"
_WHOLE_LAYERS = (
    "whole layers are on devices: --device-map cpu=0:20,cuda:0=20:32, or -ngl N for the last N"
)
_MEDIA = "models of text only"
_LOG = "messages go to standard error: 2> FILE, -v for more of them, --log-disable for none"
_ADAPTER = "--lora FILE:0 loads an adapter and applies it where a request says so"
_STATES = "cached prefixes are kept while there is room (docs/kv-cache.md)"
_DRAFT = "the draft model is loaded as the model is; --spec-draft-n-max is the most that it guesses"
_NGRAM = (
    "--spec-type ngram finds the runs by itself; --spec-draft-n-max is the most that it guesses"
)
_PAGE = "the server's page is the playground (docs/playground.md), and runs no tools"
_BENCH = "aleator bench measures (aleator bench --help)"
_PERPLEXITY = "aleator perplexity measures a text; tasks by lm-eval over aleator serve"
_NO_TOOL = "there is no such tool here"
_SIZES = "sizes are never changed silently: give -c"
_HUB = "give the model by name: -hf ORG/NAME[:QUANT]"
_WRAP = "a chat writes messages by the model's template; one of your own by --chat-template FILE"

_TABLE: dict[str, Foreign] = {
    # What is so anyway.
    "-no-cnv --no-conversation": Foreign("aleator generate continues a text", holds=GENERATE),
    "-cnv --conversation -i --interactive -if --interactive-first": Foreign(
        "aleator chat holds a conversation", holds=CHAT
    ),
    "--no-display-prompt": Foreign("leave it out", holds=("generate", "chat", "batch")),
    "--display-prompt": Foreign("--echo begins the text with the prompt", holds=CHAT),
    "-e --escape --jinja --simple-io --warmup --no-warmup --no-context-shift -kvo --kv-offload --op-offload "
    "--repack --mmap --perf --show-timings --no-log-prefix --no-log-timestamps --no-log-jsonl --no-mmproj "
    "--no-mmproj-auto --no-agent -no-ag -kvu --kv-unified -cb --cont-batching --cache-prompt": Foreign(
        "leave it out", holds=EVERY
    ),
    "--prompt-cache-all": Foreign("--session keeps the text with the prompt", holds=GENERATE),
    "-co --color": Foreign(
        "text is written without colours: leave it out", 1, EVERY, words=("off", "auto")
    ),
    "--log-colors": Foreign(_LOG, 1, EVERY, words=("off", "auto")),
    "--reasoning-format": Foreign(
        "reasoning goes to standard error in a chat, and to reasoning_content over HTTP", 1, EVERY,
        words=("auto", "deepseek"),
    ),
    "-sm --split-mode": Foreign(_WHOLE_LAYERS, 1, EVERY, words=("none",)),
    "-fit --fit": Foreign(_SIZES, 1, EVERY, words=("off",)),
    "-lm --load-mode": Foreign("weights are mapped; --mlock keeps them in memory", 1, EVERY, words=("mmap",)),
    # What is called otherwise here.
    "--version": Foreign("aleator --version"),
    "--usage": Foreign("--help"),
    "-cl --cache-list": Foreign("aleator models lists what is there"),
    "--completion-bash": Foreign("aleator completion bash writes the script"),
    "--verbose-prompt": Foreign("aleator tokenize shows the tokens of a text"),
    "--no-perf --no-show-timings": Foreign("--log-disable leaves out all that is not the text"),
    "-bf --binary-file": Foreign("-f FILE, in UTF-8", 1),
    "-ptc --print-token-count": Foreign("--json has all counts", 1),
    "--prompt-cache-ro": Foreign("copy the session's file, and go on from the copy"),
    "-sp --special": Foreign("--json lists the tokens; control tokens have no text"),
    "-mli --multiline-input": Foreign("pipe the message in, or -p"),
    "--in-prefix --in-suffix": Foreign(_WRAP, 1),
    "--in-prefix-bos --no-jinja": Foreign(_WRAP),
    "-bs --backend-sampling": Foreign("--sampling-device device"),
    "-gan --grp-attn-n -gaw --grp-attn-w": Foreign("give a model that was trained with more positions", 1),
    "--no-mmap": Foreign("weights are mapped: load a copy of a file that may change"),
    "--numa": Foreign("use numactl", 1),
    "-dev": Foreign("--device cuda, --device cuda:1 or --device cpu", 1),
    "--list-devices": Foreign("aleator doctor"),
    "-mg --main-gpu": Foreign("--device cuda:N", 1),
    "--check-tensors": Foreign("weights are always looked at for NaN and infinities; leave it out"),
    "-mu --model-url": Foreign("fetch the file with curl, or -hf ORG/NAME[:QUANT]", 1),
    "-dr --docker-repo": Foreign(_HUB, 1),
    "-hfd -hfrd --hf-repo-draft --spec-draft-hf": Foreign("--model-draft hf:ORG/NAME[:QUANT]", 1),
    "--spec-draft-model": Foreign("--model-draft", 1),
    "--draft --draft-n --draft-max": Foreign("--spec-draft-n-max", 1),
    "--draft-min --draft-n-min --spec-draft-n-min": Foreign(_DRAFT, 1),
    "--chat-template-file": Foreign("--chat-template FILE", 1),
    "--skip-chat-parsing --no-skip-chat-parsing": Foreign("aleator generate gives the raw text"),
    "--prefill-assistant --no-prefill-assistant": Foreign("end the messages with the assistant's"),
    "--reasoning-preserve --no-reasoning-preserve": Foreign("it is for the template: --chat-template-kwargs"),
    "-rea --reasoning": Foreign("""--chat-template-kwargs '{"enable_thinking": false}'""", 1),
    "--reasoning-effort": Foreign("""--chat-template-kwargs '{"reasoning_effort": "low"}'""", 1),
    "-o --output --output-file": Foreign("the text goes to standard output: > FILE", 1),
    "--server-base": Foreign("curl, or a client of OpenAI's dialect", 1),
    "-lv --verbosity --log-verbosity": Foreign("-v for all messages, --log-disable for none", 1),
    "--log-verbose": Foreign("-v"),
    "--log-file --log-prompts-dir": Foreign(_LOG, 1),
    "--log-jsonl --log-prefix --log-timestamps": Foreign(_LOG),
    "--context-file --chunk-size --chunk-separator": Foreign("model.embed makes vectors (docs/scores.md)", 1),
    "--stdin": Foreign("pipe the text in"),
    "--show-count": Foreign("aleator tokenize --ids | tr ',' '\\n' | wc -l"),
    "--no-parse-special": Foreign("leave it out: names of control tokens are text unless --parse-special"),
    # What is not here.
    "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
    "--cpu-strict-batch --prio-batch --poll-batch": Foreign(_TASKSET, 1),
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
    "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv": Foreign(_MODEL_FILE, 1),
    "-dt --defrag-thold": Foreign("tokens need no cells in a row; leave it out", 1),
    "-nr --no-repack --no-host --no-op-offload": Foreign("it is for llama.cpp's kernels; leave it out"),
    "--rpc -ot --override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -lzm --lazy-mode "
    "-mmdev --mmproj-device": Foreign(_WHOLE_LAYERS, 1),
    "-cmoe --cpu-moe": Foreign(_WHOLE_LAYERS),
    "-fitp --fit-print -fitt --fit-target -fitc --fit-ctx": Foreign(_SIZES, 1),
    "--lora-init-without-apply": Foreign(_ADAPTER),
    "--control-vector --control-vector-scaled": Foreign("logits can be changed by on_logits in Python", 1),
    "--control-vector-layer-range": Foreign("logits can be changed by on_logits in Python", 2),
    "-mm --mmproj -mmu --mmproj-url --image --audio --video --image-min-tokens --image-max-tokens "
    "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir --media-path": Foreign(
        _MEDIA, 1
    ),
    "--mmproj-auto --mmproj-offload --no-mmproj-offload": Foreign(_MEDIA),
    "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step "
    "--cache-reuse -sps --slot-prompt-similarity -lcs --lookup-cache-static -lcd "
    "--lookup-cache-dynamic --kv-unified-per-slot": Foreign(_STATES, 1),
    "--cache-idle-slots --no-cache-idle-slots -no-kvu --no-kv-unified": Foreign(_STATES),
    "--no-cache-prompt": Foreign("--no-prompt-cache"),
    "-nocb --no-cont-batching": Foreign("--parallel 1 makes one request at a time"),
    "-np --parallel": Foreign("--num N for several completions; aleator batch and serve have --parallel", 1),
    "-ns --sequences": Foreign("aleator batch --parallel N", 1),
    # Tools that are not here, or are commands of their own.
    "--hellaswag --winogrande --multiple-choice --kl-divergence": Foreign(_PERPLEXITY),
    "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks --save-all-logits --kl-divergence-base "
    "--ppl-stride --ppl-output-type --chunks": Foreign(_PERPLEXITY, 1),
    "-pps -tgs": Foreign(_BENCH),
    "-npp -ntg -npl": Foreign(_BENCH, 1),
    "--pooling --attention --embd-normalize --embd-output-format --embd-separator --cls-separator": Foreign(
        "model.embed makes vectors (docs/scores.md)", 1
    ),
    "--embedding --embeddings --rerank --reranking --metrics --slots --ui --webui": Foreign(
        "aleator serve has it", holds=SERVE
    ),
    "--spm-infill --reuse-port --props": Foreign("docs/server.md has what there is"),
    "--no-slots --no-ui --no-webui": Foreign("aleator serve --help has what can be turned off"),
    "--path --cors-origins --cors-methods --cors-headers --api-prefix -to --timeout --sse-ping-interval "
    "--threads-http --slot-save-path --models-dir --models-preset --models-max -a --alias --tags "
    "--ssl-key-file --ssl-cert-file --api-key-file --api-key --host --port --sleep-idle-seconds": Foreign(
        "aleator serve --help lists what the server takes; a proxy before it does the rest", 1
    ),
    "--cors-credentials --no-cors-credentials --models-autoload --no-models-autoload": Foreign(
        "aleator serve --help lists what the server takes; a proxy before it does the rest"
    ),
    "--ui-config --webui-config --ui-config-file --webui-config-file --tools --tools-runtime "
    "--mcp-servers-config --mcp-servers-json": Foreign(_PAGE, 1),
    "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent": Foreign(_PAGE),
    "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits": Foreign(_NGRAM, 1),
    "--spec-default": Foreign("--spec-type ngram"),
    "--in-file --junk --pos -ofreq --output-frequency --output-format --save-frequency --process-output --ppl "
    "--no-ppl --chunk --from-chunk --show-statistics --positive-file --negative-file --pca-batch --pca-iter "
    "--method -lr --learning-rate -lr-min --learning-rate-min -decay-epochs --learning-rate-decay-epochs -wd "
    "--weight-decay -val-split --val-split -epochs --epochs -opt --optimizer --check --save-logits "
    "--logits-output-dir --tensor-filter --mtp --dflash --eagle3": Foreign(_NO_TOOL),
    "-td --threads-draft -tbd --threads-batch-draft -Cd --cpu-mask-draft -Crd --cpu-range-draft "
    "--cpu-strict-draft --prio-draft --poll-draft -Cbd --cpu-mask-batch-draft -Crbd --cpu-range-batch-draft "
    "--cpu-strict-batch-draft --prio-batch-draft --poll-batch-draft -ctkd --cache-type-k-draft -ctvd "
    "--cache-type-v-draft -otd --override-tensor-draft -cmoed --cpu-moe-draft -ncmoed --n-cpu-moe-draft "
    "--draft-p-split --draft-p-min -devd --device-draft -ngld --gpu-layers-draft "
    "--n-gpu-layers-draft": Foreign(_DRAFT, 1),
}  # fmt: skip

_FAMILIES = {
    "--spec-ngram-": Foreign(_NGRAM, 1),
    "--spec-synth-": Foreign(_DRAFT, 1),
    "--spec-draft-": Foreign(_DRAFT, 1),
    "--no-spec-draft-": Foreign(_DRAFT),
    "--fim-": Foreign(_HUB),
    "--gpt-oss-": Foreign(_HUB),
    "--vision-gemma-": Foreign(_HUB),
    "--embd-gemma-": Foreign(_HUB),
    "--diffusion-": Foreign(_NO_TOOL, 1),
    "--tts-": Foreign(_NO_TOOL, 1),
}
"""By how their names begin."""

FOREIGN = {flag: each for flags, each in _TABLE.items() for flag in flags.split()}


def foreign(name: str) -> Foreign | None:
    """What is to be done about a flag of llama.cpp; None: it has no such flag, or there is one here."""
    if name in FOREIGN:
        return FOREIGN[name]
    return next((each for start, each in _FAMILIES.items() if name.startswith(start)), None)
