/** @file Search of beams, step by step (src/aleator/generate/beams.py, beam_chain.py). */

import { Completion, pause } from "../aleator/completion.js";
import { native } from "../aleator/index.js";
import constants from "../constants.js";
import declared from "../declared.js";
import { follower, gumbel, withMaximum } from "./beam-noise.js";
import { RequestError } from "./texts.js";

const { COLDEST, DRAWING, PLAIN } = constants.beams;
const AT_ONCE = 64; // tokens of a prompt

/** The options of a search, checked, of a body's fields. */
export function beamOptions(own) {
  const made = {};
  for (const [name, { type, default: usual, range, schema }] of Object.entries(declared.beams)) {
    const value = own[name] ?? usual;
    const { minimum: low, maximum: high } = schema;
    const valid =
      schema.enum ? schema.enum.includes(value)
      : type === "bool" ? typeof value === "boolean"
      : typeof value === "number" && value >= low && value <= high && (type === "float" || Number.isInteger(value));
    const allowed = schema.enum ? schema.enum.map((each) => JSON.stringify(each)).join(" or ") : type === "bool" ? "true or false" : range;
    if (!valid) throw new RequestError(`${name}=${JSON.stringify(value)}: give ${allowed} (default: ${usual})`, name);
    made[name] = value;
  }
  if (made.num_return_sequences > made.num_beams)
    throw new RequestError(`num_return_sequences=${made.num_return_sequences} with num_beams=${made.num_beams}: give at most num_beams, or more beams`, "num_return_sequences");
  for (const name of made.stochastic ? ["length_penalty", "early_stopping"] : [])
    if (made[name] !== declared.beams[name].default)
      throw new RequestError(`${name}=${made[name]} means nothing with stochastic=true, where every text is drawn to its end: leave one out`, name);
  return made;
}

/** Refuse a chain with samplers that draw, or one that leaves a single token. */
function checkChain({ members, values: { temperature } }) {
  const draw = members.map((each) => each.draw).find((each) => !PLAIN.includes(each));
  if (draw) throw new RequestError(`draw=${draw} says how tokens are drawn, and beams draw none: leave it out`, "draw");
  const drawing = members.find(({ constructor, neutral }) => DRAWING[constructor.sampler] && !neutral)?.constructor.sampler;
  if (drawing) throw new RequestError(`${DRAWING[drawing]}: ${drawing} draws, or adapts to what was drawn, so beams have no probabilities under it: leave it out`, DRAWING[drawing]);
  if (temperature <= COLDEST) throw new RequestError(`temperature=${temperature} leaves one token, and beams nothing to choose from: leave it out, or give more than ${COLDEST} (default: 1)`, "temperature");
}

/** One search over a cache of its own. */
export class BeamSearch {
  /**
   * chain: it has accepted the prompt, its tokens; asked: the search's options; text: those of its texts, as
   * textOptions gives them; shown: control tokens that are part of a text.
   */
  constructor(model, prompt, chain, asked, text, shown) {
    checkChain(chain);
    const room = model.nCtx - prompt.length + 1;
    if (text.maxTokens === 0) throw new RequestError("max_tokens=0: beams have at least 1 token: give 1 or more", "max_tokens");
    Object.assign(this, { model, prompt, chain, asked, text, shown, stopped: false });
    this.longest = Math.min(room, text.maxTokens);
    this.size = model.vocabulary?.size ?? model.config.n_vocab;
    const key = follower(chain.seed);
    const order = asked.stochastic ? gumbel(key, [0], 1)[0] : 0;
    this.running = [{ tokens: [], logprobs: [], logprob: 0, order, chain: chain.clone(), seq: 0, key, done: false }];
    this.finished = [];
  }

  /** The beams of each step as they are made; then the texts, the best first, none if it was stopped. */
  async *steps() {
    this.cache = this.newCache();
    try {
      let logits;
      for (let at = 0; at < this.prompt.length && !this.stopped; at += AT_ONCE) {
        await pause();
        logits = this.cache.decode(this.prompt.slice(at, at + AT_ONCE));
      }
      while (!this.stopped) {
        yield { beams: this.choose(logits) };
        if (!this.running.length) break;
        await pause();
        logits = this.cache.decodeBatch(this.running.map(({ seq, tokens }) => ({ seq, tokens: tokens.slice(-1) })));
      }
      const found = this.stopped ? [] : this.finished.slice(0, this.asked.num_return_sequences);
      yield { texts: found.map((each) => this.told(each)) };
    } finally {
      this.cache.free();
      for (const { chain } of [...this.running, ...this.finished]) chain.free();
    }
  }

  /** A cache with cells for the longest texts. */
  newCache() {
    const { num_beams: n } = this.asked;
    try {
      return this.model.cache({ nCtx: this.prompt.length + n * (this.longest - 1), nSeqs: n });
    } catch (error) {
      if (error.name !== "MemoryError") throw error;
      throw new RequestError(`num_beams=${n}, with max_tokens=${this.longest}: ${error.message}: give fewer`, "num_beams");
    }
  }

  /** Go on by a token from the logits after each beam; the beams that are left, the best first. */
  choose(logits) {
    const before = this.running;
    const width = logits.length / before.length;
    const ways = before.map((beam, i) => this.ways(beam, logits.subarray(i * width, i * width + this.size)));
    const made = [];
    const children = this.children(merged(ways), made);
    const goesOn = this.asked.stochastic ? this.drawn(children) : this.best(children);
    const left = [...this.running, ...this.finished];
    const told = left.filter(({ parent }) => before.includes(parent)).map(({ parent, tokens, logprobs, order, done }) => ({ parent: before.indexOf(parent), token: tokens.at(-1), logprob: logprobs.at(-1), order, done }));
    if (goesOn) this.fork();
    else this.running = [];
    const kept = new Set([...this.running, ...this.finished]);
    for (const each of [...before, ...made]) if (!kept.has(each)) each.chain.free();
    return told;
  }

  /** How a beam may go on, the best first: { order, beam, token, logprob }. */
  *ways(beam, row) {
    const [ids, logprobs] = distribution(beam.chain, row);
    let orders = logprobs.map((logprob) => beam.logprob + logprob);
    if (this.asked.stochastic) {
      const noise = gumbel(beam.key, ids);
      orders = withMaximum(orders.map((order, i) => order + noise[i]), beam.order);
    }
    for (const i of ranked(orders, 2 * this.asked.num_beams)) yield { order: orders[i], beam, token: ids[i], logprob: logprobs[i] };
  }

  /** The beams that come of ways; all of them are added to `made`. */
  *children(ways, made) {
    for (const { order, beam: parent, token, logprob } of ways) {
      const chain = parent.chain.clone();
      chain.accept(token, { generated: true });
      const tokens = [...parent.tokens, token];
      const child = { parent, tokens, logprobs: [...parent.logprobs, logprob], logprob: parent.logprob + logprob, order, chain, seq: parent.seq, key: follower(parent.key, token) };
      const completion = this.completion(child);
      child.done = completion.isEnd(token) || completion.isStop(token) || tokens.length >= this.longest || chain.finished;
      if (!child.done && this.text.stops.length) child.done = fed(completion, tokens).stopReason !== null;
      made.push(child);
      yield child;
    }
  }

  /** Take the best children, of which a complete one counts if it is among the first; whether the search goes on. */
  best(children) {
    const { num_beams: n, length_penalty: penalty, early_stopping: early } = this.asked;
    const running = [];
    let rank = 0;
    for (const child of children) {
      if (!child.done) running.push(child);
      else if (rank < n) {
        child.order = child.logprob / child.tokens.length ** penalty;
        this.finished.push(child);
      }
      if (++rank >= n && (running.length >= n || child.tokens.length >= this.longest)) break;
    }
    this.keep([...this.finished].sort((a, b) => b.order - a.order).slice(0, n));
    this.running = running.slice(0, n);
    if (!running.length || this.finished.length < n) return running.length > 0;
    const length = early === "never" && penalty > 0 ? this.longest : running[0].tokens.length;
    return early !== true && running[0].logprob / length ** penalty > this.finished.at(-1).order;
  }

  /** Take those with the largest noisy log-probabilities, of the complete ones and the children; whether any goes on. */
  drawn(children) {
    const { num_beams: n } = this.asked;
    const pool = [...this.finished];
    for (const child of children) {
      pool.push(child);
      if (pool.length === this.finished.length + n) break;
    }
    const best = pool.sort((a, b) => b.order - a.order).slice(0, n);
    this.keep(best.filter(({ done }) => done));
    this.running = best.filter(({ done }) => !done);
    return this.running.length > 0;
  }

  /** Forget the complete texts that are not among these. */
  keep(finished) {
    for (const each of this.finished) if (!finished.includes(each)) each.chain.free();
    this.finished = finished;
  }

  /** Give every beam a sequence: the first child has its parent's, others a fork of it. */
  fork() {
    const taken = new Set();
    const parents = new Set(this.running.map(({ seq }) => seq));
    const free = [...Array(this.asked.num_beams).keys()].filter((seq) => !parents.has(seq));
    for (const seq of free) this.cache.seqRm(seq);
    for (const beam of this.running) {
      if (taken.has(beam.seq)) {
        const own = free.pop();
        this.cache.seqCp(beam.seq, own);
        beam.seq = own;
      }
      taken.add(beam.seq);
    }
  }

  completion({ chain }) {
    const { model, prompt, shown, text } = this;
    return new Completion(chain, { tokenizer: model.tokenizer, nCtx: model.nCtx, prompt, shown, maxTokens: text.maxTokens, stops: text.stops, completeGrammar: false });
  }

  /** A text that was found. */
  told({ tokens, logprobs, logprob, order: score, chain }) {
    const completion = fed(this.completion({ chain }), tokens);
    completion.stopReason ??= chain.finished ? "grammar" : "context";
    const text = completion.pieces.join("") + completion.end();
    const { stopReason: stop_reason, complete } = completion;
    return { text, tokens, logprobs, logprob, score, stop_reason, complete, seed: this.asked.stochastic ? Number(chain.seed) : null };
  }
}

/** A completion after it was given tokens, with the `pieces` of its text. */
function fed(completion, tokens) {
  return Object.assign(completion, { pieces: tokens.map((token) => completion.feed(token)) });
}

/** The ids that a chain keeps of logits, and their natural-log probabilities. */
function distribution(chain, row) {
  const candidates = new native.Candidates(row.slice());
  try {
    chain.kernels.apply(candidates);
    const { ids, logits } = candidates;
    return [ids, logSoftmax(Float64Array.from(logits))];
  } finally {
    candidates.free();
  }
}

/** NaN counts as -Infinity; where some are Infinity, they share all. */
function logSoftmax(logits) {
  let z = logits.map((x) => (Number.isNaN(x) ? -Infinity : x));
  const largest = z.reduce((a, b) => Math.max(a, b), -Infinity);
  if (largest === -Infinity) return z;
  z = largest === Infinity ? z.map((x) => (x === Infinity ? 0 : -Infinity)) : z.map((x) => x - largest);
  const log = Math.log(z.reduce((sum, x) => sum + Math.exp(x), 0));
  return z.map((x) => x - log);
}

/** Places of scores above -Infinity, the best first, of equal ones the first; so many are looked for at once. */
function* ranked(scores, n) {
  const sorted = scores.slice().sort();
  for (let bound = Infinity; ; n *= 4) {
    n = Math.min(n, scores.length);
    const least = sorted[scores.length - n];
    const places = [];
    scores.forEach((score, i) => score >= least && score < bound && score > -Infinity && places.push(i));
    yield* places.sort((a, b) => scores[b] - scores[a]);
    if (n === scores.length) return;
    bound = least;
  }
}

/** The ways of all beams, the best first, of equal ones those of the first beam. */
function* merged(ways) {
  const heads = ways.map((each) => each.next());
  for (;;) {
    let best = -1;
    heads.forEach(({ done, value }, i) => {
      if (!done && (best < 0 || value.order > heads[best].value.order)) best = i;
    });
    if (best < 0) return;
    yield heads[best].value;
    heads[best] = ways[best].next();
  }
}
