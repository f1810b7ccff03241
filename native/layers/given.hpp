// A layer, or a whole decoder, as Python's objects describe it (aleator/models/layers/parts.py,
// recurrent_parts.py): attributes are read by name, sizes are checked, and the memory that they
// name is kept alive.
#pragma once

#include <memory>

#include "layers/stored_matrix.hpp"

namespace aleator {

using Kept = std::vector<std::shared_ptr<const void>>;
// Numbers of any shape, rows one after the other.
using Values = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// The matrix; std::invalid_argument, naming the tensor, unless it is [out, in].
inline Weights sized(const Weights& w, int64_t out, int64_t in, const std::string& tensor) {
  require(w.out == out && w.in == in, tensor, ".weight is [", w.out, ", ", w.in, "], not [", out,
          ", ", in, "]");
  return w;
}

class Given {
 public:
  Given(nb::object of, Kept& kept) : of_(std::move(of)), kept_(&kept) {}

  bool none() const { return of_.is_none(); }
  bool has(const char* name) const { return !attribute(name).is_none(); }
  bool knows(const char* name) const { return nb::hasattr(of_, name); }
  Given part(const char* name) const { return {attribute(name), *kept_}; }
  template <class T>
  T get(const char* name) const {
    return part(name).value<T>(name);
  }
  template <class T>
  T value(const std::string& name) const {
    try {
      return nb::cast<T>(of_);
    } catch (const nb::cast_error&) {
      refuse(name, " is of another type");
    }
  }

  // Those of a list; none where it is None.
  std::vector<Given> parts(const char* name) const {
    std::vector<Given> made;
    if (has(name))
      for (const nb::handle each : attribute(name)) made.push_back({nb::borrow(each), *kept_});
    return made;
  }
  // Those of a list, or of lists in one; none where it is None.
  std::vector<Weights> matrices(const char* name) const {
    std::vector<Weights> made;
    for (const Given& each : parts(name)) each.add_to(made);
    return made;
  }
  // The only one of a list; without data where it is None.
  Weights matrix(const char* name) const {
    const std::vector<Weights> all = matrices(name);
    require(all.size() <= 1, name, " has ", all.size(), " matrices");
    return all.empty() ? Weights{} : all[0];
  }
  // How many numbers there are.
  int64_t size(const char* name) const { return has(name) ? int64_t(get<Values>(name).size()) : 0; }
  // n numbers; null where they are None.
  const float* vector(const char* name, int64_t n, const std::string& tensor) const {
    return has(name) ? part(name).numbers(n, tensor) : nullptr;
  }
  // The same where they may not be None.
  const float* needed(const char* name, int64_t n, const std::string& tensor) const {
    require(has(name), tensor, " is missing");
    return part(name).numbers(n, tensor);
  }
  const float* numbers(int64_t n, const std::string& tensor) const {
    const Values* all = keep(value<Values>(tensor));
    require(int64_t(all->size()) == n, tensor, " has ", all->size(), " elements, not ", n);
    return all->data();
  }
  template <class T>
  const T* keep(T given) const {
    const auto kept = std::make_shared<const T>(std::move(given));
    kept_->push_back(kept);
    return kept.get();
  }

 private:
  nb::object attribute(const char* name) const { return nb::getattr(of_, name); }
  void add_to(std::vector<Weights>& made) const {
    if (knows("matrix")) {
      made.push_back(keep(get<StoredMatrix>("matrix"))->weights);
    } else {
      for (const nb::handle each : of_) Given(nb::borrow(each), *kept_).add_to(made);
    }
  }
  nb::object of_;
  Kept* kept_;
};

}  // namespace aleator
