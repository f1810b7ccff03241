/** @file The open step of a text, asked from the server: with the text's chain, or with another. */

import { Component } from "./vendor/preact.mjs";
import { post } from "./api.js";
import { StepView } from "./step-view.js";
import { alive } from "./texts.js";
import { Problem, html } from "./ui.js";

/**
 * Asks again when the step or the chain changes; what was there before stays until the answer comes.
 */
export class StepPanel extends Component {
  constructor() {
    super();
    this.state = { step: null, error: null };
    this.asked = "";
  }

  componentDidMount() {
    this.refresh();
  }

  componentDidUpdate() {
    this.refresh();
  }

  componentWillUnmount() {
    this.abort?.abort();
  }

  async refresh() {
    const { text, at, chain } = this.props;
    const wanted = `${text.id} ${at} ${JSON.stringify(chain ?? null)}`;
    if (wanted === this.asked) return;
    this.asked = wanted;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    try {
      const step = await alive(text, () => post(`/texts/${text.id}/step`, { step: at, ...(chain ?? {}) }, abort.signal));
      if (wanted === this.asked) this.setState({ step, error: null });
    } catch (error) {
      if (wanted === this.asked && !abort.signal.aborted) this.setState({ error });
    }
  }

  again() {
    this.asked = "";
    this.setState({ error: null });
  }

  /** @param {any} props @param {any} state */
  render({ text, at, rows, onPick, label }, { step, error }) {
    return html`<div aria-live="polite">
      <${Problem} error=${error} />
      ${error && html`<button type="button" onClick=${() => this.again()}>Ask again</button>`}
      ${step && !error && html`<${StepView} step=${step} rows=${rows} onPick=${onPick} label=${label} written=${text.steps[at]?.token.id} />`}
      ${!step && !error && html`<p class="quiet">Asking for the step…</p>`}
    </div>`;
  }
}
