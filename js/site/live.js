/** @file <aleator-live chain='{"top_k": 40}'>: a live picture in a page of the documentation, in a frame of its own. */

class Live extends HTMLElement {
  connectedCallback() {
    const frame = document.createElement("iframe");
    frame.loading = "lazy";
    frame.title = "Samplers at work: sliders, what each leaves of a row of logits, and draws";
    frame.src = new URL(`live.html?chain=${encodeURIComponent(this.getAttribute("chain") ?? "{}")}`, import.meta.url).href;
    frame.onload = () => this.follow(frame, /** @type {Document} */ (frame.contentDocument));
    this.replaceChildren(frame);
  }

  /** The frame is as high as its page, and as dark as this one. @param {HTMLIFrameElement} frame @param {Document} inside */
  follow(frame, inside) {
    const high = () => (frame.style.height = `${inside.body.scrollHeight + 2}px`);
    new ResizeObserver(() => requestAnimationFrame(high)).observe(inside.body);
    const colours = () => (inside.documentElement.dataset.theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light");
    new MutationObserver(colours).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    colours();
    high();
  }
}

customElements.define("aleator-live", Live);
