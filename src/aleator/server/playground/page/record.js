/** @file Texts as a record: what is needed to write them again, and to compare what comes. */

import { known } from "./settings.js";

/** @typedef {import("./text.js").Text} Text */
/** @typedef {{path: Record<string, any>[], tokens?: number[], model?: string}} Recorded */

/** @param {Text} text */
const ids = (text) => text.steps.map((step) => step.token.id);

/**
 * All that is needed to write a text again.
 * @param {Text} text
 * @returns {Recorded}
 */
export function recorded(text) {
  return { path: text.path, tokens: ids(text), model: known().model.name };
}

/** @param {any} record @returns {Recorded} */
export function valid(record) {
  if (!Array.isArray(record?.path) || !record.path.length || !(typeof record.path[0].prompt === "string" || Array.isArray(record.path[0].messages))) throw new Error("this is not a record of the playground: it has no path that begins with a prompt or messages");
  return record;
}

/** @typedef {{equal: boolean, tokens: number, at: number}} Proof */

/**
 * Whether a text has these tokens, and where not.
 * @param {Text} text
 * @param {number[]} wanted
 * @returns {Proof}
 */
export function compared(text, wanted) {
  const mine = ids(text);
  const n = Math.max(wanted.length, mine.length);
  let at = 0;
  while (at < n && wanted[at] === mine[at]) at++;
  return { equal: at === n, tokens: mine.length, at };
}

/** As an address has it. @param {object} state */
export function packed(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} text */
export function unpacked(text) {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(plain, (c) => c.charCodeAt(0))));
}
