/** @file The playground's endpoints (docs/playground.md), answered by a model in this thread. */

import { checkedMessages } from "../aleator/chat.js";
import { takeBack } from "../aleator/healing.js";
import { load } from "../aleator/index.js";
import { check, constraintsOf, grammarOf, ofText } from "../aleator/parameters.js";
import { withMarks } from "../aleator/phase-table.js";
import { textOptions } from "../aleator/text-options.js";
import declared from "../declared.js";
import { BeamSearch, beamOptions } from "./beams.js";
import { cellsInRuns, frames } from "./cells.js";
import { chainWords, draws, explain, nameOf, probability, samplersOf } from "./explain.js";
import { fingerprint } from "./fingerprint.js";
import { savedPage } from "./recorded.js";
import { described, spellings } from "./spellings.js";
import { RequestError, Texts } from "./texts.js";

const MOST_TEXT = 2000;
const ELSEWHERE = "needs aleator playground on a computer: not in a page alone";
/** What a page without a server lacks, by name of parameter or option. */
const lacking = Object.fromEntries(["watermark_key_file"].map((name) => [name, ELSEWHERE]));
/** Options of a text that are understood here, by the names that the package gives them. */
const NAMES = ["maxTokens", "stop", "stopLoops", "heal", "reasoningBudget", "reasoningBudgetMessage", "reasoningBudgetGrace", "reasoningMarks", "bannedStrings", "bannedRegex"];
const OPTIONS = Object.fromEntries(NAMES.map((name) => [name, name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)]));

/** A model, and the texts that it wrote. */
export class Engine {
  constructor(model, fallback) {
    this.model = model;
    this.texts = new Texts(model);
    this.named = (id) => this.token(id);
    const { gguf, nCtx } = model;
    const named = gguf.fields.has("general.name") && gguf.fields.get("general.name", "string");
    this.about = {
      name: named || fallback,
      architecture: gguf.fields.get("general.architecture", "string"),
      parameters: [...gguf.tensors].reduce((n, [name, { shape }]) => n + (name.startsWith("rope_f") ? 0 : shape.reduce((a, b) => a * b, 1)), 0),
      n_vocab: this.texts.size,
      n_ctx: nCtx,
      chat: chats(model),
      bundled: false,
      fingerprint: fingerprint(gguf.data),
    };
  }

  /** The engine of a URL or a File; `bundled`: it is the model that comes with the page. */
  static async load(source, bundled, onProgress) {
    const engine = new Engine(await load(source, { onProgress, keep: !bundled }), source.name ?? String(source).split("/").at(-1));
    engine.about.bundled = bundled;
    return engine;
  }

  /** A token as JSON. */
  token(id) {
    const { vocabulary } = this.model;
    if (!vocabulary) return { id, text: null };
    const piece = vocabulary.bytes(id);
    const told = { id, text: null };
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(piece);
      const letters = text.length > MOST_TEXT ? [...text] : null;
      told.text = letters ? letters.slice(0, MOST_TEXT).join("") : text;
      if (letters) told.length = letters.length;
    } catch {
      told.bytes = Array.from(piece.subarray(0, MOST_TEXT), (byte) => byte.toString(16).padStart(2, "0")).join("");
    }
    if (vocabulary.isSpecial(id)) {
      told.special = true;
      if (!piece.length) told.text = vocabulary.text(id).slice(0, MOST_TEXT);
    }
    return told;
  }

  /** Answer a request: JSON, lines of JSON from an async generator, or a promise of a file's text. */
  answer(method, path, body = {}) {
    const [, kind, id, what] = path.split("/");
    const of = () => this.texts.find(id);
    if (path === "") return this.declarations();
    if (path === "/texts") return this.write(body);
    if (path === "/page") return savedPage(this, body);
    if (path === "/beams") return this.search(body);
    if (path === "/cache") return frames(this.model, body.script);
    if (path === "/cells") return cellsInRuns(this.texts.cache);
    if (path === "/chain") return this.check(split(body).sampling);
    if (path === "/tokens") return this.tokens(split(body).own.text);
    if (kind === "texts" && method === "DELETE") return void this.texts.forget(id);
    if (what === "step") return this.step(of(), body);
    if (what === "resample") return this.resample(of(), body);
    if (what === "draws") return this.draws(of(), body);
    throw new RequestError(`${path.slice(1)} ${ELSEWHERE}`, null, null, 404);
  }

  declarations() {
    const { used, limit, rows } = this.texts.memory;
    return { ...declared, lacking, model: this.about, memory: { limit, used, rows: rows.length } };
  }

  check(sampling) {
    const chain = this.texts.chain(sampling, 0);
    const samplers = samplersOf(chain);
    const told = samplers.map((sampler) => ({ name: nameOf(sampler), label: described(sampler), neutral: sampler.neutral }));
    return { chain: chainWords(chain), samplers: told, ...spellings(sampling) };
  }

  tokens(text) {
    if (typeof text !== "string") throw new RequestError("text: give a text", "text");
    return { tokens: this.model.tokenizer.encode(text).map(this.named) };
  }

  begin({ own, sampling }) {
    if (given(own, "prompt", "messages", "parent") === "parent") {
      const options = optionsOf(own, this.model.tokenizer);
      const parent = this.texts.find(own.parent);
      const marked = this.marked(sampling, { options, tokens: parent.prompt });
      return { options, text: Object.assign(renamed(() => this.texts.branch(parent, own.at, own.token, marked, options)), { asked: sampling }) };
    }
    const begun = this.beginning(own);
    const { tokens, options, shown } = begun;
    const marked = this.marked(sampling, begun);
    if (options.heal && (sampling.grammar ?? null) !== null) throw new RequestError("heal=true: not with a grammar, as both say what the first tokens are", "heal");
    const [left, taken] = options.heal ? takeBack(tokens, this.model.tokenizer, marked.phases) : [tokens, []];
    return { options, text: Object.assign(renamed(() => this.texts.begin(left, marked, options)), { taken, shown, asked: sampling }) };
  }

  /** The sampling parameters of a text with the marks of its phases; known: those of a conversation's template. */
  marked(sampling, { options, tokens, known }) {
    const phases = known && sampling.phases && withMarks(check("phases", sampling.phases), known, "the chat template");
    return ofText({ ...sampling, ...(phases && { phases }) }, { thinking: options.reasoningMarks }, tokens, this.model.tokenizer);
  }

  /** The tokens of a prompt or a conversation, the options of a text, and control tokens that are part of it. */
  beginning(own) {
    const { tokenizer } = this.model;
    if ((own.messages ?? null) !== null) return this.conversation(own);
    const tokens = typeof own.prompt === "string" ? tokenizer?.encode(own.prompt) : own.prompt;
    if (!Array.isArray(tokens) || !tokens.length) throw new RequestError("prompt is empty: give a text or a list of token ids", "prompt");
    const { size } = this.texts;
    if (!tokens.every((id) => Number.isInteger(id) && id >= 0 && id < size)) throw new RequestError(`prompt: the model has tokens 0 to ${size - 1}`, "prompt");
    return { tokens: this.fitting("prompt", tokens), options: optionsOf(own, tokenizer), shown: [] };
  }

  /** The next turn of a conversation, which ends as the model's turns do. */
  conversation(own) {
    const template = this.model.template();
    const { thinking, shown } = template;
    const tokens = template.encode(template.rendered(checkedMessages(own.messages), {}));
    if (own.heal) throw new RequestError("heal=true: the template ends a chat's prompt, and not a word: leave it out", "heal");
    if ((own.reasoning_budget ?? -1) !== -1 && !thinking) throw new RequestError(`reasoning_budget=${own.reasoning_budget}: nothing says how this model writes its reasoning: leave it out`, "reasoning_budget");
    const marks = thinking && { reasoning_marks: [thinking.begin, thinking.end + thinking.after] };
    const options = optionsOf({ ...marks, ...own, stop: [...this.model.vocabulary.chatStop, ...[own.stop ?? []].flat()] }, this.model.tokenizer);
    return { tokens: this.fitting("messages", tokens), options, shown, known: template.phaseMarks };
  }

  fitting(name, tokens) {
    const { nCtx } = this.model;
    if (tokens.length > nCtx) throw new RequestError(`${name}: the prompt has ${tokens.length} tokens and the context ${nCtx} positions: shorten it`, name);
    return tokens;
  }

  /** Lines of a text; `stop` ends it. */
  write(body) {
    const asked = split(body);
    const { text, options } = this.begin(asked);
    return Object.assign(this.lines(text, options, asked), { stop: () => (text.stopped = true) });
  }

  async *lines(text, options, { own: { top = 10 }, compiled }) {
    const { prompt, parent, at, inherited, seed } = text;
    const begun = { prompt: prompt.map(this.named), inherited: inherited.length, seed, chain: chainWords(text.chain), ...compiled };
    yield { event: "start", id: text.id, parent: parent?.id ?? null, at, ...begun };
    const look = (row) => explain(text.chain, row, Math.max(top, 1), this.named);
    for await (const { step, found, end } of this.texts.write(text, options, look)) {
      if (found) yield this.shortStep(text, step, found, top);
      else yield { event: "end", steps: text.drawn.length, ...end, kept_bytes: this.texts.memory.used, kept_limit: this.texts.memory.limit };
    }
  }

  /** Lines of a search; `stop` ends it. */
  search(body) {
    const { own, sampling, compiled } = split(body, OF_SEARCH);
    const asked = beamOptions(own);
    given(own, "prompt", "messages");
    const begun = this.beginning(own);
    const { tokens, options, shown } = begun;
    const chain = this.texts.chain({ preset: "neutral", ...this.marked(sampling, begun) }, this.texts.fresh());
    chain.acceptAll(tokens);
    const search = new BeamSearch(this.model, tokens, chain, asked, options, shown);
    return Object.assign(this.searched(search, compiled), { stop: () => (search.stopped = true) });
  }

  async *searched(search, compiled) {
    const { prompt, chain } = search;
    yield { event: "start", prompt: prompt.map(this.named), seed: Number(chain.seed), chain: chainWords(chain), ...compiled };
    const began = performance.now();
    let step = 0;
    for await (const { beams, texts } of search.steps()) {
      if (beams) yield { event: "step", step: step++, beams: beams.map((beam) => ({ ...beam, token: this.token(beam.token) })) };
      else
        yield {
          event: "end",
          reason: search.stopped ? "interrupted" : texts[0]?.stop_reason ?? "context",
          texts: texts.map((text) => ({ ...text, tokens: text.tokens.map(this.named) })),
          computed: prompt.length, reused: 0, seconds: (performance.now() - began) / 1000,
        };
    }
  }

  shortStep(text, step, found, top) {
    const { stages, logits } = found;
    const last = stages.at(-1)?.after ?? logits;
    const done = stages.filter((stage) => !stage.neutral);
    return {
      event: "step",
      ...this.writtenStep(text, step, found, text.rows[step].logits),
      entropy: logits.entropy,
      entropy_after: last.entropy,
      left: last.candidates,
      stages: done.map(({ name, after, removed, cut, moved }) => ({ name, left: after.candidates, removed, cut, moved, entropy: after.entropy })),
      top: found.traces.slice(0, top).map(({ token, probabilities: p }) => ({ token, before: p[0], after: p.at(-1) })),
    };
  }

  writtenStep({ drawn }, step, { traces, draw }, logits) {
    const id = drawn[step];
    if (id === undefined) return { step, token: null, picked: false };
    const p = traces.find((trace) => trace.token.id === id)?.probabilities;
    return { step, token: this.token(id), picked: draw?.token.id !== id, before: p?.[0] ?? probability(logits, id), after: p?.at(-1) ?? null };
  }

  at(text, body, work) {
    const { own, sampling } = split(body);
    const chain = this.texts.chainAt(text, own.step, Object.keys(sampling).length ? sampling : null);
    try {
      return work(chain, text.logits(own.step), own);
    } finally {
      chain.free();
    }
  }

  step(text, body) {
    return this.at(text, body, (chain, logits, { step, top = 30 }) => {
      const found = explain(chain, logits, top, this.named);
      return { ...this.writtenStep(text, step, found, logits), ...found };
    });
  }

  resample(text, body) {
    const found = this.texts.resample(text, split(body).sampling);
    return { ...found, changed: Object.fromEntries([...found.changed].map(([step, id]) => [step, this.token(id)])) };
  }

  draws(text, body) {
    return this.at(text, body, (chain, logits, { n = 1000 }) => draws(chain, logits, n, this.named));
  }
}

/** Whether a conversation is possible: the file has a template, which is understood here. */
function chats(model) {
  try {
    return Boolean(model.template());
  } catch {
    return false;
  }
}

/** Which of these fields a body has: one, or it is refused. */
function given(own, ...names) {
  const found = names.filter((name) => (own[name] ?? null) !== null);
  if (found.length !== 1) throw new RequestError(`give one of ${names.join(", ")}`, found[1] ?? names[0]);
  return found[0];
}

const OF_SEARCH = ["prompt", "messages", "max_tokens", "stop", ...Object.keys(declared.beams)];
const OWN = ["prompt", "messages", "parent", "text", "at", "token", "top", "step", "n", ...Object.values(OPTIONS)];
/** Bounds of whole numbers. */
const BOUNDS = { max_tokens: [0, 2 ** 31 - 1], at: [0, 2 ** 31 - 1], token: [0, 2 ** 31 - 1], step: [0, 2 ** 31 - 1], top: [0, 1000], n: [1, 10_000] };

/** A text's options, of a body's fields; errors have the names of these. */
function optionsOf(own, tokenizer) {
  const given = Object.entries(OPTIONS).map(([name, field]) => [name, own[field]]);
  return renamed(() => textOptions(tokenizer, Object.fromEntries(given.filter(([, value]) => value !== undefined))).options);
}

/** What work gives; an error that begins with the package's name of an option has the field's in place of it. */
function renamed(work) {
  try {
    return work();
  } catch (error) {
    const [name] = /^\w*/.exec(error.message);
    throw Object.hasOwn(OPTIONS, name) ? new RequestError(error.message.replace(name, OPTIONS[name]), OPTIONS[name]) : error;
  }
}

/** A body's own fields, options of the text among them, and its sampling parameters; `taken`: the fields that it may have. */
function split(body, taken = OWN) {
  const made = { own: {}, sampling: {} };
  for (const [name, value] of Object.entries(body)) {
    const [low, high] = BOUNDS[name] ?? [];
    if (value === null && taken.includes(name)) continue;
    if (BOUNDS[name] && !(Number.isInteger(value) && value >= low && value <= high)) throw new RequestError(`${name}=${JSON.stringify(value)}: give a whole number from ${low} to ${high}`, name);
    const isParameter = Object.hasOwn(declared.parameters, name);
    const known = isParameter ? declared.parameters[name] : Object.hasOwn(declared.options, name) && declared.options[name];
    if (taken.includes(name)) made.own[name] = value;
    else if (name === "preset" || (isParameter && !Object.hasOwn(lacking, name))) made.sampling[name] = value;
    else if (OWN.includes(name)) throw new RequestError(`${name} has no meaning for a search of beams: leave it out`, name);
    else if (!known) throw new RequestError(`there is no parameter ${JSON.stringify(name)}`, name);
    else if (JSON.stringify(value) !== JSON.stringify(known.default)) throw new RequestError(`${name} ${ELSEWHERE}`, name);
  }
  const compiled = grammarInstead(made.sampling);
  return { own: made.own, sampling: { ...made.sampling, ...compiled }, compiled };
}

/**
 * What stands in place of a JSON schema or a regular expression: the GBNF that it becomes here.  With that the text is
 * the same everywhere; Python's package keeps these in another way, by other tokens.
 */
function grammarInstead(sampling) {
  const name = constraintsOf(sampling).find((each) => each !== "grammar");
  if (!name) return {};
  try {
    const grammar = grammarOf({ ...sampling, [name]: check(name, sampling[name]) });
    delete sampling[name];
    return { grammar };
  } catch (error) {
    throw Object.assign(error, { param: name });
  }
}

/** An error as an answer has it. */
export function toldError(error) {
  const [first] = /^\w*/.exec(error.message);
  const known = first === "preset" || first === "messages" || Object.hasOwn(declared.parameters, first);
  const param = error.param ?? (error.name === "GrammarError" ? "grammar" : known ? first : null);
  const { message, code = null, line, column, status = 400 } = error;
  return { message, param, code, status, ...(line ? { line, column } : {}) };
}
