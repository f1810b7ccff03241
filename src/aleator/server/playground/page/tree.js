/** @file The tree of texts and their branches. */

import { alone } from "./token.js";
import { current, opened, texts } from "./text.js";
import { html, watched } from "./ui.js";

/** @typedef {import("./text.js").Text} Text */

/** @param {Text} text */
function show(text) {
  current.value = text;
  opened.value = -1;
}

/** The arrow keys go from text to text. @param {any} e */
function onKeyDown(e) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[/** @type {string} */ (e.key)];
  if (!by || e.target.tagName !== "BUTTON") return;
  const all = [...e.currentTarget.querySelectorAll("button.link")];
  const to = all[all.indexOf(e.target.closest(".node").querySelector("button.link")) + by];
  if (!to) return;
  e.preventDefault();
  to.focus();
}

const Node = watched(function (/** @type {{text: Text, onForget?: (text: Text) => void}} */ { text, onForget }) {
  const children = texts.value.filter((each) => each.parent === text);
  text.version.value; // the number of tokens grows with it
  const mine = text === current.value;
  const pick = text.inherited > text.at ? text.steps[text.inherited - 1]?.token : null;
  const own = text.steps.length - text.inherited;
  return html`<li>
    <div class="node ${mine ? "current" : ""}">
      ${onForget ? html`<input class="name" aria-label="Name of the branch" size="12" value=${text.name.value} onInput=${(/** @type {any} */ e) => (text.name.value = e.currentTarget.value)} />` : html`<span class="name">${text.name.value}</span>`}
      <button type="button" class="link" onClick=${() => show(text)} aria-current=${mine}>
        ${pick ? html`<b class="piece">${alone(pick)}</b> at ${text.at}, ` : text.parent ? `from ${text.at}, ` : ""}${own} ${own === 1 ? "token" : "tokens"}${text.writing ? ", writing" : ""}
      </button>
      ${onForget && html`<button type="button" class="small" title="forget this text and its branches" aria-label=${`Forget ${text.name.value}`} onClick=${() => onForget(text)}>✕</button>`}
    </div>
    ${children.length > 0 && html`<ul>${children.map((each) => html`<${Node} key=${each.name} text=${each} onForget=${onForget} />`)}</ul>`}
  </li>`;
});

/**
 * All of them.
 * @param {{onForget?: (text: Text) => void}} props  without it nothing can be named or forgotten
 */
export const Tree = watched(function ({ onForget }) {
  const roots = texts.value.filter((each) => !each.parent || !texts.value.includes(each.parent));
  if (!roots.length) return null;
  return html`<ul class="tree" aria-label="Texts and branches" onKeyDown=${onKeyDown}>${roots.map((each) => html`<${Node} key=${each.name} text=${each} onForget=${onForget} />`)}</ul>`;
});
