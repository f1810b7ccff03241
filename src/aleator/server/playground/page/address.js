/** @file The address says all that the page shows: views, chains, texts with their branches, and the open step. */

import { effect, signal } from "./vendor/signals-core.mjs";
import { searched } from "./beams.js";
import { operations, ran } from "./cache.js";
import { comparison, pair } from "./compare.js";
import { constrained, constraint } from "./constrain.js";
import { packed, unpacked, valid } from "./record.js";
import { known, main } from "./settings.js";
import { current, opened, texts } from "./text.js";
import { SHADES, shading } from "./text-view.js";
import { write } from "./texts.js";
import { chats, length, options, prompt, seed, turns } from "./write.js";

/** @typedef {import("./text.js").Text} Text */

export const VIEWS = { write: "Write", chain: "Chain", compare: "Compare", constrain: "Constrain", beams: "Beams", cache: "Cache", reproduce: "Reproduce" };

/** The view that is shown: its name in VIEWS. */
export const view = signal("write");

/** Whether what an address says is being written. */
export const opening = signal(false);

const MOST = 32;
const WAIT = 300;

/** The newest texts, but the one that is shown and all that it comes from in any case, in order. */
function kept() {
  const wanted = new Set();
  for (let text = current.value; text; text = text.parent) wanted.add(text);
  for (const text of [...texts.value].reverse()) {
    const line = [];
    for (let each = /** @type {Text | null} */ (text); each && !wanted.has(each); each = each.parent) line.push(each);
    if (wanted.size + line.length <= MOST) line.forEach((each) => wanted.add(each));
  }
  // A branch of a text that was forgotten still comes from it.
  const order = new Set();
  const add = (/** @type {Text} */ text) => {
    if (text.parent) add(text.parent);
    order.add(text);
  };
  for (const text of wanted) add(text);
  return /** @type {Text[]} */ ([...order]).filter((text) => text.id);
}

/** Everything that makes the page what it is. */
function state() {
  const all = kept();
  for (const text of all) text.reason.value; // a text that is written has another end
  const { name, fingerprint } = known().model;
  return {
    model: { name, fingerprint },
    view: view.value,
    shade: shading.value,
    ...(chats.value ? { messages: turns.value } : { prompt: prompt.value }),
    seed: seed.value,
    length: length.value,
    chain: main.asked(),
    options: options.changes.value,
    texts: all.map((text) => ({ ...text.own, name: text.name.value, parent: text.parent ? all.indexOf(text.parent) : null })),
    text: current.value ? all.indexOf(current.value) : -1,
    step: opened.value,
    ...(view.value === "compare" || pair() ? { compare: comparison.state } : {}),
    ...(view.value === "constrain" || constrained() ? { constrain: constraint.state } : {}),
    ...(view.value === "beams" || searched.made ? { beams: searched.state } : {}),
    ...(ran() ? { cache: operations.state } : {}),
  };
}

/** An address that gives the same page. */
export const link = () => `${location.origin}${location.pathname}${location.search}#${packed(state())}`;

/** @param {any} said */
async function restore(said) {
  const asked = said.path ? fromPath(valid(said)) : said;
  const { messages, chain } = asked;
  chats.value = Array.isArray(messages);
  if (chats.value) turns.value = messages;
  else if (typeof asked.prompt === "string") prompt.value = asked.prompt;
  seed.value = asked.seed ?? null;
  length.value = asked.length ?? length.value;
  if (chain) main.restore(chain);
  options.changes.value = { ...asked.options };
  if (Object.hasOwn(SHADES, asked.shade)) shading.value = asked.shade;
  if (Object.hasOwn(VIEWS, asked.view)) view.value = asked.view;
  texts.value = [];
  current.value = null;
  opened.value = -1;
  /** @type {Text[]} */
  const made = [];
  for (const { parent, name, at, ...own } of asked.texts ?? []) made.push(await write(own, { parent: parent === null ? null : made[parent], at, name }));
  current.value = made[asked.text ?? made.length - 1] ?? null;
  opened.value = asked.step ?? -1;
  if (asked.compare) await comparison.restore(asked.compare);
  if (asked.constrain) await constraint.restore(asked.constrain);
  if (asked.beams) await searched.restore(asked.beams);
  if (asked.cache) await operations.restore(asked.cache);
}

/** A record has one text and nothing of the page. @param {import("./record.js").Recorded} record */
function fromPath({ path }) {
  const { prompt, messages, max_tokens, seed, ...rest } = path[0];
  const said = (/** @type {boolean} */ own) => Object.fromEntries(Object.entries(rest).filter(([name]) => name in known().options === own));
  const listed = path.map((own, i) => ({ ...own, parent: i ? i - 1 : null }));
  return { prompt, messages, seed, length: max_tokens, chain: said(false), options: said(true), texts: listed };
}

/** Open a record that was saved; resolves with its text. @param {import("./record.js").Recorded} record */
export async function openRecord(record) {
  await restore({ ...record, view: undefined });
  return /** @type {Text} */ (current.value);
}

/** Whether the address is of a model that is not here, and stays until that one is. */
export const waits = signal(false);

/**
 * Write what the address asks for; resolves with what is wrong with it.
 * @param {boolean} [any]  also where it was made with another model
 */
export async function openAddress(any = false) {
  if (location.hash.length < 2) return null;
  opening.value = true;
  waits.value = false;
  try {
    const said = unpacked(location.hash.slice(1));
    const { model } = said;
    if (!any && model?.fingerprint && model.fingerprint !== known().model.fingerprint) {
      waits.value = true;
      return new Error(`this link was made with another model, ${String(model.name).slice(0, 80)}: only that one gives the same texts`);
    }
    await restore(said);
    return null;
  } catch (error) {
    return new Error(`the address cannot be opened: ${/** @type {Error} */ (error).message}`);
  } finally {
    opening.value = false;
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let waiting;

/** From now on the address follows the page. */
export function follow() {
  effect(() => {
    clearTimeout(waiting);
    if (opening.value || waits.value) return;
    const said = `#${packed(state())}`;
    waiting = setTimeout(() => history.replaceState(null, "", said), WAIT);
  });
}
