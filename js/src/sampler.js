// What every class of facts.js is made from: src/aleator/samplers/base.py.

export class Sampler {
  /** Whether values of all parameters make this sampler do something. */
  static asked_for(values) {
    return this.parameters.length > 0 && !Object.assign(new this(), values).neutral
  }
  /** Whether the parameters make this sampler do nothing. */
  get neutral() {
    const { switch: name, off, single } = this.constructor
    if (name === null) return false
    const value = this[name]
    return single ? Math.fround(value) === off : Array.isArray(off) ? value.length === off.length : value === off
  }
  arguments() {
    return this.constructor.parameters.map((name) => this[name])
  }
  /** The native form's name and arguments; `place`: the chain's seed, and the ordinal. */
  native(place) {
    return [this.constructor.kernel, this.arguments(place)]
  }
}

/** A sampler with a stream of random numbers. */
export class SeededSampler extends Sampler {
  seed_in(place) {
    return this.seed ?? place.seed
  }
  arguments(place) {
    const unseeded = this.constructor.parameters.filter((name) => name !== 'seed')
    return [...unseeded.map((name) => this[name]), this.seed_in(place), place.ordinal]
  }
}
