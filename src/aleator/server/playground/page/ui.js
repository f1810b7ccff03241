/**
 * @file What all views are made of: templates, components that follow signals, and small controls.
 *
 * Signals are bound here, as npm's binding to Preact needs an import map, an inline script that the policy forbids.
 */

import { h, Component } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";
import { effect } from "./vendor/signals-core.mjs";

/** Templates: `html`<p>${text}</p>``.  What is put in is text, never markup. */
export const html = htm.bind(h);

/**
 * A component that is drawn again when a signal that it read changes, or its properties.
 * @param {(props: any) => any} view
 * @returns {any}
 */
export function watched(view) {
  return class Watched extends Component {
    /** @param {any} next */
    shouldComponentUpdate(next) {
      const mine = this.props;
      if (this.stale) return true;
      return Object.keys({ ...mine, ...next }).some((name) => mine[name] !== next[name]);
    }
    /** @param {any} props */
    render(props) {
      this.stop?.();
      this.stale = false;
      let made;
      let first = true;
      this.stop = effect(() => {
        if (first) made = view(props);
        else {
          this.stale = true;
          queueMicrotask(() => this.stop && this.setState({}));
        }
        first = false;
      });
      return made;
    }
    componentWillUnmount() {
      this.stop?.();
      this.stop = undefined;
    }
  };
}

/**
 * An error beside what caused it, in the server's words.
 * @param {{error: {message: string} | null}} props
 */
export function Problem({ error }) {
  return error && html`<p class="problem" role="alert">${error.message}</p>`;
}

/**
 * A choice among few words: each with what is shown, and why it cannot be chosen, if so.
 * @param {{label: string, value: string, options: (string | [string, string] | [string, string, string | undefined])[], onChange: (value: string) => void, hint?: string}} props
 */
export function Choice({ label, value, options, onChange, hint }) {
  return html`<label class="field" title=${hint}>
    <span>${label}</span>
    <select value=${value} onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.value)}>
      ${options.map((each) => {
        const [key, shown, why] = typeof each === "string" ? [each, each] : each;
        return html`<option key=${key} value=${key} selected=${key === value} disabled=${Boolean(why)} title=${why}>${shown}</option>`;
      })}
    </select>
  </label>`;
}

/**
 * Text for the clipboard.
 * @param {string} text
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * A button that copies, and says so.
 */
export class CopyButton extends Component {
  /** @param {any} props @param {any} state */
  render({ text, label }, { done }) {
    const act = async () => {
      this.setState({ done: (await copy(text())) ? "copied" : "copying is not allowed here" });
      setTimeout(() => this.setState({ done: "" }), 1500);
    };
    return html`<button type="button" onClick=${act}>${label}</button
      ><span class="quiet" role="status">${done ? ` ${done}` : ""}</span>`;
  }
}

/**
 * A probability in words.
 * @param {number | null | undefined} p
 */
export function percent(p) {
  if (p === null || p === undefined) return "–";
  if (p === 0) return "0 %";
  if (p >= 0.9995) return "100 %";
  const digits = p >= 0.1 ? 1 : p >= 0.0001 ? 2 : 0;
  return digits ? `${(100 * p).toFixed(digits)} %` : `${(100 * p).toExponential(0)} %`;
}

/**
 * A count with separators.
 * @param {number} n
 */
export const count = (n) => n.toLocaleString("en");

/**
 * Give the browser a file to save.
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
