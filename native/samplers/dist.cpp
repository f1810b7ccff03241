// Contract: src/aleator/samplers/dist.py
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "rng/fixed.hpp"
#include "rng/mt19937.hpp"
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// By integers, as not every compiler has the type: the float16 number that is nearest to x, ties to
// even, as float32; beyond 65,519 it is infinite.
static float rounded_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return x;  // infinite, or no number
  if (magnitude < 0x38800000u)             // below 2^-14: multiples of 2^-24, the unit of [1/2, 1)
    return std::copysign((std::fabs(x) + 0.5f) - 0.5f, x);
  const uint32_t rounded = (magnitude + 0xFFFu + (magnitude >> 13 & 1u)) & ~0x1FFFu;
  const uint32_t limited = rounded >= 0x47800000u ? 0x7F800000u : rounded;
  return std::bit_cast<float>((bits & 0x80000000u) | limited);
}

// Whether the next draw is keyed by the last n tokens: enough were generated, and they are new.
static bool keyed_by_last(const Step& step, int64_t n) {
  if (!step.history) return false;
  const auto& tokens = step.history->tokens;
  if (step.position < uint64_t(n) || tokens.size() < size_t(n)) return false;
  return std::search(tokens.begin(), tokens.end() - 1, tokens.end() - n, tokens.end()) ==
         tokens.end() - 1;
}

class Dist : public Cloned<Dist> {
 public:
  enum Draw { inverse = 0, gumbel = 1, gumbel_pcg = 2, watermark = 4 };

  Dist(uint64_t seed, uint32_t ordinal, int draw, uint64_t key, int64_t ngram)
      : stream_{seed, ordinal}, draw_(static_cast<Draw>(draw)), key_(key), ngram_(ngram) {}

  void apply(Candidates& c, const Step& step) override {
    if (draw_ == gumbel || draw_ == watermark) {
      race(c, noise(step));
    } else if (draw_ == gumbel_pcg) {
      perturb(c, step);
    } else {
      c.draw(uniform(Purpose::dist, stream_, step.position, step.completion));
    }
  }

  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }

 private:
  // By seed and position; for a watermark by the key and the last tokens, where these are new.
  RaceNoise noise(const Step& step) const {
    const auto stream = stream_word(Purpose::gumbel, stream_.ordinal, step.completion);
    const RaceNoise ordinary{stream_.seed, step.position, stream};
    if (draw_ != watermark || !keyed_by_last(step, ngram_)) return ordinary;
    const auto& tokens = step.history->tokens;
    auto hash = uint64_t(ngram_);
    for (auto token = tokens.end() - ngram_; token != tokens.end(); ++token)
      hash = philox_u64(key_, uint32_t(*token), hash, stream_word(Purpose::watermark, 0, 0));
    return {key_, hash, stream_word(Purpose::watermark, 1, 0)};
  }

  // The smallest E(id) / w(id), E = -log2 of the token's own uniform; fractions compared exactly.
  // One of the largest logit leads at first: few can be ahead of it.
  void race(Candidates& c, const RaceNoise& noise) const {
    const auto exponential = [&](int32_t id) {
      const uint64_t u = philox_u64(noise.seed, uint32_t(id), noise.position, noise.stream);
      return (uint64_t{64} << 32) - uint64_t(log2_q32(u ? u : 1));
    };
    const LogitValues values = c.measure();
    c.selected = c.argmax();
    uint64_t best_e = exponential(c.selected), best_w = uint64_t{1} << contract::weight_bits;
    int32_t contenders[tile_size];
    uint64_t weights[tile_size];
    for (int64_t t = 0; t < c.n_tiles(); ++t) {
      if (values.weightless(c.most_of(t))) continue;
      const float* x = c.tile(t);
      const float bound = float(best_e) / float(best_w);
      const int n = find_contenders_(x, c.tile_ids(t), int32_t(t * tile_size), values.top,
                                     values.scale, noise, bound, contenders);
      if (n) values.weigh(x, tile_size, weights);
      for (int k = 0; k < n; ++k) {
        const uint64_t w = weights[contenders[k]];
        if (!w) continue;
        const int32_t id = c.id_at(t * tile_size + contenders[k]);
        const uint64_t e = exponential(id);
        const u128 own = static_cast<u128>(e) * best_w, best = static_cast<u128>(best_e) * w;
        if (own > best || (own == best && id >= c.selected)) continue;
        best_e = e;
        best_w = w;
        c.selected = id;
      }
    }
  }

  // Akunu's kernel: noise from a 32-bit hash, added to the logit and rounded to half precision.
  void perturb(Candidates& c, const Step& step) const {
    c.compact();
    const auto start = uint32_t(step.position + stream_.seed) * 2654435761u;
    const auto temperature = float(c.temperature());
    float best = 0;
    c.selected = -1;
    for (size_t i = 0; i < c.ids().size(); ++i) {
      const uint32_t state = (start + uint32_t(c.ids()[i])) * 747796405u + 2891336453u;
      uint32_t word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
      word ^= word >> 22;
      const float u = std::clamp(float(word) / 4294967296.0f, 1e-7f, 1.0f - 1e-7f);
      const double exponential = -ln2 * log2_double(double(u));
      const auto noise = float(-ln2 * log2_double(exponential));
      const float scaled = temperature * noise;
      const float perturbed = rounded_to_half(c.logits()[i] + scaled);
      if (c.selected >= 0 && !(perturbed > best)) continue;
      best = perturbed;
      c.selected = c.ids()[i];
    }
  }

  static constexpr double ln2 = 0.6931471805599453;
  Stream stream_;
  Draw draw_;
  uint64_t key_;
  int64_t ngram_;
};

// Akunu's draw on the CPU: word number `position` of an MT19937, against the mass in the order.
class TwisterDist : public Cloned<TwisterDist> {
 public:
  explicit TwisterDist(uint64_t seed) : seed_(uint32_t(seed)), words_(seed_) {}

  void apply(Candidates& c, const Step& step) override {
    const Fraction32 r(uniform(step));
    const uint64_t wanted = r.ceil_of(c.mass());
    uint64_t total = 0;
    for (const auto& [key, weight] : c.first(c.count())) {
      total += weight;
      c.selected = int32_t(~uint32_t(key));
      if (total >= wanted) return;
    }
  }

 private:
  float uniform(const Step& step) {
    if (step.position >= farthest)
      throw ParameterError(
          "position", "position ", step.position,
          " is too far for draw='mt19937', which counts from the beginning: it must be below ",
          farthest);
    const auto seed = uint32_t(seed_ + step.completion);
    if (step.position < next_ || seed != running_) {
      words_.reseed(running_ = seed);
      next_ = 0;
    }
    words_.discard(step.position - next_);
    next_ = step.position + 1;
    return words_.uniform_float();
  }

  static constexpr uint64_t farthest = uint64_t{1} << 28;
  uint32_t seed_;
  Mt19937 words_;
  uint32_t running_ = seed_;  // the seed of words_
  uint64_t next_ = 0;         // the number of its next word
};

// Contract: src/aleator/samplers/synthid.py
class SynthIDDist : public Cloned<SynthIDDist> {
 public:
  SynthIDDist(uint64_t seed, uint32_t ordinal, std::vector<uint16_t> keys, int64_t ngram)
      : stream_{seed, ordinal}, keys_(std::move(keys)), ngram_(ngram) {}

  void apply(Candidates& c, const Step& step) override {
    const uint64_t u = uniform(Purpose::dist, stream_, step.position, step.completion);
    if (!keyed_by_last(step, ngram_)) {
      c.draw(u);
      return;
    }
    play(c, step.history->tokens);
    uint64_t total = 0;
    for (const uint64_t share : shares_) total += share;
    auto target = uint64_t(static_cast<u128>(u) * total >> 64);
    size_t i = 0;
    while (target >= shares_[i]) target -= shares_[i++];
    c.selected = c.ids()[i];
  }

  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }

 private:
  // What the coins are made of: an entry of the table is named by 16 bits, so hashes need no more.
  static uint16_t hashed(uint32_t h, uint32_t number) {
    return uint16_t((h + number) * 0x7F2Du + 1);
  }

  static const std::vector<uint8_t>& table() {
    static const std::vector<uint8_t> made = [] {
      std::vector<uint8_t> coins(1 << 16);
      Mt19937 words(0);
      for (auto& coin : coins) coin = words.word() & 1;
      return coins;
    }();
    return made;
  }

  // All layers: shares_ of the candidates.
  void play(Candidates& c, const std::vector<int32_t>& tokens) {
    const auto& weights = c.weights();
    uint16_t context = 1;
    for (auto token = tokens.end() - ngram_; token != tokens.end(); ++token)
      context = hashed(context, uint32_t(*token));
    uint64_t total = 0;
    for (const uint64_t w : weights) total += w;
    const int shift = 24 - std::countl_zero(total);
    shares_.assign(weights.begin(), weights.end());
    coins_.assign(weights.size(), 0);
    for (size_t i = 0; i < shares_.size(); ++i) {
      shares_[i] >>= shift;
      const uint16_t h = hashed(context, uint32_t(c.ids()[i]));
      for (size_t layer = 0; layer < keys_.size(); ++layer)
        coins_[i] |= uint64_t{table()[hashed(h, keys_[layer])]} << layer;
    }
    for (size_t layer = 0; layer < keys_.size(); ++layer) {
      uint64_t sum = 0, ones = 0;
      for (size_t i = 0; i < shares_.size(); ++i) {
        sum += shares_[i];
        ones += shares_[i] & -(coins_[i] >> layer & 1);
      }
      const auto factor = uint64_t((static_cast<u128>(sum - ones) << 40) / sum);
      for (size_t i = 0; i < shares_.size(); ++i)
        shares_[i] = (shares_[i] & -(coins_[i] >> layer & 1)) +
                     uint64_t(static_cast<u128>(shares_[i]) * factor >> 40);
    }
  }

  Stream stream_;
  std::vector<uint16_t> keys_;
  int64_t ngram_;
  std::vector<uint64_t> shares_, coins_;  // of the candidates; a bit for each layer
};

ALEATOR_BIND(sampler_dist) {
  bind_sampler<Dist(uint64_t, uint32_t, int, uint64_t, int64_t)>(m, "Dist", "seed"_a, "ordinal"_a,
                                                                 "draw"_a, "key"_a, "ngram"_a);
  bind_sampler<SynthIDDist(uint64_t, uint32_t, std::vector<uint16_t>, int64_t)>(
      m, "SynthIDDist", "seed"_a, "ordinal"_a, "keys"_a, "ngram"_a);
  bind_sampler<TwisterDist(uint64_t)>(m, "TwisterDist", "seed"_a);
}

}  // namespace aleator
