/** @file Texts as they are written, their logits within a memory bound, chains over these, and branches
 *  (src/aleator/server/playground/recording.py). */

import { Completion, following, pause } from "../aleator/completion.js";
import { LoopWatch, checkStretch } from "../aleator/loops.js";

const LIMIT = 256 << 20;
const MOST_TEXTS = 512;
const MOST_BRANCHES = 256;
const AT_ONCE = 64;

/** An error as the server words it. */
export class RequestError extends Error {
  constructor(message, param = null, code = null, status = 400) {
    super(message);
    Object.assign(this, { param, code, status });
  }
}

/** Rows of logits; the oldest are forgotten when they would exceed a number of bytes. */
class Memory {
  used = 0;
  limit = LIMIT;
  rows = [];
  keep(logits) {
    const row = { logits };
    this.rows.push(row);
    this.used += logits.byteLength;
    while (this.used > this.limit) this.forget(this.rows.shift());
    return row;
  }
  forget(row) {
    this.used -= row.logits?.byteLength ?? 0;
    row.logits = null;
  }
  release(rows) {
    rows.forEach((row) => this.forget(row));
    this.rows = this.rows.filter((row) => row.logits);
  }
}

const written = (values) => JSON.stringify(values, (_, value) => (typeof value === "bigint" ? String(value) : value));
/** Whether a chain's state depends on its draws. */
export const adapts = (chain) => chain.members.some((sampler) => ["mirostat", "mirostat_v2", "adaptive_p"].includes(sampler.constructor.sampler));

/** One text: its prompt, tokens inherited from an earlier one, and tokens drawn after them. */
class Text {
  constructor(prompt, parent, at, inherited, asked, { loops }, chain) {
    const depth = parent ? parent.depth + 1 : 0;
    checkStretch(loops, chain.values);
    Object.assign(this, { id: crypto.randomUUID(), prompt, parent, at, inherited, asked, loops, chain, depth });
    this.rows = parent ? parent.rows.slice(0, inherited.length) : [];
    this.own = [];
    this.begun = chain.clone(); // as it is before the first draw
    this.taken = []; // tokens of the prompt that are written anew
    this.shown = []; // control tokens that are part of the text
    this.stopped = false;
    this.end = { reason: null, complete: null, computed: 0, reused: 0 }; // as it has ended
  }
  get drawn() {
    return [...this.inherited, ...this.own];
  }
  get seed() {
    return Number(this.chain.seed);
  }
  logits(step) {
    if (!(step >= 0 && step < this.rows.length)) throw new RequestError(`step=${step} is out of range: the text has steps 0 to ${this.rows.length - 1}`, "step");
    const { logits } = this.rows[step];
    if (!logits) throw new RequestError(`the logits of step ${step} are not kept any more: write the text again`, "step", "logits_forgotten", 410);
    return logits;
  }
}

/** The texts of a model, written one after another over one cache. */
export class Texts {
  memory = new Memory();
  texts = new Map();
  held = []; // tokens in the cache
  made = null; // the cache, once it is needed
  turn = Promise.resolve();

  constructor(model) {
    this.model = model;
    this.size = model.vocabulary?.size ?? model.gguf.tensors.get("token_embd.weight").shape[0];
  }

  get cache() {
    return (this.made ??= this.model.cache());
  }

  find(id) {
    const text = this.texts.get(id);
    if (!text) throw new RequestError(`there is no text ${JSON.stringify(id)}: write it again`, "id", "no_such_text", 404);
    this.texts.delete(id);
    this.texts.set(id, text); // the last one that was asked for
    return text;
  }

  forget(id) {
    const text = this.find(id);
    text.stopped = true;
    this.texts.delete(id);
    const shared = new Set([...this.texts.values()].flatMap((each) => each.rows));
    this.memory.release(text.rows.slice(text.inherited.length).filter((row) => !shared.has(row)));
  }

  /** A chain of these parameters; `seed`: the one of a request without. */
  chain({ preset, seed: own, ...parameters }, seed) {
    return this.model.chain({ ...parameters, seed: (own ?? -1) === -1 ? seed : own }, { preset });
  }

  /** Begin a text from token ids; asked: sampling parameters; options: as textOptions gives them. */
  begin(prompt, asked, options) {
    return this.add(new Text(prompt, null, 0, [], asked, options, this.accepting(asked, this.fresh(), prompt, [])));
  }

  /** Begin a text with another one's first tokens, and a token that was picked. */
  branch(parent, at, pick, asked, options) {
    const drawn = parent.drawn;
    if (parent.depth >= MOST_BRANCHES) throw new RequestError(`parent: ${parent.depth} texts branch off one another: begin a new one with its tokens as prompt`, "parent");
    at ??= drawn.length;
    const most = drawn.length - (pick === undefined ? 0 : 1);
    if (!(at >= 0 && at <= most)) throw new RequestError(`at=${at} is out of range: the text has drawn ${drawn.length} tokens, give 0 to ${most}`, "at");
    if (pick !== undefined && !(pick >= 0 && pick < this.size)) throw new RequestError(`token=${pick} is not in the vocabulary`, "token");
    const inherited = [...drawn.slice(0, at), ...(pick === undefined ? [] : [pick])];
    let chain = this.accepting(asked, parent.seed, parent.prompt, inherited);
    // What adapts to draws goes on from its state.
    if (at < drawn.length && adapts(parent.chain) && written(parent.chain.values) === written(chain.values)) {
      const own = this.replayed(parent, at);
      own.loops?.end();
      chain = own.chain;
      if (pick !== undefined) chain.accept(pick, { generated: true });
    }
    return this.add(new Text(parent.prompt, parent, at, inherited, asked, options, chain));
  }

  fresh = () => crypto.getRandomValues(new Uint32Array(1))[0];

  accepting(asked, seed, prompt, generated) {
    const chain = this.chain(asked, seed);
    chain.acceptAll(prompt);
    chain.acceptAll(generated, { generated: true });
    return chain;
  }

  add(text) {
    this.texts.set(text.id, text);
    if (this.texts.size > MOST_TEXTS) this.texts.delete(this.texts.keys().next().value);
    return text;
  }

  /** A chain at a step of a text: the text's own as it drew, or one of other parameters. */
  chainAt(text, step, asked = null) {
    return this.replayed(text, step, asked).chain;
  }

  /** The same, and what raises its temperature after loops, if anything does. */
  replayed(text, step, asked = null) {
    let owner = text;
    while (!asked && owner.parent && step < owner.inherited.length) owner = owner.parent;
    const chain = asked ? this.accepting(asked, text.seed, text.prompt, []) : owner.begun.clone();
    owner.logits(step);
    const draws = adapts(chain);
    const loops = !asked && owner.loops?.length > 2 ? new LoopWatch(owner.loops, chain) : null;
    if (loops) for (const token of owner.inherited) loops.push(token);
    for (let i = asked ? 0 : owner.inherited.length; i < step; i++) {
      if (draws) this.draw(chain, owner, i);
      else chain.accept(owner.drawn[i], { generated: true });
      loops?.push(owner.drawn[i]);
    }
    return { chain, loops };
  }

  /** The token that a chain draws at its step; it then accepts the text's token. */
  draw(chain, text, step) {
    const token = chain.sample(text.logits(step));
    if (token !== text.drawn[step]) {
      chain.rollback(1);
      chain.accept(text.drawn[step], { generated: true });
    }
    return token;
  }

  /** Draw every token of a text with another chain, each after the text's own tokens. */
  resample(text, asked) {
    const chain = this.accepting(asked, text.seed, text.prompt, []);
    const changed = new Map();
    let forgotten = 0;
    let refused = null;
    const { drawn } = text;
    for (const [step, token] of drawn.entries()) {
      try {
        if (!text.rows[step]?.logits) {
          forgotten++;
          chain.accept(token, { generated: true });
        } else {
          const other = this.draw(chain, text, step);
          if (other !== token) changed.set(step, other);
        }
      } catch (error) {
        if (error.name !== "ConstraintError") throw error;
        refused = step;
        break;
      }
    }
    chain.free();
    return { steps: drawn.length, changed, forgotten, refused };
  }

  /** Write a text, after those that were begun before it: what `look` makes of each row before the draw, and how it ended. */
  async *write(text, options, look) {
    const before = this.turn;
    let done;
    this.turn = new Promise((resolve) => (done = resolve));
    await before;
    try {
      yield* this.writing(text, options, look);
    } finally {
      done();
    }
  }

  async *writing(text, options, look) {
    const { model } = this;
    const all = [...text.prompt, ...text.inherited];
    const began = performance.now();
    const { cache } = this;
    const reused = this.keep(cache, all);
    const { tokenizer, nCtx } = model;
    const { prompt, taken, inherited: begun, shown } = text;
    const completion = new Completion(text.chain, { tokenizer, nCtx, prompt, taken, begun, shown, ...options });
    let next = all.slice(reused);
    let step = begun.length;
    const found = []; // of each step
    text.own = completion.tokens;
    while (!completion.stopReason) {
      await pause();
      if (text.stopped) {
        completion.stopReason = "interrupted";
        break;
      }
      const part = next.slice(0, AT_ONCE);
      const logits = cache.decode(part);
      this.held.push(...part);
      next = next.slice(AT_ONCE);
      if (next.length) continue;
      const row = completion.allowed(logits.slice(0, this.size)); // the matrix may have more rows than there are tokens
      const { position } = text.chain;
      text.rows.length = position; // those of tokens that were taken back
      text.rows.push(this.memory.keep(row));
      found[position] = look(row);
      const token = await completion.draw(row, this.held.length, { get aborted() { return text.stopped; } });
      if (token === null) continue;
      next = following(cache, this.held, completion.take(token, row, this.held.length));
      for (; step < text.drawn.length; step++) yield { found: found[step], step };
    }
    completion.end();
    const { stopReason: reason, complete } = completion;
    text.end = { reason, complete, computed: all.length - reused, reused };
    yield { end: { ...text.end, seconds: (performance.now() - began) / 1000 } };
  }

  /** Keep what the cache and these tokens have in common, but for the last; how many that are. */
  keep(cache, tokens) {
    let n = 0;
    while (n < tokens.length - 1 && this.held[n] === tokens[n]) n++;
    try {
      if (n < this.held.length) cache.seqRm(0, n);
    } catch {
      cache.clear(); // states cannot be cut
      n = 0;
    }
    this.held.length = n;
    return n;
  }
}
