/** @file Buttons at blocks of Python: a worker runs one, and what it prints stands below. */

const labels = { true: "Stop", false: "Run" };
const buttons = [];
/** The worker, and where what it says goes: nowhere while nothing runs. */
let worker = null;
let output = null;

function show(text) {
  output.append(text);
}

/** Nothing runs any more; a worker that is stopped or broken is not used again. */
function end(usable) {
  if (!usable) {
    worker?.terminate();
    worker = null;
  }
  output = null;
  for (const button of buttons) {
    button.disabled = false;
    button.textContent = labels[false];
  }
}

function start(button, code, below) {
  if (!worker) {
    worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => (data.ended ? end(data.usable) : show(data.text));
    worker.onerror = (event) => {
      show(event.message ?? "the worker cannot be loaded");
      end(false);
    };
  }
  output = below;
  output.replaceChildren();
  output.hidden = false;
  for (const each of buttons) each.disabled = each !== button;
  button.textContent = labels[true];
  worker.postMessage(code);
}

for (const block of document.querySelectorAll(".highlight.run")) {
  const button = document.createElement("button");
  const below = document.createElement("pre");
  button.type = "button";
  button.className = "md-button";
  button.textContent = labels[false];
  button.onclick = () => (output ? end(false) : start(button, block.querySelector("code").textContent, below));
  below.setAttribute("role", "log");
  below.hidden = true;
  buttons.push(button);
  block.after(button, below);
}
