/** @file How the page asks its engine: a worker of the page, which answers as a server would; and the choice of its model. */

import * as kept from "./kept.js";
import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { Problem, html, watched } from "./ui.js";

export const WHO = "the engine of this page";

const HTML = { "content-type": "text/html; charset=utf-8" };

/** The model that comes with the page, or another file beside it: ?model=NAME. */
const BUNDLED = "model.gguf";
const named = new URLSearchParams(location.search).get("model") ?? BUNDLED;

/** The address of a file of this site; null: it is of another, which a link must not have this page read. @param {string} name */
function address(name) {
  try {
    const { origin, href } = new URL(name, location.href);
    return origin === location.origin ? href : null;
  } catch {
    return null;
  }
}

/** What is loaded: its source, and whether it is the bundled one. @type {[string | File | null, boolean]} */
let chosen = [address(named), named === BUNDLED];
/** Bytes of a model that were read, all of them, and who reads. */
const progress = signal(/** @type {{done: number, all: number, engine: Engine} | null} */ (null));

/** A worker with one model; the memory of a model is given back with its worker. */
class Engine {
  /** @param {string | File} load @param {boolean} bundled */
  constructor(load, bundled) {
    this.worker = new Worker(new URL("engine/worker.js", import.meta.url), { type: "module" });
    /** @type {Map<number, (told: any) => void>} */
    this.open = new Map();
    this.number = 0;
    this.worker.onmessage = ({ data }) => {
      if (data.progress) progress.value = { ...data.progress, engine: this };
      else if (data.held) navigator.locks.request(lock, () => this.lost("it was ended, by the browser or for want of memory"));
      else this.open.get(data.id)?.(data);
    };
    this.worker.onerror = (event) => this.lost(event.message || "it did not start");
    // Nobody is told of a worker's end; but it holds a lock until then.
    const lock = `aleator-${Math.random()}`;
    /** @type {Promise<void>} */
    this.ready = new Promise((resolve, reject) => {
      this.post({ load, bundled, lock }, ({ error }) => {
        progress.value = null;
        if (error) reject(error);
        else resolve();
      });
    });
    this.ready.catch(() => this.worker.terminate());
  }

  /** Its worker has ended by itself: the next request loads the model again. @param {string} why */
  lost(why) {
    if (engine === this) engine = null;
    this.end(`the worker of ${WHO} is gone: ${why}; ask again, and the model is loaded anew`, 500);
  }

  /** Give its memory back; what it has not answered yet is refused. */
  end(message = "another model was chosen", status = 409) {
    this.worker.onmessage = null;
    this.worker.terminate();
    const open = [...this.open.values()];
    this.open.clear();
    for (const told of open) told({ error: { message, param: null, code: null, status } });
  }

  /** @param {object} message @param {(told: any) => void} told */
  post(message, told) {
    const id = ++this.number;
    this.open.set(id, told);
    this.worker.postMessage({ id, ...message });
    return id;
  }
}

/** @type {Engine | null} */
let engine = null;

/** The engine with its model loaded, or with the one that is chosen meanwhile. @returns {Promise<Engine>} */
async function loaded() {
  for (;;) {
    const [source, bundled] = chosen;
    if (source === null) throw { message: `model=${named}: give the name of a file beside this page`, status: 400 };
    const mine = (engine ??= new Engine(source, bundled));
    try {
      await mine.ready;
      return mine;
    } catch (error) {
      if (engine && engine !== mine) continue;
      engine = null;
      throw error;
    }
  }
}

/**
 * Ask the engine; the answer is as HTTP has it.
 * @param {string} path
 * @param {{method: string, headers: Record<string, string>, body?: string, signal?: AbortSignal}} asked
 * @returns {Promise<Response>}
 */
export async function send(path, { method, body, signal: abort }) {
  const refused = (/** @type {any} */ error) => Response.json({ error }, { status: error.status });
  /** @type {Engine} */
  let mine;
  try {
    mine = await loaded();
  } catch (error) {
    return refused(error);
  }
  return new Promise((resolve, reject) => {
    const encoder = new TextEncoder();
    /** @type {ReadableStreamDefaultController<Uint8Array> | undefined} */
    let lines;
    const line = (/** @type {object} */ told) => lines?.enqueue(encoder.encode(`${JSON.stringify(told)}\n`));
    const id = mine.post({ method, path, body: body && JSON.parse(body) }, (told) => {
      if (told.line) {
        if (!lines) resolve(new Response(new ReadableStream({ start: (controller) => void (lines = controller) })));
        return line(told.line);
      }
      mine.open.delete(id);
      if (lines) {
        if (told.error) line({ event: "error", error: told.error });
        lines.close();
      } else if (told.error) resolve(refused(told.error));
      else resolve(typeof told.value === "string" ? new Response(told.value, { headers: HTML }) : Response.json(told.value));
    });
    abort?.addEventListener("abort", () => {
      if (!mine.open.delete(id)) return;
      mine.worker.postMessage({ id, abort: true });
      if (lines) lines.error(abort.reason);
      else reject(abort.reason);
    });
  });
}

/** Use the model of a file, once it is loaded. @param {File} file */
async function choose(file) {
  const next = new Engine(file, false);
  await next.ready;
  const before = engine;
  engine = next;
  chosen = [file, false];
  before?.end();
}

/** What is read, for eyes and ears. */
const Progress = watched(function () {
  if (!progress.value) return null;
  const { done, all, engine } = progress.value;
  const mebibytes = (/** @type {number} */ n) => (n / 2 ** 20).toFixed(1);
  return html`<span class="quiet"><progress max=${all} value=${done} aria-label="Reading the model"></progress> ${mebibytes(done)} of ${mebibytes(all)} MiB <button type="button" onClick=${() => engine.end("the model was not loaded: it was cancelled")}>Cancel</button></span>`;
});

/** Another model: a GGUF file, chosen or dropped anywhere on the page, or kept from earlier; it never leaves the machine. */
export class Models extends Component {
  constructor() {
    super();
    /** @type {{error: any, busy: string, names: string[], downloads: {name: string, url: string}[]}}  ``names``: of kept files */
    this.state = { error: null, busy: "", names: [], downloads: [] };
    this.over = (/** @type {DragEvent} */ e) => e.preventDefault();
    this.drop = (/** @type {DragEvent} */ e) => {
      e.preventDefault();
      const file = e.dataTransfer?.files[0];
      if (file && !this.state.busy) this.open(file);
    };
  }

  async componentDidMount() {
    addEventListener("dragover", this.over);
    addEventListener("drop", this.drop);
    await this.look();
  }

  componentWillUnmount() {
    removeEventListener("dragover", this.over);
    removeEventListener("drop", this.drop);
  }

  /** Do something that takes a while, and say so. @param {string} busy @param {() => Promise<any>} work */
  async attempt(busy, work) {
    this.setState({ error: null, busy });
    try {
      await work();
    } catch (error) {
      this.setState({ error });
    }
    this.setState({ busy: "" });
    await this.look();
  }

  /** Look at what is kept. */
  async look() {
    this.setState({ names: await kept.names(), downloads: await kept.downloads() });
  }

  /** @param {File} file */
  open(file) {
    return this.attempt(`Loading ${file.name}…`, async () => {
      await choose(file);
      await this.props.onChange();
    });
  }

  /** @param {any} props @param {any} state */
  render(props, { error, busy, names, downloads }) {
    const own = chosen[0] instanceof File ? chosen[0] : null;
    const choosing = (/** @type {any} */ e) => {
      const [file] = e.currentTarget.files;
      if (file) this.open(file);
      e.currentTarget.value = ""; // so that the same file can be chosen again
    };
    const press = (/** @type {string} */ label, /** @type {() => any} */ work) => html`<button type="button" disabled=${Boolean(busy)} onClick=${work}>${label}</button>`;
    return html`<section class="models row" aria-label="Model">
      <label class="field"><span>Another model: a GGUF file, here or dropped on the page</span><input type="file" accept=".gguf" disabled=${Boolean(busy)} onChange=${choosing} /></label>
      ${own && !names.includes(own.name) && press(`Keep ${own.name} in this browser`, () => this.attempt(`Keeping ${own.name}…`, () => kept.keep(own)))}
      ${names.map((/** @type {string} */ name) => html`<span class="buttons" key=${name}>${press(`Use ${name}`, async () => this.open(await kept.file(name)))}
        ${press(`Forget ${name}`, () => this.attempt("", () => kept.forget(name)))}</span>`)}
      ${downloads.map((/** @type {{name: string, url: string}} */ { name, url }) => press(`Forget the download ${name}`, () => this.attempt("", () => kept.forgetModel(url))))}
      <span role="status">${busy}</span><${Progress} /><${Problem} error=${error} /></section>`;
  }
}

// Once it was loaded, the page opens without a network.
if ("serviceWorker" in navigator) navigator.serviceWorker.register(new URL("offline.js", import.meta.url)).catch(() => {});
