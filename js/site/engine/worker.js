/** @file The worker of the page: loads a model, and answers the page's requests by number. */

// Messages may come before the native code has started.
const requests = import("./requests.js");
/** @type {Promise<any>} */
let engine;
const open = new Map();
const notStarted = ({ message }) => ({ message: `the native code did not start: ${message}`, param: null, code: null, status: 500 });

/** Hold a lock for as long as this worker lives, by which the page notices its end. */
function hold(lock) {
  const held = () => {
    postMessage({ held: true });
    return new Promise(() => {});
  };
  navigator.locks?.request(lock, held); // only pages of https, or of this machine, have locks
}

async function answer({ id, load, bundled, lock, method, path, body, abort }) {
  if (abort) return open.get(id)?.stop();
  if (load) hold(lock);
  let told = notStarted;
  try {
    const { Engine, toldError } = await requests;
    told = toldError;
    if (load) {
      engine = Engine.load(load, bundled, (done, all) => postMessage({ progress: { done, all } }));
      await engine;
      return postMessage({ id, value: null });
    }
    const made = await (await engine).answer(method, path, body);
    if (!made?.next) return postMessage({ id, value: made ?? null });
    open.set(id, made);
    for await (const line of made) postMessage({ id, line });
    postMessage({ id, done: true });
  } catch (error) {
    postMessage({ id, error: told(error) });
  } finally {
    open.delete(id);
  }
}

onmessage = (event) => answer(event.data);
