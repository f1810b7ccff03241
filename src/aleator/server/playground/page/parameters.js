/** @file Controls of one parameter, made from its declaration. */

import { declaration, lacking } from "./settings.js";
import { html, watched } from "./ui.js";

/**
 * @typedef {import("./settings.js").Settings} Settings
 * @typedef {import("./settings.js").Parameter} Parameter
 */

/** What JSON alone can say. @param {any} value */
const shown = (value) => (value === null || value === undefined ? "" : Array.isArray(value) || typeof value === "object" ? JSON.stringify(value) : String(value));

/** @param {string} text */
function read(text) {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * A slider and a number: the slider covers what is worth trying, the number takes the whole declared range.
 */
const Numeric = watched(function (/** @type {{settings: Settings, of: Parameter}} */ { settings, of }) {
  const value = settings.value(of.name);
  const { low, high, step } = of.slider ?? { low: 0, high: 100, step: 1 };
  const set = (/** @type {any} */ e) => e.currentTarget.value !== "" && settings.set(of.name, Number(e.currentTarget.value));
  return html`<input type="range" aria-label=${`${of.name}, slider`} min=${low} max=${high} step=${step} value=${value ?? low} onInput=${set} />
    <input type="number" aria-label=${of.name} step=${step === 1 ? 1 : "any"} value=${value ?? ""} onChange=${set} />`;
});

/**
 * The control of a parameter.
 * @param {{settings: Settings, name: string, error?: any}} props
 */
export const Control = watched(function ({ settings, name, error }) {
  const of = declaration(name);
  const value = settings.value(name);
  const changed = name in settings.changes.value;
  const wrong = error?.param === name;
  const why = lacking(name);
  let control;
  if (why) control = html`<span class="quiet">${why}</span>`;
  else if (of.type === "int" || of.type === "float") control = html`<${Numeric} settings=${settings} of=${of} />`;
  else if (of.type === "bool") control = html`<input type="checkbox" aria-label=${name} checked=${value} onChange=${(/** @type {any} */ e) => settings.set(name, e.currentTarget.checked)} />`;
  else if (of.choices.length) {
    control = html`<select aria-label=${name} onChange=${(/** @type {any} */ e) => settings.set(name, of.choices.find((each) => String(each) === e.currentTarget.value))}>
      ${of.choices.map((each) => html`<option value=${String(each)} selected=${each === value}>${String(each)}</option>`)}
    </select>`;
  } else control = html`<input class="wide" aria-label=${name} value=${shown(value)} onChange=${(/** @type {any} */ e) => settings.set(name, of.type === "str" ? e.currentTarget.value : read(e.currentTarget.value))} />`;
  const help = `help-${settings.name}${name}`;
  return html`<div class="parameter ${changed ? "changed" : ""} ${wrong ? "wrong" : ""}" title=${of.described}>
    <span class="label">${name}</span>
    <span class="control" role="group" aria-label=${name} aria-describedby=${help}>${control}</span>
    <button type="button" class="small reset" disabled=${!changed} title="as the preset has it" aria-label=${`${name} as the preset has it`} onClick=${() => settings.set(name, settings.usual(name))}>↺</button>
    <p class="help quiet" id=${help}>${of.described}</p>
    ${wrong && html`<p class="problem" role="alert">${error.message}</p>`}
  </div>`;
});
