/** @file Texts and their branches: written by the server, kept here with the steps that it told. */

import { signal } from "./vendor/signals-core.mjs";
import { remove, stream } from "./api.js";

/**
 * @typedef {import("./token.js").Token} Token
 * @typedef {object} Step  as a line of the stream
 * @property {number} step
 * @property {Token} token
 * @property {boolean} picked
 * @property {number} before  null where logits are not kept; so are the next ones
 * @property {number | null} after
 * @property {number} entropy
 * @property {number} entropy_after
 * @property {number} left
 * @property {{name: string, left: number, removed: number, cut: number, moved: number, entropy: number}[]} stages
 * @property {{token: Token, before: number, after: number}[]} top
 */

/** One text, or branch of one. */
export class Text {
  /**
   * @param {Record<string, any>} asked  the request
   * @param {Text | null} parent
   * @param {number} number
   */
  constructor(asked, parent, number) {
    this.asked = asked;
    this.parent = parent;
    this.name = signal(parent ? `branch ${number}` : `text ${number}`);
    this.id = "";
    this.at = 0;
    /** @type {Token[]} */
    this.prompt = [];
    /** @type {Step[]} */
    this.steps = [];
    this.inherited = 0;
    this.seed = 0;
    this.abort = new AbortController();
    /** "writing", or why it ended */
    this.reason = signal("writing");
    this.error = signal(/** @type {Error | null} */ (null));
    /** Grows with what is told. */
    this.version = signal(0);
    /** @type {any} */
    this.end = null;
  }

  get writing() {
    return this.reason.value === "writing";
  }

  /** What the page must know to write it again: one entry per text it branches off. @returns {Record<string, any>[]} */
  get path() {
    const { parent, ...asked } = this.asked;
    const own = { ...asked, seed: this.seed, max_tokens: Math.max(1, this.steps.length - this.inherited) };
    return [...(this.parent?.path ?? []), own];
  }

  stop() {
    this.abort.abort();
  }
}

/** All texts, in order of their beginning. */
export const texts = signal(/** @type {Text[]} */ ([]));
/** The one that is shown. */
export const current = signal(/** @type {Text | null} */ (null));
/** The step that is open; -1: none. */
export const opened = signal(-1);

/** Tokens that are shown in a second; 0: as they come. */
export const pace = signal(0);

/** @param {AbortSignal} abort */
const pause = (abort) =>
  new Promise((done) => {
    setTimeout(done, 1000 / pace.value);
    abort.addEventListener("abort", done, { once: true });
  });

let made = 0;

/**
 * Have a text written; resolves when it has ended.
 * @param {Record<string, any>} asked  fields of POST /api/playground/texts, without the parent's
 * @param {{parent?: Text | null, at?: number, listed?: boolean, onStart?: (text: Text) => void}} [how]
 */
export async function write(asked, { parent = null, at, listed = true, onStart } = {}) {
  const text = new Text({ ...asked, ...(parent ? { at } : {}) }, parent, listed ? ++made : made + 1);
  const body = parent ? { ...asked, parent: parent.id, at } : asked;
  let waiting = 0;
  const tell = () => {
    // A long text takes longer to lay out: it is shown less often.
    if (!waiting) waiting = setTimeout(() => requestAnimationFrame(() => ((waiting = 0), text.version.value++)), text.steps.length / 10);
  };
  try {
    for await (const told of stream("/texts", body, text.abort.signal)) {
      if (told.event === "start") {
        Object.assign(text, { id: told.id, at: told.at, prompt: told.prompt, seed: told.seed, inherited: told.inherited });
        if (parent) text.steps = inheritedSteps(parent, told.inherited, asked.token);
        if (listed) {
          texts.value = [...texts.value, text];
          current.value = text;
        }
        onStart?.(text);
      } else if (told.event === "step") {
        if (pace.value && listed) await pause(text.abort.signal);
        if (text.abort.signal.aborted) break;
        text.steps.push(told);
        tell();
      } else {
        text.end = told;
        text.reason.value = told.reason;
      }
    }
    if (text.writing) text.reason.value = "stopped";
  } catch (error) {
    text.reason.value = text.abort.signal.aborted ? "stopped" : "failed";
    if (!text.abort.signal.aborted) {
      text.error.value = /** @type {Error} */ (error);
      if (!text.id) throw error;
    }
  }
  text.version.value++;
  return text;
}

/**
 * @param {Text} parent
 * @param {number} n
 * @param {number | undefined} pick
 */
function inheritedSteps(parent, n, pick) {
  const steps = parent.steps.slice(0, n);
  if (pick === undefined) return steps;
  const there = parent.steps[n - 1];
  const found = there.top.find((each) => each.token.id === pick);
  const token = found?.token ?? picks.get(pick) ?? { id: pick, text: `[${pick}]` };
  steps[n - 1] = { ...there, token, picked: true, before: found?.before ?? there.before, after: found?.after ?? null };
  return steps;
}

/** Tokens that were picked outside the list of likely ones. @type {Map<number, Token>} */
export const picks = new Map();

/**
 * Go on from another token at a step.
 * @param {Text} text
 * @param {number} step
 * @param {Token} token
 * @param {Record<string, any>} asked
 */
export function branch(text, step, token, asked) {
  picks.set(token.id, token);
  opened.value = step;
  return write({ ...asked, token: token.id }, { parent: text, at: step });
}

/**
 * Forget a text and its branches.
 * @param {Text} text
 */
export function prune(text) {
  const gone = new Set([text]);
  for (const each of texts.value) if (each.parent && gone.has(each.parent)) gone.add(each);
  for (const each of gone) {
    each.stop();
    if (each.id) remove(`/texts/${each.id}`).catch(() => {});
  }
  texts.value = texts.value.filter((each) => !gone.has(each));
  if (current.value && gone.has(current.value)) {
    current.value = text.parent ?? texts.value.at(-1) ?? null;
    opened.value = -1;
  }
}
