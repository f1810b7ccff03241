// Vectors that loops of products keep in registers.  Browsers make a constant anew, by three
// instructions, wherever one is used; what comes from memory they keep.  The compiler must not see
// the values, so they stand in a source of their own.
#pragma once

#include <cstdint>

namespace aleator {

// Of a float16 in the upper half of an integer, shifted down by 3: sign, exponent and fraction;
// what moves the exponent's bias; the exponent of what is infinite or no number, before and after.
struct WasmHalves {
  alignas(16) uint32_t kept[4];
  alignas(16) float scale[4];
  alignas(16) uint32_t top[4], infinite[4];
};
extern const WasmHalves wasm_halves;
// Of a float64's lower half what a float32 has no room for, and half of its last bit.
struct WasmTies {
  alignas(16) int32_t lost[4];
  alignas(16) int32_t half[4];
};
extern const WasmTies wasm_ties;
alignas(16) extern const uint8_t wasm_low_nibbles[16];
alignas(16) extern const uint16_t wasm_low_bytes[8];

}  // namespace aleator
