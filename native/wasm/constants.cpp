#include "wasm/constants.hpp"

namespace aleator {

const WasmHalves wasm_halves = {{0x8fffe000, 0x8fffe000, 0x8fffe000, 0x8fffe000},
                                {0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f},
                                {0x7c000000, 0x7c000000, 0x7c000000, 0x7c000000},
                                {0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000}};
const WasmTies wasm_ties = {{0x1fffffff, 0x1fffffff, 0x1fffffff, 0x1fffffff},
                            {0x10000000, 0x10000000, 0x10000000, 0x10000000}};
alignas(16) const uint8_t wasm_low_nibbles[16] = {15, 15, 15, 15, 15, 15, 15, 15,
                                                  15, 15, 15, 15, 15, 15, 15, 15};
alignas(16) const uint16_t wasm_low_bytes[8] = {255, 255, 255, 255, 255, 255, 255, 255};

}  // namespace aleator
