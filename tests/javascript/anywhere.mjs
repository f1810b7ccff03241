// Does what tools/equality_javascript.py asks for, in a page or as a program: anywhere.mjs ADDRESS.
import { deeds, done } from './doing.mjs'

const address = globalThis.document ? location.href : process.argv[2]
const doing = deeds(await import('../../js/src/index.js'))
const { relaxed } = await import('../../js/src/runtime.js')

let told = { who: globalThis.navigator?.userAgent ?? `Node ${process.version}`, relaxed }
for (;;) {
  const answer = await fetch(`${address}work`, { method: 'POST', body: JSON.stringify(told) })
  if (answer.status === 204) break
  told = await done(doing, await answer.json())
}
