/** @file Texts as the server writes them: begun, branched off, forgotten, and brought back after it was away. */

import { signal } from "./vendor/signals-core.mjs";
import { remove, stream } from "./api.js";
import { WHO } from "./transport.js";
import { Text, current, opened, texts } from "./text.js";

/** @typedef {import("./token.js").Token} Token */

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
 * @param {{parent?: Text | null, at?: number, listed?: boolean, name?: string, onStart?: (text: Text) => void}} [how]
 */
export async function write(asked, { parent = null, at, listed = true, name, onStart } = {}) {
  const number = listed ? ++made : made + 1;
  const text = new Text({ ...asked, ...(parent ? { at } : {}) }, parent, name ?? (parent ? `branch ${number}` : `text ${number}`));
  let waiting = 0;
  const tell = () => {
    // A long text takes longer to lay out: it is shown less often.
    if (!waiting) waiting = setTimeout(() => requestAnimationFrame(() => ((waiting = 0), text.version.value++)), text.steps.length / 10);
  };
  const follow = async () => {
    const body = parent ? { ...asked, parent: parent.id, at } : asked;
    for await (const line of stream("/texts", body, text.abort.signal)) {
      if (line.event === "start") {
        Object.assign(text, { id: line.id, at: line.at, prompt: line.prompt, seed: line.seed, inherited: line.inherited });
        if (line.grammar) text.obey(line.grammar);
        if (parent) text.steps = inheritedSteps(parent, line.inherited, asked.token);
        if (listed) {
          texts.value = [...texts.value, text];
          current.value = text;
        }
        onStart?.(text);
      } else if (line.event === "step") {
        if (pace.value && listed) await pause(text.abort.signal);
        if (text.abort.signal.aborted) break;
        text.steps.push(line);
        tell();
      } else {
        text.end = line;
        text.reason.value = line.reason;
      }
    }
  };
  try {
    await (parent ? alive(parent, follow) : follow());
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
const picks = new Map();

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

/** Forget all texts, as another model would write others. */
export function forgetAll() {
  for (const text of texts.value) text.stop();
  texts.value = [];
  current.value = null;
  opened.value = -1;
}

/**
 * Write what was recorded, one branch after the other.
 * @param {Record<string, any>[]} path
 */
export async function rewrite(path) {
  /** @type {Text | null} */
  let text = null;
  for (const { at, ...asked } of path) text = await write(asked, { parent: text, at, listed: false });
  return /** @type {Text} */ (text);
}

/** Texts that are being brought back. @type {Map<Text, Promise<void>>} */
const coming = new Map();

/**
 * Ask about a text.  A server that was away has forgotten it: then it is written again first, with the same tokens.
 * @template T
 * @param {Text} text
 * @param {() => Promise<T>} ask  must take the text's id when it is called
 * @returns {Promise<T>}
 */
export async function alive(text, ask) {
  try {
    return await ask();
  } catch (error) {
    if (/** @type {any} */ (error).code !== "no_such_text" || text.writing) throw error;
  }
  if (!coming.has(text)) coming.set(text, bringBack(text).finally(() => coming.delete(text)));
  await coming.get(text);
  return ask();
}

/** @param {Text} text */
async function bringBack(text) {
  const again = await rewrite(text.path);
  if (again.error.value) throw again.error.value;
  const at = text.steps.findIndex((step, i) => step.token.id !== again.steps[i]?.token.id);
  if (at >= 0) throw new Error(`${WHO} forgot this text, and writes another one now: token ${at} differs. Is it another model?`);
  for (let [mine, its] = [/** @type {Text | null} */ (text), /** @type {Text | null} */ (again)]; mine && its; [mine, its] = [mine.parent, its.parent]) mine.id = its.id;
}
