/** @file The view Reproduce: a link and a record that give the same text, and a button that proves it. */

import { signal } from "./vendor/signals-core.mjs";
import { link, openRecord } from "./address.js";
import { file, post } from "./api.js";
import { ran } from "./cache.js";
import { comparedStep, pair } from "./compare.js";
import { constrained } from "./constrain.js";
import { compared, recorded, valid } from "./record.js";
import { lacking } from "./settings.js";
import { current, opened, texts } from "./text.js";
import { shading } from "./text-view.js";
import { alive, rewrite } from "./texts.js";
import { CopyButton, Problem, download, html, watched } from "./ui.js";

/** @typedef {import("./text.js").Text} Text */

const proof = signal(/** @type {import("./record.js").Proof | null} */ (null));
const failed = signal(/** @type {Error | null} */ (null));
const busy = signal(false);

async function prove() {
  const text = current.value;
  if (!text) return;
  failed.value = null;
  proof.value = null;
  busy.value = true;
  try {
    const again = await rewrite(text.path);
    proof.value = compared(again, text.steps.map((step) => step.token.id));
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
  busy.value = false;
}

function save() {
  const text = current.value;
  if (text) download(new Blob([JSON.stringify(recorded(text), null, 1)], { type: "application/json" }), "aleator-text.json");
}

/** What the file has: all texts with their branches, and what Compare, Constrain and Cache show. */
async function savePage() {
  const shown = current.value;
  if (!shown) return;
  failed.value = null;
  try {
    const two = pair() ?? [];
    const third = constrained();
    const others = [...two.map((text, i) => ({ text, name: `Compare ${"AB"[i]}` })), ...(third ? [{ text: third, name: "Constrain" }] : [])];
    const all = [...texts.value.filter((text) => text.id && text.steps.length && !text.writing).map((text) => ({ text, name: text.name.value })), ...others];
    for (const { text } of all) await alive(text, () => post(`/texts/${text.id}/step`, { step: 0, top: 0 }));
    const at = comparedStep.value;
    const draws = two.filter((text) => at >= 0 && at < text.steps.length).map((text) => ({ id: text.id, step: at }));
    const script = ran();
    const body = {
      texts: all.map(({ text, name }) => ({ id: text.id, name })),
      current: shown.id,
      step: opened.value,
      shade: shading.value,
      ...(two.length ? { compare: two.map((text) => text.id) } : {}),
      ...(draws.length ? { draws } : {}),
      ...(script ? { script } : {}),
    };
    download(await file("/page", body), "aleator-text.html");
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
    const text = await openRecord(record);
    if (record.tokens) proof.value = compared(text, record.tokens);
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
      <section><h2>A link</h2><p class="quiet">The same page: this view, the texts with their branches, chains and the open step. The address of the page follows it, so it can be copied from there too.</p><pre tabindex="0">${link()}</pre><${CopyButton} label="Copy the link" text=${link} /></section>
      <section><h2>A record</h2><p class="quiet">The requests and the tokens, as JSON.</p>
        <button type="button" onClick=${save}>Save the record</button></section>
      <section><h2>A page of its own</h2><p class="quiet">All texts with every step, the tree of branches, and what Compare, Constrain and Cache show, as one HTML file which needs no server.</p>
        <button type="button" disabled=${Boolean(lacking("page"))} title=${lacking("page")} onClick=${savePage}>Save the page</button></section>`}
    <section><label class="field"><span>Open a record</span><input type="file" accept="application/json,.json" onChange=${loadFile} /></label></section>
    <${Problem} error=${failed.value} />
  </div>`;
});
