// Strings of a GGUF file where the file has them.
#pragma once

#include <cstdint>
#include <cstring>
#include <mutex>

#include "bind.hpp"

namespace aleator {

class StringWalk {
 public:
  StringWalk(const Bytes& data, uint64_t offset)
      : data_(data.data()), size_(data.size()), offset_(offset) {}

  // The next string's bytes, or nullptr where it does not fit; then the offset stays.
  const char* next(uint64_t& length) {
    if (offset_ > size_ || size_ - offset_ < 8) return nullptr;
    std::memcpy(&length, data_ + offset_, 8);
    if (length > size_ - offset_ - 8) return nullptr;
    const char* text = reinterpret_cast<const char*>(data_ + offset_ + 8);
    offset_ += 8 + length;
    return text;
  }
  uint64_t offset() const { return offset_; }

 private:
  const uint8_t* data_;
  uint64_t size_, offset_;
};

// Whether Python decodes these bytes: neither overlong forms nor surrogates, up to U+10FFFF.
inline bool is_utf8(const char* text, uint64_t length) {
  const auto* at = reinterpret_cast<const uint8_t*>(text);
  const uint8_t* end = at + length;
  while (at < end) {
    const uint8_t lead = *at++;
    if (lead < 0x80) continue;
    if (lead < 0xC2 || lead > 0xF4) return false;
    const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    if (end - at < more) return false;
    uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    if (at[0] < low || at[0] > high) return false;
    for (int i = 1; i < more; ++i)
      if (at[i] < 0x80 || at[i] > 0xBF) return false;
    at += more;
  }
  return true;
}

inline uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char byte : text) hash = (hash ^ uint8_t(byte)) * 0x100000001B3u;
  return hash ^ hash >> 29;
}

// Strings where a file has them, found by number and by text; 8 to 20 bytes for each.
class StringArray {
 public:
  StringArray(Bytes data, uint64_t offset, uint64_t count)
      : data_(std::move(data)), broken_(offset) {
    if (count > data_.size() / 8) count = data_.size() / 8 + 1;  // so many cannot be there
    StringWalk walk(data_, offset);
    starts_.reserve(count + 1);
    uint64_t length = 0;
    for (uint64_t i = 0; i < count; ++i) {
      broken_ = walk.offset();
      const char* text = walk.next(length);
      if (!text || !is_utf8(text, length)) break;
      starts_.push_back(broken_);
      has_empty_ |= length == 0;
    }
    starts_.push_back(starts_.size() < count ? broken_ : walk.offset());
  }

  uint64_t size() const { return starts_.size() - 1; }
  uint64_t broken() const { return broken_; }
  bool has_empty() const { return has_empty_; }

  std::string_view operator[](uint64_t i) const {
    // Not by the length that the data say: the file may have been written to since.
    return {reinterpret_cast<const char*>(data_.data() + starts_[i] + 8),
            size_t(starts_[i + 1] - starts_[i] - 8)};
  }

  nb::str text(int64_t i) const {
    if (i < 0) i += int64_t(size());
    if (i < 0 || i >= int64_t(size())) throw nb::index_error("no string of that number");
    const std::string_view found = (*this)[uint64_t(i)];
    return nb::str(found.data(), found.size());
  }

  // The last of that text, -1 if there is none.
  int64_t find(std::string_view text) const {
    build();
    const uint64_t mask = slots_.size() - 1;
    for (uint64_t at = hash_of(text) & mask; slots_[at]; at = (at + 1) & mask)
      if ((*this)[slots_[at] - 1] == text) return slots_[at] - 1;
    return -1;
  }

  // The first string that occurs again, and the last of that text.
  std::optional<std::pair<int64_t, int64_t>> first_twice() const {
    build();
    if (!twice_) return std::nullopt;
    for (uint64_t i = 0;; ++i)
      if (const int64_t last = find((*this)[i]); last != int64_t(i))
        return std::pair(int64_t(i), last);
  }

 private:
  void build() const {
    std::call_once(built_, [this] {
      uint64_t n = 16;
      while (n < 2 * size()) n *= 2;
      slots_.assign(n, 0);
      for (uint64_t i = 0; i < size(); ++i) {
        uint64_t at = hash_of((*this)[i]) & (n - 1);
        while (slots_[at] && (*this)[slots_[at] - 1] != (*this)[i]) at = (at + 1) & (n - 1);
        twice_ |= slots_[at] != 0;
        slots_[at] = uint32_t(i + 1);
      }
    });
  }

  Bytes data_;
  std::vector<uint64_t> starts_;  // of each, and the end of the last one
  uint64_t broken_;
  bool has_empty_ = false;
  mutable std::once_flag built_;
  mutable std::vector<uint32_t> slots_;  // number + 1; 0: free
  mutable bool twice_ = false;
};

}  // namespace aleator
