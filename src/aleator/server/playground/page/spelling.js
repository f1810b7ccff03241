/** @file A chain as people write it elsewhere: command line, JSON and Python. */

import { signal } from "./vendor/signals-core.mjs";
import { CopyButton, html, watched } from "./ui.js";

const NAMES = { cli: "command line", json: "JSON", python: "Python" };
const spelling = signal(/** @type {keyof typeof NAMES} */ ("cli"));

/** @param {{spelled: {cli: string, json: string, python: string}}} props */
export const Spelled = watched(function ({ spelled }) {
  const kind = spelling.value;
  return html`<section class="copying" aria-label="The same chain elsewhere"><h2>The same chain elsewhere</h2>
    <div role="group" aria-label="Written as" class="tabs">${/** @type {(keyof typeof NAMES)[]} */ (Object.keys(NAMES)).map(
      (each) => html`<button type="button" aria-pressed=${each === kind} onClick=${() => (spelling.value = each)}>${NAMES[each]}</button>`,
    )}</div>
    <pre tabindex="0">${spelled[kind]}</pre>
    <${CopyButton} label="Copy" text=${() => spelled[spelling.value]} />
  </section>`;
});
