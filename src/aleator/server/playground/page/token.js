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

/** @param {string} hex */
const bytesOf = (hex) => (hex.match(/../g) ?? []).map((pair) => parseInt(pair, 16));

/** Bytes as text; null if they are none. @param {number[]} bytes */
function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}

/** Tokens over which a character can be split. */
const PIECES = 8;

/**
 * The character that a token completes whose bytes alone are none; "" if it completes none.
 * @param {{token: Token}[]} steps
 * @param {number} i
 */
export function completed(steps, i) {
  if (steps[i].token.text !== null) return "";
  /** @type {number[]} */
  let bytes = [];
  for (let from = i; from >= 0 && i - from < PIECES; from--) {
    const held = steps[from].token;
    if (held.text !== null || held.bytes === undefined) return "";
    bytes = [...bytesOf(held.bytes), ...bytes];
    const text = decoded(bytes);
    if (text !== null) return visible(text);
  }
  return "";
}

/**
 * Tokens as one text, with characters that are split over several of them; control tokens stay tokens.
 * @param {Token[]} tokens
 * @returns {(string | Token)[]}
 */
export function together(tokens) {
  /** @type {(string | Token)[]} */
  const made = [];
  let text = "";
  /** @type {Token[]} */
  let split = [];
  const close = () => {
    const whole = decoded(split.flatMap((each) => bytesOf(each.bytes ?? "")));
    text += whole === null ? split.map(inText).join("") : visible(whole);
    split = [];
  };
  const end = () => {
    close();
    if (text) made.push(text);
    text = "";
  };
  for (const token of tokens) {
    if (token.text === null && token.bytes !== undefined) split.push(token);
    else if (token.special) {
      end();
      made.push(token);
    } else {
      close();
      text += inText(token);
    }
  }
  end();
  return made;
}
