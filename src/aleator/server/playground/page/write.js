/** @file The view Write: a prompt, its text as tokens, the open step, and the tree of branches. */

import { signal } from "./vendor/signals-core.mjs";
import { known, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { Hover, Legend, SHADES, TextView, shading } from "./text-view.js";
import { branch, current, opened, texts, write } from "./texts.js";
import { Tree } from "./tree.js";
import { Choice, Problem, html, percent, watched } from "./ui.js";

export const prompt = signal("ROMEO:\n");
export const length = signal(80);
/** null: the server draws one. */
export const seed = signal(/** @type {number | null} */ (7));
const failed = signal(/** @type {Error | null} */ (null));

/** Fields of a request from what is set now. */
export const asked = () => ({ ...main.asked(seed.value), max_tokens: length.value });

/** @param {() => Promise<any>} work */
export async function attempt(work) {
  failed.value = null;
  try {
    return await work();
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

export function begin() {
  opened.value = -1;
  return attempt(() => write({ ...asked(), prompt: prompt.value }));
}

/** @param {number} tokens  How many more. */
function goOn(tokens) {
  const text = current.value;
  if (!text) return;
  return attempt(() => write({ ...asked(), max_tokens: tokens }, { parent: text, at: text.steps.length }));
}

const Controls = watched(function () {
  const text = current.value;
  text?.reason.value;
  const writing = Boolean(text?.writing);
  return html`<form class="controls" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), begin())}>
    <label class="prompt-field"><span>Prompt</span>
      <textarea rows="3" value=${prompt.value} onInput=${(/** @type {any} */ e) => (prompt.value = e.currentTarget.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ e) => e.key === "Enter" && (e.ctrlKey || e.metaKey) && begin()}></textarea>
    </label>
    <div class="row">
      <${Choice} label="Preset" value=${main.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => main.choose(v)} hint="the chain's parameters; change them in the view Chain" />
      <label class="field"><span>Seed</span><input type="number" min="-1" step="1" value=${seed.value ?? ""} placeholder="random" onInput=${(/** @type {any} */ e) => (seed.value = e.currentTarget.value === "" ? null : Number(e.currentTarget.value))} /></label>
      <label class="field"><span>Tokens</span><input type="number" min="1" max=${known().model.n_ctx} value=${length.value} onInput=${(/** @type {any} */ e) => (length.value = Math.max(1, Number(e.currentTarget.value) || 1))} /></label>
      <span class="buttons">
        ${writing
          ? html`<button type="button" class="primary" onClick=${() => text?.stop()}>Stop</button>`
          : html`<button type="submit" class="primary" title="Ctrl+Enter in the prompt">Write</button>`}
        <button type="button" disabled=${!text || writing} onClick=${() => goOn(length.value)}>Continue</button>
        <button type="button" disabled=${!text || writing} onClick=${() => goOn(1)} title="draw one token">Next token</button>
      </span>
    </div>
    <${Problem} error=${failed.value} />
  </form>`;
});

const Written = watched(function () {
  const text = current.value;
  if (!text) return html`<div class="empty"><p>Write a text, then look at any token of it: hover for its rivals, click for every stage of the chain, and pick another token to go on from there.</p></div>`;
  text.version.value;
  const branchless = text.steps.length;
  const end = text.end;
  return html`<section aria-label="Text">
    <div class="bar-row">
      <${Choice} label="Shade by" value=${shading.value} options=${Object.entries(SHADES).map(([key, each]) => /** @type {[string, string]} */ ([key, each.label]))} onChange=${(/** @type {string} */ v) => (shading.value = v)} />
      <${Legend} />
    </div>
    <${TextView} id="main" label=${`${text.name.value}: ${branchless} tokens; arrow keys open steps`} prompt=${text.prompt} steps=${text.steps} length=${text.steps.length}
      open=${opened.value} onOpen=${(/** @type {number} */ i) => (opened.value = i)} writing=${text.writing} />
    <p class="quiet status" role="status">
      ${text.steps.length} tokens, ${text.writing ? "writing…" : `ended by: ${text.reason.value}`}; seed ${text.seed}${end &&
      html`; prompt: ${end.computed} computed, ${end.reused} from the cache; ${Math.max(0, text.steps.length - text.inherited)} drawn in ${end.seconds.toFixed(2)} s; logits kept: ${(end.kept_bytes / 2 ** 20).toFixed(1)} of ${end.kept_limit / 2 ** 20} MiB`}
    </p>
    <${Problem} error=${text.error.value} />
  </section>`;
});

const Opened = watched(function () {
  const text = current.value;
  const at = opened.value;
  text?.version.value;
  if (!text || at < 0 || at >= text.steps.length) {
    return text && html`<p class="quiet">Click a token, or focus the text and use the arrow keys, to open its step.</p>`;
  }
  const step = text.steps[at];
  const onPick = (/** @type {import("./token.js").Token} */ token) => attempt(() => branch(text, at, token, asked()));
  return html`<section class="opened" aria-label="Open step">
    <h2>Step ${at}: <span class="piece">${alone(step.token)}</span> <small>${percent(step.before)} of the model, ${percent(step.after)} after the chain</small>
      <button type="button" class="small" aria-label="Close the step" onClick=${() => (opened.value = -1)}>✕</button></h2>
    <${StepPanel} text=${text} at=${at} onPick=${onPick} />
    <p class="quiet">Click another token to write it here: the cache is forked, and nothing before it is computed again.</p>
  </section>`;
});

/** The view. */
export const Write = watched(function () {
  return html`<div class="view write">
    <${Controls} />
    <div class="columns">
      <div class="main"><${Written} /></div>
      <aside>${texts.value.length > 0 && html`<h2>Branches</h2>`}<${Tree} /></aside>
    </div>
    <${Opened} />
    <${Hover} />
  </div>`;
});
