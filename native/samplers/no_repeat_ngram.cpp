// Contract: src/aleator/samplers/no_repeat_ngram.py
#include <algorithm>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class NoRepeatNgram : public Cloned<NoRepeatNgram> {
 public:
  explicit NoRepeatNgram(int64_t size) : size_(size) {}

  void apply(Candidates& c, const Step& step) override {
    if (!size_ || !step.history) return;
    const auto& tokens = step.history->tokens;
    const auto n = static_cast<int64_t>(tokens.size());
    if (n < size_) return;
    banned_.clear();
    const int64_t before = size_ - 1;  // tokens of a run before its last
    const int32_t* ending = tokens.data() + n - before;
    for (int64_t i = 0; i + before < n; ++i)
      if (!before || (tokens[i + before - 1] == ending[before - 1] &&
                      std::equal(ending, ending + before, tokens.data() + i)))
        banned_.push_back(tokens[i + before]);
    c.mask(banned_);
  }

 private:
  int64_t size_;
  std::vector<int32_t> banned_;
};

ALEATOR_BIND(sampler_no_repeat_ngram) {
  nb::class_<NoRepeatNgram, Sampler>(m, "NoRepeatNgram")
      .def(nb::init<int64_t>(), "no_repeat_ngram_size"_a);
}

}  // namespace aleator
