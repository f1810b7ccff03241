/** @file A constrained text: how many tokens each step allowed, and which were forced. */

import { Strip } from "./strip.js";
import { allowed } from "./text.js";
import { Hover, TextView } from "./text-view.js";
import { alone } from "./token.js";
import { Problem, count, html, watched } from "./ui.js";

/** @typedef {import("./text.js").Text} Text */

/** @param {import("./text.js").Step} step */
const marks = (step) => (allowed(step) === 1 ? " forced" : "");

/**
 * @param {{text: Text, open: number, onOpen: (step: number) => void, step: (at: number) => any}} props  ``step`` shows the open one
 */
export const Allowed = watched(function ({ text, open, onOpen, step }) {
  text.version.value;
  const counts = text.steps.map(allowed);
  const known = /** @type {number[]} */ (counts.filter((/** @type {number | null} */ n) => n !== null));
  const forced = known.filter((n) => n === 1).length;
  const most = Math.max(...known, 1);
  const heights = counts.map((/** @type {number | null} */ n) => n && Math.log2(n + 1));
  const of = open >= 0 && open < text.steps.length ? text.steps[open] : null;
  return html`<section aria-label="Constrained text">
    <${TextView} id="constrained" label="Constrained text" shade="left" prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${open} onOpen=${onOpen} marks=${marks} writing=${text.writing} />
    <p class="quiet" role="status">${text.steps.length} tokens, ${forced} forced (dotted)${text.writing ? ", writing…" : `; ended by: ${text.reason.value}`}${text.end?.complete ? ", the text is complete" : ""}</p>
    <${Problem} error=${text.error.value} />
    <div class="allowed"><${Strip} values=${heights} most=${Math.log2(most + 1)} label=${`Allowed tokens at each step: ${known.slice(0, 200).join(", ")}`} open=${open} onOpen=${onOpen} /></div>
    <p class="quiet">Allowed tokens at each step, up to ${count(most)} (heights are logarithms).</p>
    ${of &&
    html`<h2>Step ${open}: <span class="piece">${alone(of.token)}</span> <small>${allowed(of) === 1 ? "1 token" : `${count(allowed(of) ?? 0)} tokens`} allowed</small></h2>
      ${step(open)}`}
    <${Hover} />
  </section>`;
});
