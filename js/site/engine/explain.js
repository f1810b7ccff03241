/** @file What each sampler of a chain removed, moved and kept in one step, as src/aleator/samplers/explain.py has it. */

import { native } from "../aleator/index.js";
import { GRAMMAR, described } from "./spellings.js";

const TRACED = 30;
const REMOVED = 5;
const ROUNDING = 1e-6;

/** What a sampler knows before a step, from its kernel or from the tokens accepted so far. */
const STATES = {
  penalties({ penalty_last_n: n }, kernel, history) {
    const window = n < 0 ? history : history.slice(-n);
    return { window: window.length, distinct: new Set(window).size };
  },
  dry: ({ dry_penalty_last_n: n }, kernel, history) => ({ window: n < 0 ? history.length : Math.min(n, history.length) }),
  mirostat: (sampler, kernel) => ({ mu: kernel.mu }),
  mirostat_v2: (sampler, kernel) => ({ mu: kernel.mu }),
  adaptive_p: (sampler, kernel) => (sampler.adaptive_target >= 0 ? { average: kernel.average } : {}),
  grammar: (sampler, kernel) => (kernel.constrained.constraint.waiting ? { waiting: 1 } : { allowed: kernel.constrained.count() }),
};

/** The distribution over the whole vocabulary, and which tokens are candidates. */
class Row {
  constructor(candidates) {
    const { ids, weights } = candidates;
    const values = Float64Array.from(weights, Number);
    const sum = values.reduce((a, b) => a + b, 0);
    this.p = new Float64Array(candidates.n_vocab);
    this.member = new Uint8Array(candidates.n_vocab);
    let entropy = 0;
    let top = 0;
    ids.forEach((id, i) => {
      const p = values[i] / sum;
      this.p[id] = p;
      this.member[id] = 1;
      if (p > 0) entropy -= p * Math.log2(p);
      top = Math.max(top, p);
    });
    entropy = Math.max(0, entropy);
    this.shape = { candidates: ids.length, entropy, top, choices: 2 ** entropy };
  }
}

/** The n indices with the greatest values, of equal ones the first; none of -Infinity, and only where `among` holds, if it is given. */
export function greatest(values, n, among = () => true) {
  const best = [];
  for (let i = 0; i < values.length; i++) {
    const least = best.length < n ? -Infinity : values[best[n - 1]];
    if (!(values[i] > least) || !among(i)) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < values[i]) at--;
    best.splice(at, 0, i);
    if (best.length > n) best.pop();
  }
  return best;
}

/** A token's probability by the logits alone. */
export function probability(logits, id) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  return Math.exp(logits[id] - most) / logits.reduce((sum, x) => sum + Math.exp(x - most), 0);
}

/** The samplers of a chain in order, its grammar first. */
export const samplersOf = (chain) => [...(chain.grammar === null ? [] : [GRAMMAR]), ...chain.samplers];
export const nameOf = (sampler) => (sampler === GRAMMAR ? "grammar" : sampler.constructor.sampler);
export const chainWords = (chain) => ["logits", ...samplersOf(chain).map((sampler) => (sampler.neutral ? "?" : "") + nameOf(sampler))].join(" -> ");

/** Explain a step: the chain stays as it is. `named` makes tokens of ids. */
export function explain(chain, logits, top, named) {
  const { present } = chain;
  const { kernels: copy, history } = present;
  const candidates = new native.Candidates(Float32Array.from(logits));
  const rows = [new Row(candidates)];
  try {
    const stages = samplersOf(present).map((sampler, i) => {
      const before = rows.at(-1);
      const name = nameOf(sampler);
      let after = before;
      let state = {};
      let microseconds = 0;
      if (!sampler.neutral) {
        state = STATES[name]?.(sampler, copy.samplers[i], history) ?? {};
        const pending = candidates.temperature;
        const began = performance.now();
        copy.apply_one(candidates, i);
        microseconds = 1000 * (performance.now() - began);
        const { temperature } = candidates;
        if (temperature !== pending && temperature !== 1) state = { ...state, "pending temperature": temperature };
        after = new Row(candidates);
      }
      rows.push(after);
      return { name, label: described(sampler), neutral: sampler.neutral, ...difference(before, after, named), state, microseconds };
    });
    const token = candidates.selected ?? null;
    const [first, last] = [rows[0], rows.at(-1)];
    const draw = token === null ? null : {
      token: named(token), before: first.p[token], after: last.p[token], seed: Number(chain.seed), position: chain.position,
      completion: 0, mark: null,
    };
    return { traces: traces(rows, top, token, named), draw, stages, logits: first.shape, n_vocab: first.p.length, history: chain.history.length, numerics: "portable" };
  } finally {
    candidates.free();
    copy.free();
  }
}

function difference(before, after, named) {
  if (before === after) return { before: before.shape, after: after.shape, removed: 0, cut: 0, likely_removed: [], moved: 0 };
  const gone = (i) => before.member[i] && !after.member[i];
  let [removed, cut, stayed] = [0, 0, 0];
  before.p.forEach((p, i) => {
    if (gone(i)) [removed, cut] = [removed + 1, cut + p];
    else if (after.member[i]) stayed += p;
  });
  let moved = 0;
  after.p.forEach((p, i) => (moved += Math.abs(p - (after.member[i] ? before.p[i] / (stayed || 1) : 0))));
  moved = moved / 2 > ROUNDING ? moved / 2 : 0;
  const likely = removed ? greatest(before.p, REMOVED, gone) : [];
  const likely_removed = likely.map((id) => ({ token: named(id), probability: before.p[id] }));
  return { before: before.shape, after: after.shape, removed, cut, likely_removed, moved };
}

function traces(rows, top, drawn, named) {
  const last = rows.at(-1);
  const weights = rows[0].p.map((p, i) => Math.max(p, last.p[i]));
  const chosen = greatest(weights, Math.max(top, TRACED));
  if (drawn !== null && !chosen.includes(drawn)) chosen.push(drawn);
  return chosen.map((id) => {
    const gone = rows.findIndex((row) => !row.member[id]) - 1;
    return { token: named(id), probabilities: rows.map((row) => row.p[id]), removed_by: gone < 0 ? null : gone };
  });
}

/** Many draws of a chain at its step, at positions 0 to n - 1 of its random stream, and the exact probabilities. */
export function draws(chain, logits, n, named) {
  const { traces } = explain(chain, logits, 100, named);
  const exact = new Map(traces.map((trace) => [trace.token.id, trace.probabilities.at(-1)]));
  const counts = new Map();
  const copy = chain.kernels.clone();
  const row = Float32Array.from(logits);
  for (let position = 0; position < n; position++) {
    copy.position = position;
    const candidates = new native.Candidates(row);
    copy.apply(candidates);
    const token = candidates.selected;
    if (token !== undefined) counts.set(token, (counts.get(token) ?? 0) + 1);
    candidates.free();
  }
  copy.free();
  const likely = [...exact].filter(([, p]) => p > 0).map(([id]) => id);
  const all = [...new Set([...counts.keys(), ...likely])];
  const [p, times] = [(id) => exact.get(id) ?? 0, (id) => counts.get(id) ?? 0];
  all.sort((a, b) => p(b) - p(a) || times(b) - times(a) || a - b);
  return { n, tokens: all.map((id) => ({ token: named(id), count: times(id), exact: exact.get(id) ?? null })) };
}
