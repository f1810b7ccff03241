/** @file Views as tabs: the arrow keys go from one to the next. */

import { html } from "./ui.js";

/**
 * @param {{views: Record<string, string>, view: string, onChange: (view: string) => void, lacking?: Record<string, string>}} props  titles by
 *   name; ``lacking``: why some views show nothing here
 */
export function Tabs({ views, view, onChange, lacking = {} }) {
  /** @param {KeyboardEvent} e */
  const onKeyDown = (e) => {
    const names = Object.keys(views);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    const next = names[(names.indexOf(view) + by + names.length) % names.length];
    onChange(next);
    requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
  };
  return html`<nav role="tablist" aria-label="Views" class="tabs" onKeyDown=${onKeyDown}>
    ${Object.entries(views).map(([key, title]) => {
      const mine = key === view;
      return html`<button type="button" role="tab" id=${`tab-${key}`} class=${key in lacking ? "lacking" : ""} title=${lacking[key]} aria-selected=${mine} aria-controls="view" tabindex=${mine ? 0 : -1} onClick=${() => onChange(key)}>${title}</button>`;
    })}
  </nav>`;
}

/**
 * Light, dark, or as the system has it.
 * @param {{value: string, onChange: (value: string) => void}} props
 */
export function Colours({ value, onChange }) {
  return html`<select aria-label="Colours" onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.value)}>
    ${["auto", "light", "dark"].map((each) => html`<option value=${each} selected=${each === value}>${each}</option>`)}
  </select>`;
}
