/** @file The cells of a small cache after each operation of a script, and those of any cache in runs
 *  (src/aleator/server/playground/cells.py, cache/view.py, generate/cache_script.py). */

import { pause } from "../aleator/completion.js";
import { AleatorError } from "../aleator/index.js";
import { Random } from "../aleator/random.js";
import constants from "../constants.js";
import { greatest } from "./explain.js";
import { RequestError } from "./texts.js";

const { CELLS, SEQUENCES, MOST_OPERATIONS, MOST_TOKENS, PROMPT, OPERATIONS } = constants.cells;
const BEST = 4;

/** Run a script: the cells after each operation, and its cost.  An error ends it early. */
export async function frames(model, script) {
  const operations = checkedScript(script);
  if (!model.tokenizer) throw new RequestError("script: the model has no vocabulary, and so no prompt for its sequences: use another", "script");
  const cache = model.cache({ nCtx: CELLS, nSeqs: SEQUENCES });
  const running = new Script(cache, model);
  const made = [];
  try {
    for (const words of operations) {
      const [before, began] = [running.computed, performance.now()];
      await running.do(words);
      const milliseconds = performance.now() - began;
      made.push({ operation: words.join(" "), ...held(cache, cellByCell), computed: running.computed - before, milliseconds });
    }
    return { frames: made, error: null };
  } catch (error) {
    if (!(error instanceof AleatorError)) throw error;
    const operation = operations[made.length].join(" ");
    return { frames: made, error: { message: `${operation}: ${error.message}`, param: "script", code: null } };
  } finally {
    cache.free();
  }
}

function checkedScript(script) {
  const wrong = (message) => new RequestError(message, "script");
  if (!Array.isArray(script) || !script.every((each) => typeof each === "string" && each.trim())) throw wrong("script: give a list of operations, such as 'decode 0 20'");
  if (script.length > MOST_OPERATIONS) throw wrong(`script has ${script.length} operations: give ${MOST_OPERATIONS}`);
  const operations = script.map((each) => each.trim().split(/\s+/));
  let tokens = 0;
  for (const [name, ...given] of operations) {
    if (!Object.hasOwn(OPERATIONS, name)) throw wrong(`'${name.slice(0, 80)}' is not an operation; operations: ${Object.keys(OPERATIONS).join(", ")}`);
    const [low, high] = OPERATIONS[name];
    const numbers = name === "decode" && given.length ? [...given[0].split(","), ...given.slice(1)] : given;
    if (given.length < low || given.length > high || !numbers.every((each) => /^-?\d+$/.test(each) && each.length <= 10))
      throw wrong(`'${[name, ...given].join(" ").slice(0, 80)}': ${name} takes ${low === high ? low : `${low} to ${high}`} whole numbers`);
    if (name === "decode" && new Set(numbers.slice(0, -1).map(Number)).size < numbers.length - 1)
      throw wrong(`'${[name, ...given].join(" ").slice(0, 80)}': decode takes each sequence once, such as 0,1`);
    if (name === "decode") tokens += Math.max(0, Number(given[1]));
  }
  if (tokens > MOST_TOKENS) throw wrong(`script decodes ${tokens} times: ${MOST_TOKENS} are the most in one script`);
  return operations;
}

/** Runs operations on a cache; sequences begin with a prompt and continue with the model's tokens. */
class Script {
  constructor(cache, { tokenizer, config }) {
    Object.assign(this, { cache, prompt: tokenizer.encode(PROMPT), width: config.n_vocab, random: new Random(1), next: new Map(), computed: 0 });
  }

  /** Run one operation, which was checked. */
  async do([name, ...given]) {
    const { cache } = this;
    const n = given.map(Number);
    if (name === "fork") {
      cache.seqCp(n[0], n[1], 0, n[2]);
      this.next.delete(n[1]);
    } else if (name === "rm") {
      for (const seq of n[0] === -1 ? Array(SEQUENCES).keys() : [n[0]]) cache.seqRm(seq, ...n.slice(1));
    } else if (name === "decode") {
      for (let i = 0; i < n[1]; i++) await this.decode(given[0].split(",").map(Number));
    } else {
      const verbs = { add: "seqAdd", div: "seqDiv", keep: "seqKeep" };
      cache[verbs[name] ?? name](...n);
    }
  }

  async decode(seqs) {
    await pause();
    const texts = seqs.map((seq) => {
      const one = this.random.choice(this.prompt);
      return { seq, tokens: this.cache.length(seq) ? [this.next.get(seq) ?? one] : this.prompt };
    });
    const logits = this.cache.decodeBatch(texts);
    this.computed += texts.reduce((sum, { tokens }) => sum + tokens.length, 0);
    seqs.forEach((seq, i) => this.next.set(seq, this.random.choice(greatest(logits.subarray(i * this.width, (i + 1) * this.width), BEST))));
  }
}

/** What a cache of any size holds: cells in runs, and states. */
export const cellsInRuns = (cache) => held(cache, runs);

/** What the cells hold as `read` tells it, and which sequences; layers with windows have the same cells here. */
function held(cache, read) {
  const [owner, owners] = cache.cells.census();
  const cells = cache.seesAll || cache.seesWindow ? { owner, owners, positions: cache.cells.positions, shifts: cache.cells.shifts } : null;
  const sequences = cells ? [...Array(cache.nSeqs).keys()].filter((seq) => cache.cells.seq_cells(seq)).map((seq) => span(cache.cells, seq)) : [];
  return { ...read(cells), sequences, summary: cells ? summary(cells) : "no cells", window: null, states: states(cache) };
}

const span = (cells, seq) => ({ seq, cells: cells.seq_cells(seq), low: cells.seq_pos_min(seq), high: cells.seq_pos_max(seq), runs: cells.seq_runs(seq).length });

const cellByCell = (cells) => Object.fromEntries(["owner", "owners", "positions", "shifts"].map((name) => [name, Array.from(cells?.[name] ?? [])]));

function runs(cells) {
  const { owner, owners } = cells ?? { owner: [], owners: [] };
  const made = [];
  for (let at = 0; at < owner.length; at++) {
    const last = made.at(-1);
    if (last?.owner === owner[at] && last.owners === owners[at]) last.cells++;
    else made.push({ at, cells: 1, owner: owner[at], owners: owners[at] });
  }
  return { size: owner.length, runs: made };
}

/** One line of counts. */
function summary({ owners, shifts }) {
  const count = (values, test) => values.reduce((n, value, i) => n + Number(test(value, i)), 0);
  const used = count(owners, (n) => n > 0);
  const top = owners.findLastIndex((n) => n > 0) + 1;
  const holes = count(owners.subarray(0, top), (n, i) => n === 0 && owners[i - 1] !== 0);
  const parts = [`${used} of ${owners.length} cells used`];
  if (used) parts.push(`the last is ${top - 1}`);
  for (const [n, what] of [[holes, holes === 1 ? "hole" : "holes"], [count(owners, (n) => n > 1), "shared"], [count(shifts, (by) => by !== 0), "to be rotated"]]) if (n) parts.push(`${n} ${what}`);
  return parts.join(", ");
}

/** Which rows hold which sequences' states, and after which positions; null without such layers. */
function states({ keeps, nRows, states: rows }) {
  if (!keeps) return null;
  const sequences = [...rows.entries()].filter(([, state]) => state).map(([seq, state]) => ({ seq, states: [state] }));
  return { rows: nRows, sequences };
}
