// Contract: src/aleator/samplers/min_tokens.py
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class MinTokens : public Cloned<MinTokens> {
 public:
  MinTokens(int64_t least, std::vector<int32_t> ends) : least_(least), ends_(std::move(ends)) {}

  void apply(Candidates& c, const Step&) override {
    if (least_ > 0 && generated_ < least_) c.mask(ends_);
  }
  void accept(const History& h) override { generated_ += h.generated.back(); }
  void unaccept(const History& h) override {
    if (generated_ > 0) generated_ -= h.generated.back();
  }
  void reset() override { generated_ = 0; }
  void restart() override { generated_ = 0; }
  void write_state(StateWriter& out) const override { out.put(generated_); }
  void read_state(StateReader& in, const History& history) override {
    generated_ = in.get<int64_t>();
    if (generated_ < 0 || generated_ > int64_t(history.tokens.size()))
      in.refuse("min_tokens counts tokens that were not accepted");
  }

 private:
  int64_t least_;
  std::vector<int32_t> ends_;
  int64_t generated_ = 0;  // since the text began
};

ALEATOR_BIND(sampler_min_tokens) {
  bind_sampler<MinTokens(int64_t, std::vector<int32_t>)>(m, "MinTokens", "min_tokens"_a,
                                                         "end_tokens"_a);
}

}  // namespace aleator
