/** @file The tree of texts and their branches. */

import { alone } from "./token.js";
import { current, opened, prune, texts } from "./texts.js";
import { html, watched } from "./ui.js";

/** @typedef {import("./texts.js").Text} Text */

/** @param {Text} text */
function show(text) {
  current.value = text;
  opened.value = -1;
}

const Node = watched(function (/** @type {{text: Text, level: number}} */ { text, level }) {
  const children = texts.value.filter((each) => each.parent === text);
  text.version.value; // the number of tokens grows with it
  const mine = text === current.value;
  const pick = text.asked.token === undefined ? null : text.steps[text.inherited - 1]?.token;
  return html`<li role="treeitem" aria-level=${level} aria-selected=${mine} aria-expanded=${children.length ? true : undefined}>
    <div class="node ${mine ? "current" : ""}">
      <input class="name" aria-label="Name of the branch" size="12" value=${text.name.value} onInput=${(/** @type {any} */ e) => (text.name.value = e.currentTarget.value)} />
      <button type="button" class="link" onClick=${() => show(text)} aria-current=${mine}>
        ${pick ? html`<b class="piece">${alone(pick)}</b> at ${text.at}, ` : text.parent ? `from ${text.at}, ` : ""}${text.steps.length - text.inherited} tokens${text.writing ? ", writing" : ""}
      </button>
      <button type="button" class="small" title="forget this text and its branches" aria-label=${`Forget ${text.name.value}`} onClick=${() => prune(text)}>✕</button>
    </div>
    ${children.length > 0 && html`<ul role="group">${children.map((each) => html`<${Node} key=${each.id} text=${each} level=${level + 1} />`)}</ul>`}
  </li>`;
});

/** All of them. */
export const Tree = watched(function () {
  const roots = texts.value.filter((each) => !each.parent);
  if (!roots.length) return null;
  return html`<ul class="tree" role="tree" aria-label="Texts and branches">${roots.map((each) => html`<${Node} key=${each.id} text=${each} level=${1} />`)}</ul>`;
});
