/** @file The view Reproduce: a link and a record that give the same text, and a button that proves it. */

import { signal } from "./vendor/signals-core.mjs";
import { file } from "./api.js";
import { known, main } from "./settings.js";
import { current, opened, texts, write } from "./texts.js";
import { CopyButton, Problem, html, watched } from "./ui.js";
import { chats, length, prompt, seed, turns } from "./write.js";

/** @typedef {import("./texts.js").Text} Text */
/** @typedef {{path: Record<string, any>[], tokens?: number[], model?: string}} Recorded */

const proof = signal(/** @type {{equal: boolean, tokens: number, at: number} | null} */ (null));
const failed = signal(/** @type {Error | null} */ (null));
const busy = signal(false);

/**
 * All that is needed to write a text again.
 * @param {Text} text
 * @returns {Recorded}
 */
export function recorded(text) {
  return { path: text.path, tokens: text.steps.map((s) => s.token.id), model: known().model.name };
}

/**
 * Write what was recorded, one branch after the other.
 * @param {Recorded} record
 * @param {boolean} listed  shown in the tree
 */
export async function rewrite(record, listed) {
  /** @type {Text | null} */
  let text = null;
  for (const { at, ...asked } of record.path) text = await write(asked, { parent: text, at, listed });
  return /** @type {Text} */ (text);
}

/** @param {Text} text */
export function link(text) {
  const { tokens, model, ...rest } = recorded(text);
  const packed = btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(rest))));
  return `${location.origin}${location.pathname}#${packed.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** What the address says; null: nothing. @returns {Recorded | null} */
function fromAddress() {
  if (location.hash.length < 2) return null;
  const packed = location.hash.slice(1).replaceAll("-", "+").replaceAll("_", "/");
  const record = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))));
  return valid(record);
}

/** @param {any} record @returns {Recorded} */
function valid(record) {
  if (!Array.isArray(record?.path) || !record.path.length || !(typeof record.path[0].prompt === "string" || Array.isArray(record.path[0].messages))) throw new Error("this is not a record of the playground: it has no path that begins with a prompt or messages");
  return record;
}

/** @param {Recorded} record */
async function open(record) {
  const { prompt: text, messages, max_tokens, ...asked } = record.path[0];
  chats.value = messages !== undefined;
  if (messages) turns.value = messages;
  else prompt.value = text;
  seed.value = asked.seed ?? null;
  length.value = max_tokens ?? length.value;
  main.restore(asked);
  opened.value = -1;
  return rewrite(record, true);
}

/** Write what the address asks for. */
export async function openAddress() {
  try {
    const record = fromAddress();
    if (record) await open(record);
  } catch (error) {
    failed.value = new Error(`the address cannot be opened: ${/** @type {Error} */ (error).message}`);
    return failed.value;
  }
  return null;
}

async function prove() {
  const text = current.value;
  if (!text) return;
  failed.value = null;
  proof.value = null;
  busy.value = true;
  try {
    const again = await rewrite(recorded(text), false);
    const [a, b] = [text, again].map((each) => each.steps.map((s) => s.token.id));
    const at = a.findIndex((id, i) => id !== b[i]);
    proof.value = { equal: at < 0 && a.length === b.length, tokens: a.length, at };
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
  busy.value = false;
}

/**
 * Give the browser a file to save.
 * @param {Blob} blob
 * @param {string} name
 */
function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function save() {
  const text = current.value;
  if (text) download(new Blob([JSON.stringify(recorded(text), null, 1)], { type: "application/json" }), "aleator-text.json");
}

async function savePage() {
  const text = current.value;
  if (!text) return;
  failed.value = null;
  try {
    download(await file(`/texts/${text.id}/page`), "aleator-text.html");
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** @param {any} event */
async function loadFile(event) {
  const field = event.currentTarget;
  const [file] = field.files;
  if (!file) return;
  failed.value = null;
  proof.value = null;
  try {
    const record = valid(JSON.parse(await file.text()));
    field.value = ""; // so that the same file can be opened again
    const text = await open(record);
    if (record.tokens) {
      const ids = text.steps.map((s) => s.token.id);
      const at = record.tokens.findIndex((id, i) => id !== ids[i]);
      proof.value = { equal: at < 0 && ids.length === record.tokens.length, tokens: ids.length, at };
    }
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** The view. */
export const Reproduce = watched(function () {
  const text = current.value;
  texts.value;
  text?.version.value;
  const ready = text && !text.writing;
  return html`<div class="view reproduce">
    ${!text && html`<p class="empty">Write a text first, or open a record.</p>`}
    ${ready &&
    html`<section><h2>Same text again</h2>
        <p class="quiet">Seed, parameters and tokens that were picked fix the text: ${text.path.length} ${text.path.length === 1 ? "request" : "requests, one for each branch"}.</p>
        <div class="row"><button type="button" class="primary" disabled=${busy.value} onClick=${prove}>Write it again and compare</button>
          <p role="status" class="proof">${busy.value ? "Writing…" : proof.value && (proof.value.equal ? `Equal: all ${proof.value.tokens} tokens.` : `Not equal: token ${proof.value.at} is another one.`)}</p></div></section>
      <section><h2>A link</h2><pre tabindex="0">${link(text)}</pre><${CopyButton} label="Copy the link" text=${() => link(text)} /></section>
      <section><h2>A record</h2><p class="quiet">The requests and the tokens, as JSON.</p>
        <button type="button" onClick=${save}>Save the record</button></section>
      <section><h2>A page of its own</h2><p class="quiet">The text with every step as one HTML file, which needs no server.</p>
        <button type="button" onClick=${savePage}>Save the page</button></section>`}
    <section><label class="field"><span>Open a record</span><input type="file" accept="application/json,.json" onChange=${loadFile} /></label></section>
    <${Problem} error=${failed.value} />
  </div>`;
});
