/** The time as Python's strftime() writes it in English. */
export function strftime(form, now = new Date()) {
  const two = (number) => String(number).padStart(2, '0')
  const named = (kind, width) => now.toLocaleString('en-US', { [kind]: width })
  const day = Math.round((Date.UTC(now.getFullYear(), now.getMonth(), now.getDate()) - Date.UTC(now.getFullYear(), 0, 0)) / 86400000)
  const parts = {
    '%': () => '%',
    Y: () => String(now.getFullYear()),
    y: () => two(now.getFullYear() % 100),
    m: () => two(now.getMonth() + 1),
    B: () => named('month', 'long'),
    b: () => named('month', 'short'),
    d: () => two(now.getDate()),
    e: () => String(now.getDate()).padStart(2),
    j: () => String(day).padStart(3, '0'),
    A: () => named('weekday', 'long'),
    a: () => named('weekday', 'short'),
    H: () => two(now.getHours()),
    I: () => two(now.getHours() % 12 || 12),
    p: () => (now.getHours() < 12 ? 'AM' : 'PM'),
    M: () => two(now.getMinutes()),
    S: () => two(now.getSeconds()),
  }
  return form.replace(/%(-?)(.)/gs, (part, bare, letter) => {
    if (!Object.hasOwn(parts, letter)) throw new Error(`strftime_now: '${part}' is not known`)
    return bare ? parts[letter]().replace(/^[0 ]+(?=.)/, '') : parts[letter]()
  })
}
