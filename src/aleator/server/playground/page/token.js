/** @file Tokens as people read them: control characters, spaces and halves of characters made visible. */

/**
 * @typedef {object} Token
 * @property {number} id
 * @property {string | null} text  null where the bytes are no UTF-8
 * @property {string} [bytes]  hexadecimal, where text is null
 * @property {boolean} [special]
 * @property {number} [length]  characters, where the text was cut
 */

/** Characters of a token that are shown in a text. */
export const LONGEST = 160;

// C0 and C1 controls but tab and line feed, direction marks and overrides, and what has no width.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/** @param {string} text */
function visible(text) {
  return text.replace(HIDDEN, (c) => {
    const code = /** @type {number} */ (c.codePointAt(0));
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** @param {string} hex */
const pairs = (hex) => (hex.match(/../g) ?? []).join(" ");

/**
 * A token in a text: as it is, but what cannot be seen.
 * @param {Token} token
 */
export function inText(token) {
  if (token.text === null) return token.bytes === undefined ? `⟨${token.id}⟩` : `⟨${pairs(token.bytes)}⟩`;
  const shown = visible(token.text);
  if (shown.length <= LONGEST) return shown;
  return `${shown.slice(0, LONGEST)}…(${token.length ?? token.text.length} characters)`;
}

/**
 * A token alone: spaces and line breaks are visible too.
 * @param {Token} token
 * @param {number} [most]  characters
 */
export function alone(token, most = 24) {
  const shown = inText(token).replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
  if (shown === "") return "(empty)";
  const letters = [...shown];
  return letters.length <= most ? shown : `${letters.slice(0, most - 1).join("")}…`;
}

/**
 * A combining mark alone would join what stands before it.
 * @param {Token} token
 */
export const joins = (token) => /^\p{M}/u.test(token.text ?? "");
