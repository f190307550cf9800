#pragma once
// Experts on dp4a: MXFP4 weights as they are packed, activations in int8 with a scale per 32 (round_blocks.h).

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/experts/grouped_plan.h"

#include <string>

namespace nibble::backend::cuda {

inline constexpr int kInt8Warps = 4;  // that share the slices of a row tile

// A CTA per row tile and tile of up to eight of an expert's pairs.
struct GemvInt8Plan {
  int row_tiles = 0;
  int64_t expert_tiles = 0;  // at most
  [[nodiscard]] std::string to_string() const;
};
// `rows` of each of the experts that `pairs` use. Throws Error(kUnsupported) for more than a grid holds.
[[nodiscard]] GemvInt8Plan plan_gemv_int8(int64_t rows, int64_t pairs, int64_t experts);

// GroupedUpArgs and GroupedDownArgs whose x and u are int8 blocks, of groups of up to eight pairs; up's u is f16. Sums
// are exact within a block, then f32 in an order fixed by the columns: bitwise repeatable, whatever the other pairs.
// Check the arguments, launch chained (chained_launch.cuh), return.
void any_gemv_int8_up(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on);
void any_gemv_int8_down(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
