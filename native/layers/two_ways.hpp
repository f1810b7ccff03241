// Which of two ways to do the same work is faster at present, found by doing it both ways.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace aleator {

// Pairs of steps, one each way, are compared, as what else there is on a machine changes within
// seconds. The first pairs follow one another; later the steps between two go the faster way.
class TwoWays {
 public:
  // Whether the step that begins now goes the second way.
  bool second() {
    place_ = n_ < at_first ? n_ % 2 : n_ % every, n_++;
    began_ = Clock::now();
    return second_ = (excess_ < 0) != (place_ == 1);
  }
  // It has ended.
  void ended() {
    if (place_ > 1) return;
    const std::chrono::nanoseconds time = Clock::now() - began_;
    const double took = std::log(std::max<double>(time.count(), 1));
    const double apart = second_ ? took : -took;
    if (place_ == 0)
      first_ = apart;
    else
      excess_ += (first_ + apart - excess_) * std::max(2.0 / n_, 1.0 / at_first);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t at_first = 16, every = 8;
  int64_t n_ = 0, place_ = 0;
  Clock::time_point began_;
  bool second_ = false;
  double first_ = 0;   // of the first step of a pair: the logarithm of its time, or minus that
  double excess_ = 0;  // mean logarithm of how much longer the second way takes, of late pairs
};

}  // namespace aleator
