/** @file The page: views as tabs, and what is common to them. */

import { render } from "./vendor/preact.mjs";
import { effect, signal } from "./vendor/signals-core.mjs";
import { VIEWS, follow, link, openAddress, opening, view, waits } from "./address.js";
import { hasKey, locked, online, useKey } from "./api.js";
import { Beams } from "./beams.js";
import { Cache } from "./cache.js";
import { Chain, watching } from "./chain.js";
import { Compare } from "./compare.js";
import { Constrain } from "./constrain.js";
import { Reproduce } from "./reproduce.js";
import { declared, known, lacking, load } from "./settings.js";
import { Colours, Tabs } from "./tabs.js";
import { forgetAll } from "./texts.js";
import { Models, WHO } from "./transport.js";
import { CopyButton, Problem, count, html, watched } from "./ui.js";
import { Write, suggest } from "./write.js";

/** @type {Record<string, any>} */
const SHOWN = { write: Write, chain: Chain, compare: Compare, constrain: Constrain, beams: Beams, cache: Cache, reproduce: Reproduce };

const failed = signal(/** @type {Error | null} */ (null));
const theme = signal(localStorage.getItem("aleator-theme") ?? "auto");
/** Whether the key is to be changed. */
const asking = signal(false);

effect(() => {
  watching.value = view.value === "chain";
});
effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("aleator-theme", theme.value);
});

// Another tab has chosen other colours.
addEventListener("storage", (e) => {
  if (e.key === "aleator-theme") theme.value = e.newValue ?? "auto";
});
// An address that is put in place of this one; the page itself changes it without this event.
addEventListener("hashchange", async () => (failed.value = await openAddress()));

const RETRY = 2000;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let retrying;
// The server is away: ask until it is back.
effect(() => {
  clearTimeout(retrying);
  if (!online.value) retrying = setTimeout(ask, RETRY);
});

async function ask() {
  try {
    await load();
  } catch {
    if (!online.value) retrying = setTimeout(ask, RETRY);
  }
}

let begun = false;
async function start() {
  failed.value = null;
  try {
    await load();
    if (!begun) {
      begun = true;
      const { bundled, chat } = known().model;
      if (!bundled) suggest(chat);
      failed.value = await openAddress();
      follow();
    }
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** Another model was chosen: a link may wait for it; other texts are not its own. */
async function useModel() {
  await load();
  forgetAll();
  if (waits.value) failed.value = await openAddress();
}

const Head = watched(function () {
  const { model } = known();
  return html`<header class="head">
    <h1>Aleator <span>playground</span></h1>
    <${Tabs} views=${VIEWS} view=${view.value} lacking=${known().lacking} onChange=${(/** @type {string} */ name) => (view.value = name)} />
    <span class="model quiet" title=${`${model.architecture}, ${count(model.n_vocab)} tokens, ${count(model.n_ctx)} positions`}>${model.name}, ${(model.parameters / 1e6).toFixed(1)} M</span>
    <span class="buttons"><${CopyButton} label="Copy link" text=${link} />
      ${hasKey() && html`<button type="button" aria-expanded=${asking.value} onClick=${() => (asking.value = !asking.value)}>API key</button>`}
      <${Colours} value=${theme.value} onChange=${(/** @type {string} */ value) => (theme.value = value)} /></span>
  </header>`;
});

/** Asks for the key that the server wants. */
const Key = watched(function () {
  const submit = (/** @type {any} */ e) => {
    e.preventDefault();
    useKey(e.currentTarget.elements.key.value);
    asking.value = false;
    start();
  };
  const refused = locked.value && hasKey();
  return html`<form class="key" onSubmit=${submit} aria-label="API key">
    <label class="field"><span>${locked.value ? "This server wants an API key" : "Another API key"}</span><input name="key" type="password" autocomplete="off" required /></label>
    <button type="submit" class="primary">Use it</button>
    ${hasKey() && html`<button type="button" onClick=${() => (useKey(""), (asking.value = false), start())}>Forget the key</button>`}
    <p class="quiet">It is kept until this tab is closed, and is never part of a link.</p>
    ${refused && html`<p class="problem" role="alert">The server refuses this key.</p>`}
  </form>`;
});

const Page = watched(function () {
  if (!declared.value) {
    if (locked.value) return html`<main><h1>Aleator <span>playground</span></h1><${Key} /></main>`;
    return failed.value ? html`<div class="empty"><${Problem} error=${failed.value} /><button type="button" onClick=${start}>Try again</button>${Models && html`<${Models} onChange=${start} />`}</div>` : html`<div class="loading">Loading the playground…${Models && html`<${Models} onChange=${start} />`}</div>`;
  }
  const View = SHOWN[view.value];
  const title = VIEWS[/** @type {keyof typeof VIEWS} */ (view.value)];
  const why = lacking(view.value);
  return html`<${Head} />
    ${!online.value && html`<p class="problem offline" role="alert">${WHO[0].toUpperCase() + WHO.slice(1)} does not answer; it is asked again every two seconds. What is shown stays. <button type="button" class="link" onClick=${ask}>Ask now</button></p>`}
    ${(locked.value || asking.value) && html`<${Key} />`}
    ${Models && html`<${Models} onChange=${useModel} />`}
    <${Problem} error=${failed.value} />
    ${waits.value && html`<button type="button" onClick=${async () => (failed.value = await openAddress(true))}>Open it with this model</button>`}
    <main><div id="view" role="tabpanel" aria-label=${title} aria-busy=${opening.value}>${why ? html`<p class="empty">${title}: ${why}.</p>` : html`<${View} />`}</div></main>`;
});

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Page} />`, app);
start();
