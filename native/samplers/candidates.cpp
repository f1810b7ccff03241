#include "samplers/candidates.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/binding.hpp"

namespace aleator {

Entropy entropy_of(int64_t tops, double gap, const EntropySums& sums) {
  constexpr double one = double(int64_t{1} << contract::weight_bits), c = contract::log2_e;
  const auto n = double(tops);
  const double weight = double(sums.weight) / one;
  const double bits = double(sums.bits) / one;
  const double share = exp2_double(-gap), mass = share * weight, total = n + mass;
  const double depth = share * (gap * weight + bits) / total;
  const double log = tops == 1 && mass < contract::entropy_series
                         ? mass * (c - mass * (c / 2 - mass * (c / 3)))
                         : log2_double(total);
  return {log + depth, depth, uint64_t(total * one)};
}

void Candidates::load(const void* data, int64_t n, Dtype dtype) {
  check_length(n);
  set_temperature(1);
  full_mass_ = 0;
  selected = -1;
  RankedRow::load(data, n, dtype);
}

void Candidates::set_temperature(double temperature) {
  temperature_ = temperature;
  scale_ = weight_scale(temperature);
}

float* Candidates::edit(int32_t id) {
  if (temperature_ != 1) materialise();
  full_mass_ = 0;
  if (!dense_) {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
    return at != ids_.end() && *at == id ? &values_[at - ids_.begin()] : nullptr;
  }
  if (id < 0 || id >= n_vocab_ || tiles_[id / tile_size][id % tile_size] == -infinity)
    return nullptr;
  float* z = own(id);
  *z += 0.0f;  // -0 as loaded becomes the canonical +0 before anyone reads it
  return z;
}

Buffer<float>& Candidates::edit_all() {
  compact();
  materialise();
  full_mass_ = 0;
  return values_;
}

void Candidates::mask(const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  for (const int32_t id : ids)
    if (float* z = edit(id)) *z = -infinity;
  settle();
}

void Candidates::list(std::vector<int32_t>& ids, std::vector<float>& logits) const {
  Buffer<int32_t> all_ids = ids_;
  Buffer<float> all_logits = values_;
  if (dense_) collect_near(-infinity, all_ids, all_logits);
  ids.assign(all_ids.begin(), all_ids.end());
  logits.assign(all_logits.begin(), all_logits.end());
}

int64_t Candidates::count() const {
  if (!dense_) return int64_t(ids_.size());
  constexpr float lowest = std::numeric_limits<float>::lowest();
  int64_t count = 0;
  for (int64_t t = 0; t < n_tiles_; ++t) count += count_at_least_(tiles_[t], tile_size, lowest);
  return count;
}

void Candidates::multiply_temperature(double factor) {
  if (factor == 1) return;
  const double product = temperature_ * factor;
  full_mass_ = 0;
  if (!std::isfinite(product))
    throw ParameterError("temperature", "the product of the chain's temperatures is not finite");
  if (product <= contract::coldest) {
    keep_only(argmax());
    set_temperature(1);
  } else {
    set_temperature(product);
    mass_ = 0;
  }
}

void Candidates::materialise() {
  if (temperature_ == 1) return;
  const float divisor = float(temperature_);
  set_temperature(1);
  full_top_ /= divisor;
  if (dense_) {
    for (int64_t t = 0; t < n_tiles_; ++t) {
      float* x = own_tile(t);
      for (int i = 0; i < tile_size; ++i) x[i] /= divisor;
      state_[t] = 2;
      edited_.push_back(int32_t(t));
    }
  } else {
    for (float& z : values_) z /= divisor;
  }
  settle();
}

void Candidates::become(int32_t id) {
  spare_ids_.assign(1, id);
  spare_values_.assign(1, 1.0f);
  set_compact(spare_ids_, spare_values_);
}

bool Candidates::keep_allowed(std::span<const uint32_t> words) {
  mass_ = 0;
  if (!dense_) {
    const auto word = [&](int64_t i) { return i < std::ssize(words) ? words[i] : 0u; };
    retain(ids_, values_, [&](size_t i) { return word(ids_[i] / 32) >> (ids_[i] % 32) & 1; });
    top_ = -infinity;
    for (const float z : values_) top_ = std::max(top_, z);
    return !ids_.empty();
  }
  int64_t allowed = 0;
  for (const uint32_t w : words) allowed += std::popcount(w);
  if (allowed < n_vocab_ / 8) {  // few: straight into a compact list
    spare_ids_.clear();
    spare_values_.clear();
    for (int64_t i = 0; i < std::min<int64_t>(std::ssize(words), n_tiles_ * tile_size / 32); ++i)
      for (uint32_t w = words[i]; w; w &= w - 1) {
        const int64_t id = i * 32 + std::countr_zero(w);
        const float z = tiles_[id / tile_size][id % tile_size] + 0.0f;
        if (z == -infinity) continue;
        spare_ids_.push_back(int32_t(id));
        spare_values_.push_back(z);
      }
    if (spare_ids_.empty()) return false;
    set_compact(spare_ids_, spare_values_);
    return true;
  }
  mask_tiles(words);  // many
  top_ = maximum_(maxima_.data(), int64_t(maxima_.size()));
  return top_ > -infinity;
}

Moments Candidates::moments() const {
  Moments m;
  for (int64_t t = 0; t < n_tiles(); ++t) add_moments_(tile(t), top_, &m);
  return m;
}

// Weights are measured from the largest logit below the top: so they are exact where they matter,
// however far ahead the top is.
SquareSums Candidates::squares() const {
  SquareSums sums;
  for (int64_t t = 0; t < n_tiles(); ++t)
    if (!measure().weightless(most_of(t))) add_squares_(tile(t), most_of(t), top_, scale_, &sums);
  return sums;
}

Entropy Candidates::entropy() const {
  int64_t tops = 0;
  float second = -infinity;
  find_tiles(0);  // with top tokens; of a list all
  for (int64_t i = 0; i < n_found_; ++i)
    second = std::max(second, below_top_(tile(found_[i]), tile_size, top_, &tops));
  int64_t tiles_with_top = 0;
  if (dense_)
    second =
        std::max(second, below_top_(maxima_.data(), std::ssize(maxima_), top_, &tiles_with_top));
  EntropySums sums;
  if (second == -infinity) return entropy_of(tops, 0, sums);
  if (dense_) {
    add_entropy_(tiles_.data(), maxima_.data(), n_tiles_, second, scale_, &sums);
  } else {
    for (int64_t t = 0; t < n_tiles(); ++t) {
      const float* x = tile(t);
      add_entropy_(&x, &top_, 1, second, scale_, &sums);
    }
  }
  const double gap = (double(top_) - second) * (contract::log2_e / temperature_);
  return entropy_of(tops, gap, sums);
}

Candidates::Drawn Candidates::draw(uint64_t u) {
  const Drawn drawn = RankedRow::draw(u);
  selected = drawn.id;
  return drawn;
}

// The key of the first candidate in the order that weighs less than `bound`; in part_ those before
// it, and perhaps others: most of a row weighs nothing, and tiles that do not reach this far are
// not read.
uint64_t Candidates::first_below(uint64_t bound) {
  const double bits = bound == 0 ? -contract::least_bits : 40 - log2_q32(bound) / 4294967296.0;
  collect_near(measure().threshold(int64_t(std::ceil(bits * 65536))), part_.ids, part_.values);
  weigh_part();
  uint64_t first = 0;
  for (size_t i = 0; i < part_.ids.size(); ++i)
    if (part_.weights[i] < bound) first = std::max(first, part_.key(i));
  return first;
}

const Candidates::Run& Candidates::run(uint64_t bound) {
  const uint64_t end = first_below(bound);
  uint64_t last = ~uint64_t{0};
  run_.ids.clear();
  run_.last = -1;
  for (size_t i = 0; i < part_.ids.size(); ++i) {
    const uint64_t key = part_.key(i);
    if (key <= end) continue;
    run_.ids.push_back(part_.ids[i]);
    if (key < last) {
      last = key;
      run_.last = part_.ids[i];
    }
  }
  return run_;
}

bool Candidates::keep_run(uint64_t bound) {
  const uint64_t end = first_below(bound);
  if (order_key(top_, argmax()) <= end) return false;
  filter_through(end + 1, part_.ids, part_.values);
  return true;
}

void Candidates::keep_probable(uint64_t bound, int64_t min_keep) {
  constexpr uint64_t ties = ~uint64_t{0} << 32;  // a key without its token
  if (min_keep <= 1) {
    const bool some = bound <= uint64_t{1} << 40 && keep_run(bound);  // the best weighs 2^40
    if (!some) keep_through(order_key(top(), 0) & ties);
    return;
  }
  const auto& best = first(std::min(min_keep, count()));
  const bool all =
      std::all_of(best.begin(), best.end(), [&](const auto& pair) { return pair.second >= bound; });
  const uint64_t last = best.back().first & ties;
  if (!all || !keep_run(bound)) keep_through(last);
}

void Candidates::remove(const std::vector<int32_t>& ids) {
  if (dense_) {
    for (const int32_t id : ids) *own(id) = -infinity;
    return settle();
  }
  size_t next = 0;
  keep_if([&](size_t i) {
    if (next < ids.size() && ids[next] == ids_[i]) return ++next, false;
    return true;
  });
}

// Candidates as Python sees them.

namespace {

struct Listed {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  explicit Listed(Candidates& c) { c.list(ids, logits); }

  std::vector<uint64_t> weights(float top, float scale) const {
    std::vector<uint64_t> found(ids.size());
    weigh_(logits.data(), int64_t(found.size()), top, scale, found.data());
    return found;
  }
};

// What Softmax would have written of these candidates: weight over mass, both as it saw them.
std::vector<float> noted(Candidates& c) {
  const Listed listed(c);
  std::vector<float> p(listed.ids.size());
  if (!c.full_mass()) return p;
  const auto weights = listed.weights(c.full_top(), c.scale());
  for (size_t i = 0; i < p.size(); ++i) p[i] = float(double(weights[i]) / double(c.full_mass()));
  return p;
}

void set_logits(PyCandidates& c, Array<const float> z) {
  auto& logits = c.get().edit_all();
  if (z.shape(0) != logits.size())
    throw LogitsError("there are ", logits.size(), " candidates, but ", z.shape(0),
                      " logits were given");
  std::copy(z.data(), z.data() + logits.size(), logits.begin());
  c.get().settle();
}

void keep(PyCandidates& c, std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  Candidates& inner = c.get();
  inner.compact();
  const auto& have = inner.ids();
  const auto in = [&](size_t i) { return std::binary_search(ids.begin(), ids.end(), have[i]); };
  bool any = false;
  for (size_t i = 0; i < have.size() && !any; ++i) any = in(i);
  if (!any) throw LogitsError("none of the tokens to keep is a candidate");
  inner.keep_if(in);
}

void select(PyCandidates& c, std::optional<int32_t> token) {
  if (token) {
    const Listed listed(c.get());
    if (!std::binary_search(listed.ids.begin(), listed.ids.end(), *token))
      throw LogitsError("token ", *token, " is not a candidate");
  }
  c.get().selected = token.value_or(-1);
}

}  // namespace

ALEATOR_BIND(candidates) {
  nb::class_<PyCandidates>(m, "Candidates")
      .def(nb::init<const Logits&>(), "logits"_a.noconvert())
      .def("__len__", [](PyCandidates& c) { return c.get().count(); })
      .def_prop_ro("n_vocab", [](PyCandidates& c) { return c.get().n_vocab(); })
      .def_prop_ro(
          "temperature", [](PyCandidates& c) { return c.get().temperature(); },
          "What the logits are still to be divided by.")
      .def_prop_rw(
          "selected",
          [](PyCandidates& c) {
            const int32_t token = c.get().selected;
            return token < 0 ? std::optional<int32_t>() : std::optional(token);
          },
          &select, nb::for_setter("token"_a.none()))
      .def_prop_ro(
          "ids", [](PyCandidates& c) { return to_numpy(std::move(Listed(c.get()).ids)); },
          nb::rv_policy::automatic)
      .def_prop_rw(
          "logits",
          [](PyCandidates& c) {
            c.get().materialise();
            return to_numpy(std::move(Listed(c.get()).logits));
          },
          &set_logits, nb::for_getter(nb::rv_policy::automatic))
      .def_prop_ro(
          "entropy", [](PyCandidates& c) { return c.get().entropy().bits; },
          "Of the distribution, in bits.")
      .def_prop_ro(
          "weights",
          [](PyCandidates& c) {
            return to_numpy(Listed(c.get()).weights(c.get().top(), c.get().scale()));
          },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "p", [](PyCandidates& c) { return to_numpy(noted(c.get())); }, nb::rv_policy::automatic,
          "The probabilities that Softmax noted, not made anew since; 0 where it noted none.")
      .def(
          "state",
          [](PyCandidates& c) {
            Listed listed(c.get());
            return nb::make_tuple(to_numpy(std::move(listed.ids)),
                                  to_numpy(std::move(listed.logits)), c.get().temperature(),
                                  c.get().full_mass());
          },
          "Token ids, logits, the temperature they still are to be divided by, and the mass that "
          "Softmax saw.")
      .def("keep", &keep, "ids"_a, "Keep these tokens; the others are no candidates any more.");
}

}  // namespace aleator
