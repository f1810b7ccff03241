/** @file The view Chain: cards, what they do to the open step, and what they would have changed in the text. */

import { effect, signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { Cards } from "./cards.js";
import { known, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { TextView } from "./text-view.js";
import { current, opened } from "./texts.js";
import { Choice, CopyButton, Problem, html, watched } from "./ui.js";

/**
 * @typedef {object} Checked
 * @property {string} chain
 * @property {{name: string, label: string, neutral: boolean}[]} samplers
 * @property {string} cli
 * @property {string} json
 * @property {string} python
 */

/** What the server says of the chain as it is set. */
const checked = signal(/** @type {Checked | null} */ (null));
/** Why it cannot be. */
const wrong = signal(/** @type {any} */ (null));
/** What it would have drawn. @type {import("./vendor/signals-core.mjs").Signal<any>} */
const resampled = signal(/** @type {any} */ (null));
const took = signal(0);
const spelling = signal(/** @type {"cli" | "json" | "python"} */ ("cli"));

/** Whether the view is open: nothing is asked otherwise. */
export const watching = signal(false);

let turn = 0;
effect(() => {
  const asked = main.asked();
  const text = current.value;
  text?.reason.value;
  if (!watching.value) return;
  const mine = ++turn;
  requestAnimationFrame(async () => {
    if (mine !== turn) return;
    try {
      const found = await post("/chain", asked);
      if (mine !== turn) return;
      checked.value = found;
      wrong.value = null;
      if (!text?.id || text.writing) return;
      const began = performance.now();
      const changed = await post(`/texts/${text.id}/resample`, asked);
      if (mine !== turn) return;
      took.value = performance.now() - began;
      resampled.value = { ...changed, text };
    } catch (error) {
      if (mine === turn) wrong.value = error;
    }
  });
});

const Copying = watched(function () {
  if (!checked.value) return null;
  const kind = spelling.value;
  return html`<section class="copying" aria-label="The same chain elsewhere"><h2>The same chain elsewhere</h2>
    <div role="tablist" class="tabs">${/** @type {const} */ (["cli", "json", "python"]).map(
      (each) => html`<button type="button" role="tab" aria-selected=${each === kind} onClick=${() => (spelling.value = each)}>${{ cli: "command line", json: "JSON", python: "Python" }[each]}</button>`,
    )}</div>
    <pre tabindex="0">${checked.value[kind]}</pre>
    <${CopyButton} label="Copy" text=${() => checked.value?.[kind] ?? ""} />
  </section>`;
});

const Effects = watched(function () {
  const text = current.value;
  if (!text) return html`<p class="empty">Write a text first: then every change of the chain shows here at once what it does to it. Logits are kept, so nothing is computed again.</p>`;
  text.version.value;
  const found = resampled.value?.text === text ? resampled.value : null;
  const changed = found?.changed ?? {};
  const n = Object.keys(changed).length;
  const at = Math.min(opened.value < 0 ? text.inherited : opened.value, text.steps.length - 1);
  const asked = main.asked();
  return html`<section aria-label="What it changes">
    <h2>Over the whole text</h2>
    <p role="status">${found ? html`${n} of ${found.steps} tokens would be others, each after the tokens that were written${found.forgotten ? `; the logits of ${found.forgotten} steps are not kept any more` : ""}${found.refused !== null ? `; from step ${found.refused} on the grammar refuses the text` : ""}. <span class="quiet">Drawn again in ${took.value.toFixed(0)} ms.</span>` : ""}</p>
    <${TextView} id="chain" label="The text; tokens that would change are marked" shade="none" prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${opened.value} onOpen=${(/** @type {number} */ i) => (opened.value = i)}
      marks=${(/** @type {any} */ _, /** @type {number} */ i) => (i in changed ? " differs" : "")} />
    ${at >= 0 && html`<h2>At step ${at}: <span class="piece">${alone(text.steps[at].token)}</span>${at in changed ? html` would be <span class="piece">${alone(changed[at])}</span>` : ""}</h2>
      <${StepPanel} text=${text} at=${at} chain=${asked} />`}
  </section>`;
});

/** The view. */
export const Chain = watched(function () {
  const active = new Set((checked.value?.samplers ?? []).filter((s) => !s.neutral).map((s) => s.name));
  const error = wrong.value;
  const elsewhere = error && !(error.param in known().parameters) ? error : null;
  return html`<div class="view chain columns">
    <div class="side">
      <div class="bar-row"><${Choice} label="Preset" value=${main.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => main.choose(v)} />
        <button type="button" disabled=${!Object.keys(main.changes.value).length} onClick=${() => (main.changes.value = {})}>Undo all changes</button></div>
      ${error && html`<${Problem} error=${elsewhere ?? error} />`}
      <h2>Samplers in order</h2>
      <${Cards} settings=${main} active=${active} error=${error} />
    </div>
    <div class="main"><${Effects} /><${Copying} /></div>
  </div>`;
});
