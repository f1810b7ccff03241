// Constants of the portable numerics contract (docs/numerics.md), made by tools/contract.py of
// src/aleator/core/contract.py, which explains them.  Do not edit.
#pragma once

#include <cstdint>

namespace aleator {

// clang-format off
namespace contract {

constexpr int64_t numerics_version = 2;
constexpr int64_t max_vocab = 1048576;
constexpr int weight_bits = 40;
constexpr double log2_e = 1.4426950408889634;
constexpr float exp2_coefficients[] = {1.0f, 0.6931470036506653f, 0.24022242426872253f, 0.05550733581185341f, 0.009671512991189957f, 0.001326472731307149f};
constexpr float round = 12582912.0f;
constexpr float least_bits = -100.0f;
constexpr float depth_unit = 65536.0f;
constexpr double entropy_series = 0.0009765625;
constexpr double coldest = 1e-05;
constexpr double exp2_limit = 1000.0;
constexpr float sigma_least = -256.0f;
constexpr float sigma_unit = 4096.0f;
constexpr float xtc_largest = 0.5f;
constexpr double mu_limit = 100.0;
constexpr float adaptive_peak = 5.0f;
constexpr float adaptive_slope = 10.0f;
constexpr float adaptive_width = 0.3f;
constexpr double dry_largest_power = 1e+300;
constexpr double dry_largest_penalty = 3e+38;
constexpr int philox_rounds = 10;
constexpr uint32_t philox_multipliers[] = {0xd2511f53u, 0xcd9e8d57u};
constexpr uint32_t philox_key_steps[] = {0x9e3779b9u, 0xbb67ae85u};
constexpr int purpose_shift = 28;
constexpr int ordinal_shift = 20;
constexpr uint32_t max_ordinal = 0xffu;
constexpr uint32_t max_completion = 0xfffffu;

}  // namespace contract

// What a stream of random numbers is for.
enum class Purpose : uint32_t { dist = 1, gumbel = 2, xtc = 3, mirostat = 4, mirostat_v2 = 5, adaptive_p = 6, user = 7, watermark = 8, ban = 9 };
// clang-format on

}  // namespace aleator
