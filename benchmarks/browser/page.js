// The page of bench_browser.py: runs Aleator in a worker and wllama, which has its own, in turn; posts what it measured.

/** What a worker answers to calls of its methods. */
function remote(worker) {
  const waiting = new Map()
  worker.onmessage = ({ data: [id, value, error] }) => {
    const { done, failed } = waiting.get(id)
    waiting.delete(id)
    if (error) failed(new Error(error))
    else done(value)
  }
  let last = 0
  return (method, ...given) =>
    new Promise((done, failed) => {
      waiting.set(++last, { done, failed })
      worker.postMessage([last, method, given])
    })
}

async function aleator(address, threads) {
  const call = remote(new Worker('/bench/aleator.js', { type: 'module' }))
  await call('start', address, { nCtx: 512, threads })
  return call
}

async function wllama(threads) {
  const { Wllama, LoggerWithoutDebug } = await import('/wllama/index.js')
  let engine
  return {
    async load(url) {
      await engine?.exit()
      engine = new Wllama({ default: new URL('/wllama/wasm/wllama.wasm', location.href).href }, { logger: LoggerWithoutDebug })
      engine.setCompat(null)
      const blob = await (await fetch(url)).blob()
      await engine.loadModel([blob], { n_ctx: 512, n_threads: threads, n_gpu_layers: 0, warmup: true })
    },
    async text(prompt, n) {
      const { timings } = await engine.createCompletion({ prompt, max_tokens: n, temperature: 0, ignore_eos: true, cache_prompt: false })
      return { prompt: timings.prompt_per_second, decode: timings.predicted_per_second, n: timings.prompt_n, tokens: timings.predicted_n }
    },
  }
}

const post = (what) => fetch('/done', { method: 'POST', body: JSON.stringify(what) })
const say = (text) => fetch('/say', { method: 'POST', body: text })

async function main() {
  const { models, rounds, tokens, threads, versions, text } = await (await fetch('/plan')).json()
  const engines = {}
  const made = []
  for (const n of threads) {
    for (const [name, address] of Object.entries(versions)) engines[`${name}, ${n}`] = await aleator(address, n)
    const one = await wllama(n)
    engines[`wllama, ${n}`] = (method, ...given) => one[method](...given)
  }
  const first = Object.values(engines)[0]
  const facts = await first('facts')
  const chains = await first('chain', 128256, 'llama.cpp')
  for (const [model, url] of Object.entries(models)) {
    for (const [name, call] of Object.entries(engines)) {
      await say(`${model}: ${name} loads`)
      await call('load', url)
    }
    const prompt = await first('prompt', text, 128)
    for (let round = -1; round < rounds; round++)
      for (const [name, call] of Object.entries(engines)) {
        const got = await call('text', prompt, round < 0 ? 4 : tokens)
        if (round >= 0) made.push({ model, name, ...got })
        await say(`${model}: ${name}: ${JSON.stringify(got)}`)
      }
  }
  await post({ made, facts, chains, agent: navigator.userAgent, isolated: crossOriginIsolated })
}

main().catch((error) => post({ error: String(error?.stack ?? error) }))
