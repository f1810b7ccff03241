/** @file Two texts side by side: where they diverge, and what each keeps at a step. */

import { diverges } from "./text.js";
import { TextView } from "./text-view.js";
import { alone } from "./token.js";
import { Problem, html, watched } from "./ui.js";

/** @typedef {import("./text.js").Text} Text */

/** @param {number} first */
const mark = (first) => (/** @type {any} */ _, /** @type {number} */ i) => (i === first ? " differs" : first >= 0 && i > first ? " after" : "");

/** In words. @param {Text | null} a @param {Text | null} b */
export function divergence(a, b) {
  const first = diverges(a, b);
  return first < 0 ? "The texts are equal." : `The texts diverge at token ${first}.`;
}

/**
 * One of the two.
 * @param {{name: string, text: Text, first: number, open: number, onOpen: (step: number) => void}} props
 */
export const Side = watched(function ({ name, text, first, open, onOpen }) {
  text.version.value;
  return html`<${TextView} id=${`compare-${name}`} label=${`Text of ${name}`} prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${open}
      onOpen=${onOpen} marks=${mark(first)} writing=${text.writing} />
    <p class="quiet" role="status">${text.steps.length} tokens, ${text.writing ? "writing…" : text.reason.value}</p>
    <${Problem} error=${text.error.value} />`;
});

/**
 * The open step of both.
 * @param {{texts: Text[], at: number, step: (text: Text, name: string) => any}} props
 */
export function Steps({ texts, at, step }) {
  return html`<div class="pair">${texts.map((text, i) => {
    const name = "AB"[i];
    if (at >= text.steps.length) return html`<p class="quiet" key=${name}>${name} had ended before step ${at}.</p>`;
    return html`<section key=${name} aria-label=${`Step ${at} of ${name}`}><h2>${name}, step ${at}: <span class="piece">${alone(text.steps[at].token)}</span></h2>${step(text, name)}</section>`;
  })}</div>`;
}
