/** @file The view Chain: cards, what they do to the open step, and what they would have changed in the text. */

import { effect, signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { Cards } from "./cards.js";
import { Checking, latest } from "./checking.js";
import { Curves } from "./curves.js";
import { known, main } from "./settings.js";
import { Spelled } from "./spelling.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { Hover, TextView } from "./text-view.js";
import { alive } from "./texts.js";
import { current, opened } from "./text.js";
import { Choice, Problem, html, watched } from "./ui.js";

const checking = new Checking(main);
/** What it would have drawn. @type {import("./vendor/signals-core.mjs").Signal<any>} */
const resampled = signal(/** @type {any} */ (null));
const took = signal(0);
/** Why it could not be drawn again, where the chain itself can be. */
const failed = signal(/** @type {any} */ (null));

/** Whether the view is open: nothing is asked otherwise. */
export const watching = checking.watching;

const resample = latest(async (/** @type {import("./text.js").Text} */ text, /** @type {Record<string, any>} */ asked) => {
  const began = performance.now();
  try {
    const changed = await alive(text, () => post(`/texts/${text.id}/resample`, asked));
    took.value = performance.now() - began;
    resampled.value = { ...changed, text };
    failed.value = null;
  } catch (error) {
    failed.value = error;
  }
});
effect(() => {
  const asked = main.asked();
  const text = current.value;
  text?.reason.value;
  if (watching.value && text?.id && !text.writing) resample(text, asked);
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
  const onOpen = (/** @type {number} */ i) => (opened.value = i);
  return html`<section aria-label="What it changes">
    <h2>Over the whole text</h2>
    <p role="status">${found ? html`${n} of ${found.steps} tokens would be others, each after the tokens that were written${found.forgotten ? `; the logits of ${found.forgotten} steps are not kept any more` : ""}${found.refused !== null ? `; from step ${found.refused} on the grammar refuses the text` : ""}. <span class="quiet">Drawn again in ${took.value.toFixed(0)} ms.</span>` : ""}</p>
    ${!checking.wrong.value && html`<${Problem} error=${failed.value} />`}
    <${TextView} id="chain" label="The text; tokens that would change are marked" shade="none" prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${opened.value} onOpen=${onOpen}
      marks=${(/** @type {any} */ _, /** @type {number} */ i) => (i in changed ? " differs" : "")} />
    ${at >= 0 && html`<h2>At step ${at}: <span class="piece">${alone(text.steps[at].token)}</span>${at in changed ? html` would be <span class="piece">${alone(changed[at])}</span>` : ""}</h2>
      <${StepPanel} text=${text} at=${at} chain=${asked} />`}
    ${!text.writing && html`<${Curves} steps=${text.steps} open=${opened.value} onOpen=${onOpen} />`}
  </section>`;
});

/** The view. */
export const Chain = watched(function () {
  const error = checking.wrong.value;
  const beside = error && error.param in known().parameters;
  return html`<div class="view chain columns">
    <div class="side">
      <div class="bar-row"><${Choice} label="Preset" value=${main.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => main.choose(v)} />
        <button type="button" disabled=${!Object.keys(main.changes.value).length} onClick=${() => (main.changes.value = {})}>Undo all changes</button></div>
      ${!beside && html`<${Problem} error=${error} />`}
      <h2>Samplers in order</h2>
      <${Cards} settings=${main} active=${checking.active} error=${error} />
    </div>
    <div class="main"><${Effects} />${checking.checked.value && html`<${Spelled} spelled=${checking.checked.value} />`}</div>
    <${Hover} />
  </div>`;
});
