// A chain of built-in samplers as one object: one call per token from Python, without the GIL; and
// many chains over many rows, on a pool of threads.
#include <algorithm>
#include <exception>

#include "bind.hpp"
#include "samplers/chain_binding.hpp"
#include "threads/pool.hpp"

namespace aleator {

void History::check_token(int32_t token) {
  if (token < 0 || token >= max_token)
    throw ParameterError("token", "token ", token,
                         " cannot be accepted: ids run from 0 to 16,777,215");
}

void History::read(StateReader& in) {
  const auto n = in.get<uint64_t>();
  tokens = in.get_all<int32_t>(n);
  generated = in.get_all<uint8_t>(n);
  for (const int32_t token : tokens)
    if (token < 0 || token >= max_token) in.refuse("token ", token, " is in its history");
  for (const uint8_t flag : generated)
    if (flag > 1) in.refuse("a token of its history is neither given nor generated");
}

class Chain : public ChainBase<Sampler> {
 public:
  Chain(Samplers samplers, uint32_t completion)
      : ChainBase(std::move(samplers)), completion_(completion) {}

  const Samplers& samplers() const { return samplers_; }
  void apply(Candidates& candidates) {
    for (const auto& sampler : samplers_) sampler->apply(candidates, step());
  }
  void apply_one(Candidates& candidates, size_t index) {
    samplers_.at(index)->apply(candidates, step());
  }
  void insert(size_t index, std::shared_ptr<Sampler> sampler) {
    // It sees what was accepted so far as if it had been there.
    replay(*sampler, history_);
    samplers_.insert(samplers_.begin() + static_cast<int64_t>(std::min(index, samplers_.size())),
                     std::move(sampler));
  }
  void remove(size_t index) {
    samplers_.at(index);
    samplers_.erase(samplers_.begin() + static_cast<int64_t>(index));
  }
  void set_ordinals(const std::vector<uint32_t>& ordinals) {  // one per sampler
    for (size_t i = 0; i < samplers_.size(); ++i) samplers_[i]->set_ordinal(ordinals.at(i));
  }
  void accept_many(std::span<const int32_t> tokens, bool generated) {  // all of them, or none
    for (const int32_t token : tokens) History::check_token(token);
    size_t done = 0;
    try {
      for (; done < tokens.size(); ++done) accept(tokens[done], generated);
    } catch (...) {
      rollback(static_cast<int64_t>(done));
      throw;
    }
  }
  std::string write_state(bool users) const {
    StateWriter out(users);
    history_.write(out);
    out.put<uint64_t>(position_);
    write_samplers(out);
    return out.bytes();
  }
  void read_state(std::string_view bytes) {  // into a new chain; after an error it is of no use
    StateReader in(bytes);
    history_.read(in);
    position_ = in.get<uint64_t>();
    read_samplers(in);
  }
  // A chain with copies of some of the samplers, in the same place of the same text.
  std::unique_ptr<Chain> part(size_t first, size_t count) {
    Samplers copies;
    for (size_t i = first; i < first + count; ++i) copies.push_back(samplers_.at(i)->clone());
    return beside(std::move(copies), history_);
  }
  std::unique_ptr<Chain> present() {  // copies of the samplers that act now, likewise
    Samplers copies;
    const History* heard = &history_;
    for (const auto& sampler : samplers_) {
      for (auto& each : sampler->acting()) copies.push_back(std::move(each));
      heard = &sampler->heard(*heard);
    }
    return beside(std::move(copies), *heard);
  }
  void adopt(Chain& other) { swap(other); }  // takes over its samplers and their state
  // Applies, accepts, returns the token.
  int32_t sample(const void* logits, int64_t n_vocab, Dtype dtype);
  void set_position(uint64_t position) { position_ = position; }
  void free_scratch() { scratch_ = Candidates(); }

 private:
  Step step() const { return {position_, completion_, &history_}; }
  std::unique_ptr<Chain> beside(Samplers samplers, const History& history) const {
    auto made = std::make_unique<Chain>(std::move(samplers), completion_);
    made->history_ = history;
    made->position_ = position_;
    return made;
  }

  uint32_t completion_;
  Candidates scratch_;
};

int32_t Chain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = Clock::now();
  scratch_.load(data, n, dtype);
  apply(scratch_);
  if (scratch_.selected < 0) refuse_no_selection();
  accept(scratch_.selected, true);
  return sampled(began);
}

ALEATOR_BIND(chain) {
  nb::class_<Sampler>(m, "Sampler", "A built-in sampler, to be put into a Chain.");

  bind_chain<Chain, PyCandidates>(m, "Chain")
      .def(nb::init<std::vector<std::shared_ptr<Sampler>>, uint32_t>(), "samplers"_a,
           "completion"_a)
      .def("insert", alone<Chain>(&Chain::insert), "index"_a, "sampler"_a)
      .def("remove", alone<Chain>(&Chain::remove), "index"_a)
      .def("set_ordinals", &Chain::set_ordinals, "ordinals"_a)
      .def("rollback", alone<Chain>(&Chain::rollback), "n"_a)
      .def("part", alone<Chain>(&Chain::part), "first"_a, "count"_a,
           "A chain with copies of some samplers, in the same place of the same text.")
      .def("present", alone<Chain>(&Chain::present),
           "A chain with copies of the samplers that act now, in the same place of the same text.")
      .def_prop_ro(
          "generated", [](const Chain& chain) { return chain.history().generated; },
          "For each token of the history, 1 if it was generated.")
      .def_prop_rw("position", &Chain::position, &Chain::set_position);
}

using Batch = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

// The tokens, in order of rows; if a row fails, all chains are as before and its error is thrown.
static std::vector<int32_t> sample_batch(const std::vector<Chain*>& chains, const Batch& logits,
                                         Pool& pool) {
  const size_t rows = logits.shape(0), columns = logits.shape(1);
  if (chains.size() != rows)
    throw LogitsError("there are ", chains.size(), " chains for ", rows, " rows of logits");
  if (columns > 1 && logits.stride(1) != 1)
    throw LogitsError("each row of logits must be contiguous");
  const Dtype dtype = dtype_of(logits);
  const int64_t stride = logits.stride(0) * (logits.dtype().bits / 8);
  const auto* data = static_cast<const uint8_t*>(logits.data());
  std::vector<int32_t> tokens(rows, -1);
  std::vector<std::exception_ptr> errors(rows);
  {
    nb::gil_scoped_release release;
    pool.run([&](int thread) {
      pool.split(thread, static_cast<int64_t>(rows), [&](int64_t row) {
        try {
          const Busy busy(chains[row]->in_use);
          tokens[row] =
              chains[row]->sample(data + row * stride, static_cast<int64_t>(columns), dtype);
        } catch (...) {
          errors[row] = std::current_exception();
        }
      });
    });
  }
  for (size_t row = 0; row < rows; ++row) {
    if (!errors[row]) continue;
    for (size_t other = 0; other < rows; ++other)
      if (!errors[other]) chains[other]->rollback(1);
    try {
      std::rethrow_exception(errors[row]);
    } catch (const LogitsError& e) {
      throw LogitsError("row ", row, ": ", e.what());
    }
  }
  return tokens;
}

ALEATOR_BIND(sample_batch) {
  m.def("sample_batch", &sample_batch, "chains"_a, "logits"_a.noconvert(), "pool"_a);
}

}  // namespace aleator
